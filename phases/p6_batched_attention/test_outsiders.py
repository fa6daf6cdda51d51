"""Candidates from another folder: one that passes P6 by its budget, and one that fails."""

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
    """Return an example as a candidate in a folder outside the tree."""
    return load_candidate(f"file:{shutil.copy(EXAMPLES / name, folder / name)}")


def write_candidate(folder: Path, source: str) -> Candidate:
    """Return a candidate of this source."""
    file = folder / "mine.py"
    file.write_text(source)
    return load_candidate(f"file:{file}")


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


def test_library_attention_passes_twin_by_bits_and_truth_by_the_budget(tmp_path: Path) -> None:
    candidate = load_example(tmp_path, "sdpa_rows.py")
    for falsifier in TWIN_FALSIFIERS:
        case = next(quick_cases(falsifier))
        assert {w.rung for w in judge_case(case, candidate).worst} <= {"bits"}
    for case in quick_cases("attention_is_true", "softmax_is_sound", "heads_are_grouped"):
        if case.given.get("flavour") == "broken":
            with pytest.raises(Declined, match="a row with NaN"):
                judge_case(case, candidate)
        else:
            assert {w.rung for w in judge_case(case, candidate).worst} == {"budget"}


def test_step_with_library_attention_equals_solo(tmp_path: Path) -> None:
    judge_case(next(quick_cases("steps_equal_solo")), load_example(tmp_path, "sdpa_rows.py"))


def test_rows_used_as_slots_fail_twin(tmp_path: Path) -> None:
    candidate = load_example(tmp_path, "mixed_slots.py")
    for falsifier in ("rows_and_slots_may_move", "steps_equal_solo"):
        with pytest.raises(ParityBroken) as broken:
            judge_case(next(quick_cases(falsifier)), candidate)
        assert broken.value.finding.rule in ("twin", "law")
    for case in quick_cases("heads_are_grouped"):  # its slots equal its rows
        judge_case(case, candidate)


def test_loads_of_a_candidate_without_triton_are_declined(tmp_path: Path) -> None:
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


def test_candidate_chooses_its_types_of_narrow_cache(tmp_path: Path) -> None:
    candidate = write_candidate(tmp_path, NARROW_SOURCE)
    for case in quick_cases("narrow_rows_equal_alone", "narrow_kv_is_rounded_once"):
        assert not case.must_claim
        if case["kv"] == "bf16":
            assert {w.rung for w in judge_case(case, candidate).worst} == {"bits"}
        else:
            with pytest.raises(Declined, match="does not offer keys and values in f16"):
                judge_case(case, candidate)


def test_ops_that_a_candidate_lacks_are_declined(tmp_path: Path) -> None:
    with pytest.raises(Declined, match="offers no rotate"):
        judge_case(next(quick_cases("rotation_is_each_rows_own")),
                   load_example(tmp_path, "sdpa_rows.py"))


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
def test_rotation_of_an_own_arithmetic_is_compared_by_the_budget(tmp_path: Path, old: str,
                                                                 new: str, rung: str) -> None:
    candidate = write_candidate(tmp_path, ROTATE_SOURCE.replace(old, new) if old else ROTATE_SOURCE)
    case = next(quick_cases("rotation_is_each_rows_own"))
    assert not case.must_claim  # a candidate may offer attention only
    if not old:
        assert judge_case(case, candidate).worst[0].cosine is not None
        return
    with pytest.raises(ParityBroken) as broken:
        judge_case(case, candidate)
    assert (broken.value.finding.rule, broken.value.finding.rung) == ("truth", rung)
