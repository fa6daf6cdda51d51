"""Weak styles of test let known faults pass, and the strict scene shows the same faults."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import rowtwin
from falsifiers.judging.errors import SuiteError
from falsifiers.judging.subject import Mutant, Subject
from falsifiers.mutation.mutants import sample_names
from phases import weak_styles_report
from phases.weak_styles import (
    PHASES,
    MissedMutant,
    close_cosine,
    format_table,
    same_bits,
    same_tokens,
    small_nmse,
    try_styles,
)


@pytest.mark.parametrize(("name", "style"), [
    ("other_arithmetic_above_one_row", "tokens only"),
    ("other_arithmetic_above_one_row", "cosine 0.999"),
    ("other_arithmetic_above_one_row", "NMSE 5e-4"),
    ("row_index_is_the_slot", "identical prompts"),
    ("last_row_of_an_odd_batch_copied", "m = 2 only"),
    ("conv_window_not_cleared", "zeroed pool"),
    ("position_of_the_last_call", "aligned lengths")])
def test_style_lets_a_known_fault_pass(name: str, style: str) -> None:
    bank = rowtwin.phase_bank("p1")
    (mutant,) = [one for one in bank.mutants if one.name == name]
    assert try_styles(bank, mutant, [style]) == MissedMutant("p1", name, (style,))


def test_fault_that_every_style_sees_is_missed_by_none() -> None:
    bank = rowtwin.phase_bank("p1")
    (mutant,) = [one for one in bank.mutants if one.name == "one_state_for_all_rows"]
    assert try_styles(bank, mutant) == MissedMutant("p1", "one_state_for_all_rows", ())


def test_crash_is_seen_by_every_comparison_of_its_scene() -> None:
    bank = rowtwin.phase_bank("p4")
    (mutant,) = [one for one in bank.mutants if one.name == "cap_of_another_device"]
    seen_by = ["NMSE 5e-4", "m = 2 only", "zeroed pool"]
    assert try_styles(bank, mutant, seen_by) == MissedMutant(
        "p4", "cap_of_another_device", ("m = 2 only",)
    )


def test_right_path_and_faults_of_a_device_are_not_weighed() -> None:
    def same(subject: Subject) -> Subject:
        return subject

    bank = rowtwin.phase_bank("p1")
    nothing = Mutant("nothing", "Nothing is wrong.", ("streams_equal_solo",), same)
    assert try_styles(bank, nothing) is None
    there = Mutant("there", "A device alone shows it.", ("streams_equal_solo",), same,
                   device="cuda")
    assert try_styles(bank, there) is None


@pytest.mark.parametrize("same", [same_bits, close_cosine, small_nmse])
def test_comparison_sees_nan_and_a_row_of_another(same: object) -> None:
    assert callable(same)
    want = torch.eye(3)
    assert same(want.clone(), want)
    assert not same(want.roll(1, 0), want)
    assert not same(torch.full_like(want, float("nan")), want)


def test_tokens_see_another_choice_alone() -> None:
    want = torch.eye(3)
    assert same_tokens(want * 5, want)
    assert not same_tokens(want.roll(1, 0), want)


def test_table_counts_what_each_style_lets_pass() -> None:
    found = [
        MissedMutant("p1", "a", ("tokens only",)),
        MissedMutant("p4", "b", ("tokens only", "NMSE 5e-4")),
    ]
    lines = list(format_table(found))
    assert lines[0] == "| what a test does | lets pass | p1 | p4 |"
    assert "| tokens only | 2 of 2 | 1 | 1 |" in lines
    assert "| NMSE 5e-4 | 1 of 2 | 0 | 1 |" in lines
    assert "| zeroed pool | 0 of 2 | 0 | 0 |" in lines


def test_page_is_the_one_that_the_data_give() -> None:
    assert weak_styles_report.PAGE.read_text(encoding="utf-8") == weak_styles_report.page_text(
        weak_styles_report.load_results()
    )


def test_every_copy_of_the_table_is_the_one_that_the_data_give() -> None:
    (first, *_), want = (
        list(weak_styles_report.summary_lines(weak_styles_report.load_results().phases))
        for _ in range(2)
    )
    head = first.split("|")[1]
    copies = [text[text.index(f"|{head}|"):].split("\n\n")[0]
              for text in (path.read_text(encoding="utf-8")
                           for path in (weak_styles_report.PAGE, rowtwin.ROOT / "README.md"))
              if f"|{head}|" in text]
    assert copies
    assert {copy.strip() for copy in copies} == {"\n".join(want[:want.index("")])}


def test_data_are_of_the_mutants_there_are() -> None:
    kept = weak_styles_report.load_results()
    assert [one.phase for one in kept.phases] == list(PHASES)
    for one in kept.phases:
        names = {mutant.name for mutant in rowtwin.phase_bank(one.phase).mutants}
        assert {*one.shown, *one.not_shown} == names, "rowtwin weak --keep weighs them again"


def _few() -> list[tuple[str, str]]:
    """Return a few of the mutants that were weighed; another set when any is renamed."""
    shown = {
        f"{one.phase}/{name}": (one.phase, name)
        for one in weak_styles_report.load_results().phases
        for name in one.shown
    }
    return [shown[name] for name in sample_names(shown)[:2]]


@pytest.mark.parametrize(("phase", "name"), _few())
def test_mutant_weighed_again_is_what_the_data_say(phase: str, name: str) -> None:
    (one,) = [one for one in weak_styles_report.load_results().phases if one.phase == phase]
    bank = rowtwin.phase_bank(phase)
    (mutant,) = [one for one in bank.mutants if one.name == name]
    assert try_styles(bank, mutant) == MissedMutant(phase, name, one.shown[name])


def test_what_is_kept_of_one_phase_leaves_the_others(tmp_path: Path) -> None:
    data, page = tmp_path / "weak.json", tmp_path / "weak.md"
    one = weak_styles_report.load_results().phases[0]
    weak_styles_report.save_results(one, data, page)
    weak_styles_report.save_results(
        one.model_copy(update={"phase": "p0", "shown": {"odd": ("tokens only",)}}), data, page
    )
    assert [kept.phase for kept in weak_styles_report.load_results(data).phases] == ["p0", "p1"]
    assert "| `odd` | tokens only |" in page.read_text(encoding="utf-8")
    with pytest.raises(SuiteError, match=r"none\.json holds no weighed mutants"):
        weak_styles_report.load_results(tmp_path / "none.json")


def test_phase_without_a_decode_path_is_refused() -> None:
    shown = CliRunner().invoke(rowtwin.app, ["weak", "--phase", "0"])
    assert isinstance(shown.exception, SuiteError)
    assert "p0 has no mutants of a decode path" in str(shown.exception)
