"""Weak styles of test let known faults pass that the strict scenario detects."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import rowtwin
from falsifiers.judging.errors import SuiteError
from falsifiers.judging.matrix import Bank
from falsifiers.judging.subject import Mutant, Subject
from falsifiers.mutation.mutants import sample_names
from phases import weak_styles_report
from phases.weak_styles import (
    PHASES,
    Comparison,
    MissedMutant,
    close_cosine,
    format_table,
    same_bits,
    same_tokens,
    small_nmse,
    try_styles,
)


def find_mutant(phase: str, name: str) -> tuple[Bank, Mutant]:
    """Return a phase's bank and the mutant of a name."""
    bank = rowtwin.phase_bank(phase)
    return bank, next(mutant for mutant in bank.mutants if mutant.name == name)


@pytest.mark.parametrize(("name", "styles"), [
    ("other_arithmetic_above_one_row", ("tokens only", "cosine 0.999", "NMSE 5e-4")),
    ("row_index_is_the_slot", ("identical prompts",)),
    ("last_row_of_an_odd_batch_copied", ("m = 2 only",)),
    ("conv_window_not_cleared", ("zeroed pool",)),
    ("position_of_the_last_call", ("aligned lengths",))])
def test_style_lets_a_known_fault_pass(name: str, styles: tuple[str, ...]) -> None:
    assert try_styles(*find_mutant("p1", name), styles) == MissedMutant("p1", name, styles)


def test_every_style_detects_one_state_for_all_rows() -> None:
    name = "one_state_for_all_rows"
    assert try_styles(*find_mutant("p1", name)) == MissedMutant("p1", name, ())


def test_every_comparison_of_a_scenario_detects_a_crash() -> None:
    name, styles = "cap_of_another_device", ["NMSE 5e-4", "m = 2 only", "zeroed pool"]
    assert try_styles(*find_mutant("p4", name), styles) == MissedMutant("p4", name, ("m = 2 only",))


def test_correct_path_and_mutants_of_a_device_are_not_counted() -> None:
    def same(subject: Subject) -> Subject:
        return subject

    bank = rowtwin.phase_bank("p1")
    nothing = Mutant("nothing", "Nothing is wrong.", ("streams_equal_solo",), same)
    assert try_styles(bank, nothing) is None
    device = Mutant("device", "Only a device shows it.", ("streams_equal_solo",), same,
                    device="cuda")
    assert try_styles(bank, device) is None


@pytest.mark.parametrize("same", [same_bits, close_cosine, small_nmse])
def test_comparison_detects_nan_and_swapped_rows(same: Comparison) -> None:
    want = torch.eye(3)
    assert same(want.clone(), want)
    assert not same(want.roll(1, 0), want)
    assert not same(torch.full_like(want, float("nan")), want)


def test_same_tokens_detects_only_another_choice() -> None:
    want = torch.eye(3)
    assert same_tokens(want * 5, want)
    assert not same_tokens(want.roll(1, 0), want)


def test_table_counts_the_mutants_that_pass_each_style() -> None:
    found = [
        MissedMutant("p1", "a", ("tokens only",)),
        MissedMutant("p4", "b", ("tokens only", "NMSE 5e-4")),
    ]
    lines = list(format_table(found))
    assert lines[0] == "| what a test does | lets pass | p1 | p4 |"
    assert "| tokens only | 2 of 2 | 1 | 1 |" in lines
    assert "| NMSE 5e-4 | 1 of 2 | 0 | 1 |" in lines
    assert "| zeroed pool | 0 of 2 | 0 | 0 |" in lines


def test_page_matches_the_stored_results() -> None:
    assert weak_styles_report.PAGE.read_text(encoding="utf-8") == weak_styles_report.page_text(
        weak_styles_report.load_results()
    )


def test_stored_results_name_every_mutant() -> None:
    results = weak_styles_report.load_results()
    assert [phase.phase for phase in results.phases] == list(PHASES)
    for phase in results.phases:
        names = {mutant.name for mutant in rowtwin.phase_bank(phase.phase).mutants}
        assert {*phase.shown, *phase.not_shown} == names, "run rowtwin weak --keep"


def _sample() -> list[MissedMutant]:
    """Return two of the stored mutants; renaming a mutant may change the choice."""
    found = {f"{missed.phase}/{missed.name}": missed
             for phase in weak_styles_report.load_results().phases
             for missed in phase.missed_mutants()}
    return [found[name] for name in sample_names(found)[:2]]


@pytest.mark.parametrize("missed", _sample(), ids=lambda missed: missed.name)
def test_result_of_a_sampled_mutant_matches_the_stored_one(missed: MissedMutant) -> None:
    assert try_styles(*find_mutant(missed.phase, missed.name)) == missed


def test_saving_one_phase_preserves_the_others(tmp_path: Path) -> None:
    data, page = tmp_path / "weak.json", tmp_path / "weak.md"
    first = weak_styles_report.load_results().phases[0]
    weak_styles_report.save_results(first, data, page)
    odd = first.model_copy(update={"phase": "p0", "shown": {"odd": ("tokens only",)}})
    weak_styles_report.save_results(odd, data, page)
    assert [phase.phase for phase in weak_styles_report.load_results(data).phases] == ["p0", "p1"]
    assert "| `odd` | tokens only |" in page.read_text(encoding="utf-8")
    with pytest.raises(SuiteError, match=r"none\.json: cannot read results of rowtwin weak"):
        weak_styles_report.load_results(tmp_path / "none.json")


def test_phase_without_a_decode_path_is_refused() -> None:
    result = CliRunner().invoke(rowtwin.app, ["weak", "--phase", "0"])
    assert isinstance(result.exception, SuiteError)
    assert "p0 has no mutants of a decode path" in str(result.exception)
