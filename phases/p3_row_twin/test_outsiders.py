"""Candidates from another folder: one that P3 takes by its budget, and one that it refuses."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.load import load_contract
from contracts.schema import Case
from engine.emulate.emulator import KernelFault, emulated
from engine.kernels.machine_code import spilled
from engine.kernels.nvrtc import compile_source
from falsifiers.gate.candidates import Candidate, load_candidate
from falsifiers.judging.errors import Declined, ParityBroken, SuiteError
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from phases.p3_row_twin import test_falsifier
from phases.p3_row_twin.harness import CONTRACT

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def load_example(folder: Path, name: str) -> Candidate:
    """Return an example as an outsider would offer it, from a folder of his own."""
    return load_candidate(f"file:{shutil.copy(EXAMPLES / name, folder / name)}")


def quick_cases(*falsifiers: str, tier: str = "interpret", kind: str = "Q4_K",
          arithmetic: str = "exact-23") -> Iterator[Case]:
    """Yield the quick cases of these falsifiers in one tier, for one type and arithmetic."""
    for case in load_contract(CONTRACT).expand():
        if case.falsifier in falsifiers and case.tier == tier and case.quick \
                and (case.given["kind"], case.given.get("arithmetic")) == (kind, arithmetic):
            yield case


def judge_case(case: Case, candidate: Candidate) -> Judge:
    judge = Judge(case)
    function = getattr(test_falsifier, f"test_{case.falsifier}")
    function(case, Subject("outsider", models=lambda name: None, candidate=candidate), judge)
    assert judge.compared > 0
    return judge


@pytest.mark.tier("interpret")
def test_dot_kernel_passes_twin_in_bits_and_truth_by_the_budget(tmp_path: Path) -> None:
    candidate = load_example(tmp_path, "dot_rows.py")
    attacks = ("rows_equal_alone", "products_are_true", "strides_and_offsets_do_not_matter",
               "neighbours_cannot_reach_a_row", "weights_are_read_once",
               "loads_and_stores_stay_inside")
    rungs = {case.falsifier: {w.rung for w in judge_case(case, candidate).worst}
             for case in quick_cases(*attacks)}
    assert set(rungs) == set(attacks)
    assert rungs["rows_equal_alone"] == {"bits"}
    assert rungs["products_are_true"] == {"budget"}


@pytest.mark.tier("interpret")
def test_split_of_k_by_the_width_fails_twin(tmp_path: Path) -> None:
    candidate = load_example(tmp_path, "split_by_width.py")
    (case,) = quick_cases("rows_equal_alone")
    with pytest.raises(ParityBroken) as broken:
        judge_case(case, candidate)
    assert (broken.value.finding.rule, broken.value.finding.rung) == ("twin", "bits")
    assert broken.value.finding.where["m"] == 2
    judge_case(next(quick_cases("products_are_true")), candidate)  # its sums are as good as any


def test_cuda_example_declines_what_it_cannot_take_and_compiles(tmp_path: Path) -> None:
    candidate = load_example(tmp_path, "cuda_rows.py")
    with pytest.raises(Declined, match="only on a CUDA device or an emulated one"):
        judge_case(next(quick_cases("rows_equal_alone", tier="cpu")), candidate)
    with pytest.raises(Declined, match="decodes only Q4_K"):
        candidate.refuse(next(quick_cases("rows_equal_alone", tier="cuda", kind="Q6_K")))
    candidate.refuse(next(quick_cases("rows_equal_alone", tier="cuda")))
    for most in candidate.target.ROWS:
        assert spilled(compile_source(candidate.target.KERNEL, (f"-DM={most}",))) == []


@pytest.mark.emulated
def test_cuda_example_passes_twin_in_bits_where_a_device_is_emulated(tmp_path: Path) -> None:
    (case, *_) = quick_cases("rows_equal_alone", tier="emulate")
    with emulated():
        assert {
            worst.rung for worst in judge_case(case, load_example(tmp_path, "cuda_rows.py")).worst
        } == {"bits"}


@pytest.mark.emulated
def test_kernel_that_writes_where_nothing_is_fails_where_a_device_is_emulated(
        tmp_path: Path) -> None:
    text = (EXAMPLES / "cuda_rows.py").read_text()
    wild = write_candidate(tmp_path, text.replace("out_stride + row]", "out_stride + (1LL << 45)]"))
    (case, *_) = quick_cases("rows_equal_alone", tier="emulate")
    with emulated(), pytest.raises(KernelFault, match=r"rows: .* accessed unmapped memory"):
        judge_case(case, wild)


def test_all_that_must_be_claimed_is_q4_k() -> None:
    must = {case.given.get("kind") for case in load_contract(CONTRACT).expand() if case.must_claim}
    assert must == {"Q4_K"}


def write_candidate(folder: Path, text: str) -> Candidate:
    path = folder / "mine.py"
    path.write_text(text)
    return load_candidate(f"file:{path}")


PLAIN_SOURCE = """\
import torch
io_dtype = torch.bfloat16


