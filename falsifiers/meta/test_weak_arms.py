"""Weak styles of test let known faults pass, and the strict scene shows the same faults."""

from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner

import rowtwin
from falsifiers.errors import SuiteError
from falsifiers.subject import Mutant, Subject
from phases.weak_arms import Missed, bits, cosine, nmse, table, tokens, weigh


@pytest.mark.parametrize(("name", "style"), [
    ("other_arithmetic_above_one_row", "tokens only"),
    ("other_arithmetic_above_one_row", "cosine 0.999"),
    ("other_arithmetic_above_one_row", "NMSE 5e-4"),
    ("row_index_is_the_slot", "identical prompts"),
    ("last_row_of_an_odd_batch_copied", "m = 2 only"),
    ("conv_window_not_cleared", "zeroed pool"),
    ("position_of_the_last_call", "aligned lengths")])
def test_style_lets_a_known_fault_pass(name: str, style: str) -> None:
    bank = rowtwin.bank("p1")
    (mutant,) = [one for one in bank.mutants if one.name == name]
    missed = weigh(bank, mutant)
    assert missed is not None
    assert style in missed.styles


def test_fault_that_every_style_sees_is_missed_by_none() -> None:
    bank = rowtwin.bank("p1")
    (mutant,) = [one for one in bank.mutants if one.name == "logits_rolled_by_one_row"]
    assert weigh(bank, mutant) == Missed("p1", "logits_rolled_by_one_row", ())


def test_crash_is_seen_by_every_comparison_of_its_scene() -> None:
    bank = rowtwin.bank("p4")
    (mutant,) = [one for one in bank.mutants if one.name == "cap_of_another_device"]
    assert weigh(bank, mutant) == Missed("p4", "cap_of_another_device", ("m = 2 only",))


def test_right_path_and_faults_of_a_device_are_not_weighed() -> None:
    def same(subject: Subject) -> Subject:
        return subject

    bank = rowtwin.bank("p1")
    nothing = Mutant("nothing", "Nothing is wrong.", ("streams_equal_solo",), same)
    assert weigh(bank, nothing) is None
    there = Mutant("there", "A device alone shows it.", ("streams_equal_solo",), same,
                   device="cuda")
    assert weigh(bank, there) is None


@pytest.mark.parametrize("same", [bits, cosine, nmse])
def test_comparison_sees_nan_and_a_row_of_another(same: object) -> None:
    assert callable(same)
    want = torch.eye(3)
    assert same(want.clone(), want)
    assert not same(want.roll(1, 0), want)
    assert not same(torch.full_like(want, float("nan")), want)


def test_tokens_see_another_choice_alone() -> None:
    want = torch.eye(3)
    assert tokens(want * 5, want)
    assert not tokens(want.roll(1, 0), want)


def test_table_counts_what_each_style_lets_pass() -> None:
    found = [Missed("p1", "a", ("tokens only",)), Missed("p4", "b", ("tokens only", "NMSE 5e-4"))]
    lines = list(table(found, ["p1/c"]))
    assert "| tokens only | 2 | 2 | `p1/a`, `p4/b` |" in lines
    assert "| NMSE 5e-4 | 1 | 2 | `p4/b` |" in lines
    assert "| zeroed pool | 0 | 2 | - |" in lines
    assert lines[-1].startswith("Not counted: 1, ")


def test_phase_without_a_decode_path_is_refused() -> None:
    shown = CliRunner().invoke(rowtwin.app, ["weak", "--phase", "0"])
    assert isinstance(shown.exception, SuiteError)
    assert "p0 has no mutants of a decode path" in str(shown.exception)
