"""Proofs that the checks can fail, and a check of their list in docs/power.md."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import Any

import pytest
import torch

import rowtwin
from contracts.schema import Case
from falsifiers.instruments.negative_control import check_negative_control, width_dependent_product
from falsifiers.judging.errors import Unmeasurable
from falsifiers.judging.judge import Judge
from falsifiers.meta.gate import faulty_candidates
from falsifiers.meta.judging.factories import make_case
from falsifiers.mutation.mutants import kill
from phases.p3_row_twin import test_falsifier as p3
from phases.p3_row_twin.reference import gemv_rows

PAGE = rowtwin.ROOT / "docs" / "power.md"
CALLS, STRIDES = "inputs_are_read_at_the_call", "strides_and_offsets_do_not_matter"
MOVE, SEATS = "rows_and_slots_may_move", "order_and_slots_do_not_matter"
OPS = "ops_equal_looped_step"
bank = cache(rowtwin.phase_bank)
"""Caches a bank with the cases that pass on the right subject."""
FAULTS = [
    ("gives_the_previous_output", CALLS, "bits"), ("reads_its_inputs_late", STRIDES, "finite"),
    ("writes_behind_its_output", STRIDES, "frame"), ("writes_into_its_input", STRIDES, "frame"),
    ("gives_one_nan", STRIDES, "finite")]


@pytest.mark.parametrize("arithmetic", ["exact-23", "own"])
@pytest.mark.parametrize(("fault", "killer", "rung"), FAULTS)
def test_faulty_product_is_detected(arithmetic: str, fault: str, killer: str, rung: str) -> None:
    wrong = faulty_candidates.OPS[fault]
    faulty = faulty_candidates.faulty_products(gemv_rows, arithmetic, wrong, killer)
    assert kill(bank("p3"), faulty, killer) == rung


@pytest.mark.parametrize(("phase", "op", "killer"), [
    ("p4", "project", OPS), ("p5", "delta_step", SEATS), ("p5", "conv_step", SEATS),
    ("p6", "attend", MOVE)])
@pytest.mark.parametrize("fault", faulty_candidates.OPS)
def test_faulty_op_is_detected(phase: str, op: str, killer: str, fault: str) -> None:
    faulty = faulty_candidates.faulty_ops(op, faulty_candidates.OPS[fault], killer)
    assert kill(bank(phase), faulty, killer) in ("bits", "frame", "finite", "crash")


@pytest.mark.parametrize(("phase", "fault", "killer", "rung"), [
    ("p1", "gives_the_previous_logits", "alone_equals_oracle", "bits"),
    ("p1", "gives_one_nan_logit", "streams_equal_solo", "finite"),
    ("p1", "writes_into_another_slot", "slots_do_not_matter", "frame"),
    ("p8", "gives_the_previous_logits", "padding_has_no_effect", "bits")])
def test_faulty_step_is_detected(phase: str, fault: str, killer: str, rung: str) -> None:
    faulty = faulty_candidates.faulty_steps(faulty_candidates.STEPS[fault], killer)
    assert kill(bank(phase), faulty, killer) == rung


def test_right_op_passes() -> None:
    faulty = faulty_candidates.faulty_ops("delta_step", lambda right: right, SEATS)
    assert kill(bank("p5"), faulty, SEATS) is None


def row_case(name: str = "cpu-exact-23-Q4_K-k256") -> Case:
    cases: list[Case] = [case for case in rowtwin.phase_contract("p3").expand()
                         if case.id == f"p3/rows_equal_alone[{name}]"]
    return cases[0]


def test_negative_control_differs_in_a_case_of_single_rows() -> None:
    case = row_case()
    judge = Judge(case)
    p3.test_rows_equal_alone(case, rowtwin.subject_for(case), judge)
    assert judge.evidence["unpinned_product_drifts_at"] == [2, 3, 4]


def test_rows_without_a_difference_are_unmeasurable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(p3, "activations", lambda m, k: torch.zeros(m, k))
    case = row_case()
    with pytest.raises(Unmeasurable, match="identical bits on these inputs at m = 2, 3, 4"):
        p3.test_rows_equal_alone(case, rowtwin.subject_for(case), Judge(case))


def drifts(
    x: torch.Tensor, product: Any = width_dependent_product, widths: tuple[int, ...] = (1, 2, 3)
) -> Any:
    """Return the widths at which the product differs on these rows."""
    judge, draw = Judge(make_case()), torch.Generator().manual_seed(1)
    check_negative_control(judge, torch.randn(8, x.shape[1], generator=draw), x, widths, product)
    return judge.evidence.get("unpinned_product_drifts_at")


def test_negative_control_that_does_not_differ_is_unmeasurable() -> None:
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(2))
    assert drifts(x) == [2, 3]
    with pytest.raises(Unmeasurable, match="negative control failed"):
        drifts(x, lambda weight, rows: torch.stack([(weight * row).sum(1) for row in rows]))


def test_one_row_and_one_term_need_no_negative_control() -> None:
    assert drifts(torch.zeros(1, 64), widths=(1,)) is None
    assert drifts(torch.zeros(3, 2)) is None


@pytest.mark.parametrize(("phase", "name"), [
    ("p1", "other_arithmetic_above_one_row"), ("p4", "library_product_above_one_row"),
    ("p5", "wide_batches_add_otherwise"), ("p6", "split_by_the_longest_row")])
def test_phase_has_a_width_dependent_mutant_that_is_killed(phase: str, name: str) -> None:
    (mutant,) = [mutant for mutant in bank(phase).mutants if mutant.name == name]
    assert mutant.device == "cpu"
    assert mutant.killers
    if phase == "p1":  # the others take longer; `rowtwin mutants` runs all
        assert kill(bank(phase), mutant, mutant.killers[0]) == "bits"


def proofs() -> list[tuple[str, str]]:
    """Return file and name of every test on the page."""
    return re.findall(r"`([\w./]+\.py)::(test_\w+)`", PAGE.read_text(encoding="utf-8"))


def test_page_names_tests_that_exist() -> None:
    assert len(proofs()) > 20
    for file, name in proofs():
        body = ast.parse((rowtwin.ROOT / file).read_text(encoding="utf-8")).body
        assert name in {node.name for node in body if isinstance(node, ast.FunctionDef)}, file


def test_page_names_mutants_that_exist() -> None:
    named = re.findall(r"`(p\d)/(\w+)`", PAGE.read_text(encoding="utf-8"))
    assert named
    for phase, name in named:
        assert name in rowtwin.phase_contract(phase).mutant_ids


def test_page_has_a_line_for_every_fault() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for fault in (*faulty_candidates.OPS, *faulty_candidates.STEPS):
        assert f"`{fault}`" in text