def gemv_rows(weight, x, out):
    w = weight.rows(list(range(weight.n)))
    for row, into in zip(x, out):
        into.copy_((w * row.float()).sum(1))
"""


def test_candidate_takes_and_returns_its_own_dtype(tmp_path: Path) -> None:
    candidate = write_candidate(tmp_path, PLAIN_SOURCE)
    for falsifier in ("products_are_true", "rows_equal_alone", "unit_vectors_return_each_weight",
                      "strides_and_offsets_do_not_matter", "inputs_are_read_at_the_call"):
        ordered = "ordered" if falsifier.startswith("unit") else "exact-23"
        judge_case(next(quick_cases(falsifier, tier="cpu", arithmetic=ordered)), candidate)


@pytest.mark.parametrize(("line", "error", "sentence"), [
    ("ARITHMETIC = 'exact-24'", SuiteError, "declares 'exact-24', but the engine has exact-23"),
    ("supports = lambda case: 'only Q4_K' if case['kind'] != 'Q4_K' else None", Declined, "only"),
    ("ARITHMETIC, io_dtype = 'ordered', None", ParityBroken, "out")])
def test_candidate_is_held_to_what_it_says(tmp_path: Path, line: str, error: type[Exception],
                                           sentence: str) -> None:
    candidate = write_candidate(tmp_path, f"{PLAIN_SOURCE}\n\n{line}\n")
    case = next(quick_cases("products_are_true", tier="cpu", kind="Q8_0"))
    with pytest.raises(error, match=sentence):
        judge_case(case, candidate)


def test_candidate_without_the_function_declines(tmp_path: Path) -> None:
    with pytest.raises(Declined, match="offers no gemv_rows"):
        judge_case(
            next(quick_cases("rows_equal_alone", tier="cpu")),
            write_candidate(tmp_path, "engine = print\n"),
        )


@pytest.mark.tier("interpret")
def test_in_tree_kernel_can_be_offered_by_name() -> None:
    candidate = load_candidate("module:phases.p3_row_twin.kernel_ordered")
    for kind in ("F16", "Q6_K"):
        case = next(quick_cases("products_are_true", kind=kind, arithmetic="ordered"))
        candidate.refuse(case)
        assert {w.rung for w in judge_case(case, candidate).worst} == {"bits"}


@pytest.mark.tier("interpret")
def test_candidate_that_is_not_triton_is_not_said_to_read_once(tmp_path: Path) -> None:
    plain = "def prepare(weight):\n    return weight.rows(list(range(weight.n)))\n\n\n" \
            "def gemv_rows(weight, x, out):\n    out.copy_(x @ weight.T)\n"
    with pytest.raises(Declined, match="not Triton's"):
        judge_case(next(quick_cases("weights_are_read_once")), write_candidate(tmp_path, plain))
