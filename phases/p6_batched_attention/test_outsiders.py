"""Candidates from another folder: one that P6 takes by its budget, and one that it refuses."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.load import load_contract
from contracts.schema import Case
from engine.testmodels import load as load_model
from falsifiers.gate.candidates import Candidate, load_candidate
from falsifiers.judging.errors import Declined, ParityBroken
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from phases.p6_batched_attention import increment, test_falsifier
from phases.p6_batched_attention.harness import CONTRACT

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
TWIN_FALSIFIERS = ("rows_equal_alone", "rows_and_slots_may_move", "pads_do_nothing",
         "what_lies_beyond_cannot_reach_a_row", "neighbours_cannot_reach_a_row",
         "chunks_equal_steps", "only_new_rows_are_written", "repeats_are_equal")


def load_example(folder: Path, name: str) -> Candidate:
    """Return an example as an outsider would offer it, from a folder of his own."""
    return load_candidate(f"file:{shutil.copy(EXAMPLES / name, folder / name)}")


def quick_cases(*falsifiers: str, tier: str = "cpu") -> Iterator[Case]:
    """Yield the quick cases of these falsifiers in one tier."""
    for case in load_contract(CONTRACT).expand():
        if case.falsifier in falsifiers and case.tier == tier and case.quick:
            yield case


def judge_case(case: Case, candidate: Candidate) -> Judge:
    judge, path = Judge(case), increment.path()
    path = replace(path, attend=candidate.op("attend") or path.attend)
    subject = Subject("outsider", models=load_model, path=path, candidate=candidate)
    getattr(test_falsifier, f"test_{case.falsifier}")(case, subject, judge)
    assert judge.compared > 0
    return judge


def test_library_attention_passes_twin_in_bits_and_truth_by_the_budget(tmp_path: Path) -> None:
    candidate = load_example(tmp_path, "sdpa_rows.py")
    for falsifier in TWIN_FALSIFIERS:
        case = next(quick_cases(falsifier))
        assert {w.rung for w in judge_case(case, candidate).worst} <= {"bits"}
    for case in quick_cases("attention_is_true", "softmax_is_sound", "heads_are_grouped"):
        if case.given.get("flavour") == "broken":
            with pytest.raises(Declined, match="holds NaN"):
                judge_case(case, candidate)
        else:
            assert {w.rung for w in judge_case(case, candidate).worst} == {"budget"}


def test_whole_step_with_library_attention_equals_solo(tmp_path: Path) -> None:
    judge_case(next(quick_cases("steps_equal_solo")), load_example(tmp_path, "sdpa_rows.py"))


def test_slots_taken_for_rows_fail_twin(tmp_path: Path) -> None:
    candidate = load_example(tmp_path, "mixed_slots.py")
    for falsifier in ("rows_and_slots_may_move", "steps_equal_solo"):
        with pytest.raises(ParityBroken) as broken:
            judge_case(next(quick_cases(falsifier)), candidate)
        assert broken.value.finding.rule in ("twin", "law")
    for case in quick_cases("heads_are_grouped"):  # where row and slot agree it is as good as any
        judge_case(case, candidate)


def test_loads_of_what_is_not_triton_are_not_said_to_be_seen(tmp_path: Path) -> None:
    candidate = load_example(tmp_path, "sdpa_rows.py")
    for case in quick_cases("loads_and_stores_stay_inside", "keys_are_read_once", tier="interpret"):
        with pytest.raises(Declined, match="does not offer keys" if "kv" in case.given
                           else "not Triton's"):
            judge_case(case, candidate)


NARROW_SOURCE = """
from engine import ops

ARITHMETIC, KV = "ordered", "bf16"

def attend(q, k, v, gate, keys, values, lengths, counts, out):
    ops.attend(q, k, v, gate, keys, values, lengths, counts, out)
"""


def test_narrow_caches_are_a_candidates_to_offer(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(NARROW_SOURCE)
    candidate = load_candidate(f"file:{mine}")
    for case in quick_cases("narrow_rows_equal_alone", "narrow_kv_is_rounded_once"):
        assert not case.must_claim
        if case["kv"] == "bf16":
            assert {w.rung for w in judge_case(case, candidate).worst} == {"bits"}
        else:
            with pytest.raises(Declined, match="does not offer keys and values in f16"):
                judge_case(case, candidate)


def test_ops_that_are_not_offered_decline(tmp_path: Path) -> None:
    with pytest.raises(Declined, match="offers no rotate"):
        judge_case(
            next(quick_cases("rotation_is_each_rows_own")), load_example(tmp_path, "sdpa_rows.py")
        )


ROTATE_SOURCE = """
import torch
from engine import ops

def rotate(x, table, positions, out):
    wide = torch.empty_like(out, dtype=torch.float64)
    ops.rotate(x.double(), table.double(), positions, wide)
    out.copy_(wide)
"""


@pytest.mark.parametrize(("old", "new", "rung"), [
    ("", "", ""), ("positions, wide", "positions * 0, wide", "budget"),
    ("out.copy_(wide)", "out.copy_(wide.half())", "bits")])
def test_rotation_of_an_own_arithmetic_is_held_to_the_budget(tmp_path: Path, old: str, new: str,
                                                             rung: str) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(ROTATE_SOURCE.replace(old, new) if old else ROTATE_SOURCE)
    candidate, case = load_candidate(f"file:{mine}"), next(quick_cases("rotation_is_each_rows_own"))
    assert not case.must_claim  # attention alone may be offered
    if not old:
        assert judge_case(case, candidate).worst[0].cosine is not None
        return
    with pytest.raises(ParityBroken) as broken:
        judge_case(case, candidate)
    assert (broken.value.finding.rule, broken.value.finding.rung) == ("truth", rung)
