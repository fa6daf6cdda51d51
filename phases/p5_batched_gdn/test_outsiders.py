"""Candidates from another folder: one that passes P5 by its budget, and variants that fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.load import load_contract
from contracts.schema import Case
from falsifiers.gate.candidates import Candidate, load_candidate
from falsifiers.judging.errors import Declined, ParityBroken
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from phases.p5_batched_gdn import test_falsifier
from phases.p5_batched_gdn.harness import CONTRACT
from phases.p5_batched_gdn.increment import path

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "own_delta.py"


def load_example(folder: Path, old: str = "", new: str = "") -> Candidate:
    """Return the example as a candidate, with one string of its source replaced."""
    source = EXAMPLE.read_text()
    assert old in source
    return write_candidate(folder, source, old, new)


def write_candidate(folder: Path, source: str, old: str = "", new: str = "") -> Candidate:
    """Return a candidate of this source, with one string replaced."""
    file = folder / "mine.py"
    file.write_text(source.replace(old, new) if old else source)
    return load_candidate(f"file:{file}")


def quick_cases(*falsifiers: str, tier: str = "cpu", op: str = "delta_step") -> Iterator[Case]:
    """Yield the quick cases of these falsifiers in one tier, for one op."""
    for case in load_contract(CONTRACT).expand():
        if case.falsifier in falsifiers and case.tier == tier and case.quick \
                and case.given.get("op", op) == op:
            yield case


def judge_case(case: Case, candidate: Candidate) -> Judge:
    judge = Judge(case)
    subject = Subject("outsider", models=lambda name: None, path=path(), candidate=candidate)
    getattr(test_falsifier, f"test_{case.falsifier}")(case, subject, judge)
    assert judge.compared > 0
    return judge


def test_einsum_passes_twin_by_bits_and_truth_by_the_budget(tmp_path: Path) -> None:
    candidate = load_example(tmp_path)
    attacks = ("order_and_slots_do_not_matter", "chunks_equal_steps", "recycled_slot_is_fresh")
    rungs = {case.falsifier: {w.rung for w in judge_case(case, candidate).worst}
             for case in quick_cases(*attacks) if case.given.get("tokens") not in (65, 130)}
    assert set(rungs) == set(attacks)
    assert rungs["order_and_slots_do_not_matter"] == {"bits"}
    (plain,) = [case for case in quick_cases("rows_are_true") if case.name == "delta_step-plain"]
    assert {w.rung for w in judge_case(plain, candidate).worst} == {"budget"}


@pytest.mark.parametrize(("old", "new", "falsifier", "rule"), [
    ("states.slots[row]", "row", "order_and_slots_do_not_matter", "twin"),
    ("states.slots[row]", "states.slots[row - 1]", "order_and_slots_do_not_matter", "twin"),
    ("repeat(1, groups, 1)", "repeat_interleave(groups, 1)", "rows_are_true", "truth"),
    ("state.mul_(g[at, :, None, None])", "state.mul_(g[0, :, None, None])",
     "neighbours_cannot_reach_a_row", "twin"),
    ("q.shape[-1] ** -0.5", "1.01 * q.shape[-1] ** -0.5", "rows_are_true", "truth")])
def test_wrong_variant_fails(tmp_path: Path, old: str, new: str, falsifier: str,
                            rule: str) -> None:
    candidate, (first, *_) = load_example(tmp_path, old, new), quick_cases(falsifier)
    with pytest.raises(ParityBroken) as broken:
        judge_case(first, candidate)
    assert broken.value.finding.rule in (rule, "law")


def test_ops_that_a_candidate_lacks_are_declined(tmp_path: Path) -> None:
    with pytest.raises(Declined, match="offers no conv_step"):
        judge_case(next(quick_cases("rows_equal_alone", op="conv_step")), load_example(tmp_path))
    (extreme,) = [c for c in quick_cases("rows_are_true") if c.name == "delta_step-extreme"]
    with pytest.raises(Declined, match="plain values only"):
        judge_case(extreme, load_example(tmp_path))


GATES_SOURCE = """import torch

def gates(a, b, decay, bias, g, beta):
    g.copy_(torch.exp(decay * torch.nn.functional.softplus(a + bias)))
    beta.copy_(torch.sigmoid(b))
"""


@pytest.mark.parametrize(("old", "new"), [
    ("", ""), ("torch.sigmoid(b)", "torch.full_like(b, 0.25)"), ("decay * ", "1.01 * decay * "),
    ("a + bias", "a.bfloat16().float() + bias")])
def test_gates_of_an_own_arithmetic_are_compared_by_the_budget(tmp_path: Path, old: str,
                                                               new: str) -> None:
    candidate = write_candidate(tmp_path, GATES_SOURCE, old, new)
    case = next(quick_cases("gates_are_true"))
    if not old:
        assert {w.rung for w in judge_case(case, candidate).worst} == {"budget"}
        return
    with pytest.raises(ParityBroken) as broken:
        judge_case(case, candidate)
    assert (broken.value.finding.rule, broken.value.finding.rung) == ("truth", "budget")


def test_pad_that_is_read_and_written_back_fails(tmp_path: Path) -> None:
    candidate = load_example(tmp_path, "    for row, count in enumerate(counts):\n", (
        "    for row, count in enumerate(counts):\n"
        "        if not count:\n"
        "            states.all_slots[states.slots[row]].mul_(1.0)\n"))
    with pytest.raises(ParityBroken, match="changed by a call that does not name it"):
        judge_case(next(quick_cases("pad_rows_do_nothing")), candidate)


def test_cases_that_an_own_arithmetic_declines_need_no_claim() -> None:
    for case in load_contract(CONTRACT).expand():
        if case.falsifier == "rows_are_true" and case.given["flavour"] != "plain":
            assert not case.must_claim


@pytest.mark.tier("interpret")
def test_module_of_the_tree_can_be_a_candidate() -> None:
    candidate = load_candidate("module:phases.p5_batched_gdn.kernel_delta")
    (case,) = [c for c in quick_cases("rows_are_true", tier="interpret")
               if c.name == "delta_step-zeros"]
    assert {w.rung for w in judge_case(case, candidate).worst} == {"bits"}


@pytest.mark.tier("interpret")
def test_loads_of_a_candidate_without_triton_are_declined(tmp_path: Path) -> None:
    case = next(quick_cases("state_is_read_once", tier="interpret"))
    with pytest.raises(Declined, match="not Triton's"):
        judge_case(case, load_example(tmp_path))
