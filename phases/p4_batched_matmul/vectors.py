"""P4's vectors for programs in other languages: complete steps, and the row-wise ops of a step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from contracts.schema import Case
from engine.blocks import TYPES
from engine.candidate import PathEngine
from engine.path import Rows
from engine.testmodels import load
from engine.weights import EXACT
from falsifiers.vectors.calls import Call
from falsifiers.vectors.step_rows import OWN_STEP_BUDGET
from falsifiers.vectors.steps import StepOps, answer_step
from phases.p4_batched_matmul import increment, op_checks

ARITHMETIC = EXACT
"""The engine's arithmetic; `ordered` has other bits in products alone."""
OFFER, OWN_BUDGET = StepOps, OWN_STEP_BUDGET
MODEL, CAPACITY = "nano", 16
WIDTHS = [1, 2, 3, 5, 8, 9, 17]


def cases() -> Iterator[Case]:
    """Yield cases of P4's falsifiers; steps and argmax must be taken, as in the contract."""
    yield from step_cases()
    yield from op_cases()
    for vocab in (509, 4096):
        yield _build_case("argmax_takes_the_lowest_index", f"argmax-vocab{vocab}", must=True,
                    vocab=vocab, stride=vocab + 7)
    yield _build_case("argmax_refuses_nan", "argmax-nan", must=True, vocab=509, rows=5)


def step_cases() -> Iterator[Case]:
    """Yield cases of complete steps of a small model; no input depends on an answer."""
    for m in (1, 2, 3, 5, 8):
        yield _build_step_case("rows_equal_solo", f"m{m}", counts=[1] * m)
    yield _build_step_case("rows_equal_solo", "chunks", counts=[1, 4, 2, 1])
    yield from truth_cases()
    yield _build_step_case(
        "neighbours_cannot_reach_a_row", "nan-tenant", tenant=math.nan, counts=[1, 1, 2]
    )
    yield _build_step_case(
        "neighbours_cannot_reach_a_row", "huge-tenant", tenant=3e38, counts=[1, 2]
    )
    yield _build_step_case("refusals_change_nothing", "refusals", fresh=True)


def truth_cases() -> Iterator[Case]:
    """Yield cases of complete steps that are compared with the engine."""
    for name, counts in (("m1", [1]), ("m3", [1, 1, 1]), ("chunks", [1, 4, 2, 1])):
        yield _build_step_case("ops_equal_looped_step", name, counts=counts)


def extra_cases() -> Iterator[Case]:
    """Yield cases that the contract lacks: the truth of steps in any arithmetic, and single ops."""
    yield from truth_cases()
    yield from op_cases()


def op_cases() -> Iterator[Case]:
    """Yield cases of the single row-wise ops that a step contains."""
    for op, n in (("norm", 300), ("add_norm", 300), ("gated_norm", 256), ("silu_mul", 300),
                  ("argmax", 509)):
        yield _build_case("rows_equal_solo", op, op=op, n=n, m=WIDTHS)
    for op, sizes in (("norm", (128, 300)), ("add_norm", (128, 300)), ("silu_mul", (512, 1500)),
                      ("gated_norm", (4,))):
        for n in sizes:
            yield _build_case("kernels_give_the_reference_bits", f"{op}-n{n}", op=op, n=n)
    for kind in TYPES:
        for op in ("embed", "project"):
            yield _build_case("rows_equal_solo", f"{op}-{kind}", op=op, n=256, kind=kind, m=WIDTHS)
            yield _build_case(
                "kernels_give_the_reference_bits", f"{op}-{kind}", op=op, n=256, kind=kind
            )


def _build_step_case(falsifier: str, name: str, **given: Any) -> Case:
    return _build_case(
        falsifier, f"step-{name}", must=True, model=MODEL, capacity=CAPACITY, **given
    )


def _build_case(falsifier: str, name: str, must: bool = False, **given: Any) -> Case:
    return Case(phase="p4", falsifier=falsifier, tier="cpu", quick=True, must_claim=must,
                name=f"vectors-{name}", given=given)


def answer_call(call: Call) -> dict[str, Tensor]:
    """Answer a call as the engine does."""
    if call.op == "step":
        model = load(call.facts["model"].rpartition("-")[0])  # what follows is a digest
        return answer_step(PathEngine(increment.path(), model), Rows, call)
    return op_checks.answer_op_call(call)
