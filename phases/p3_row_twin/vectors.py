"""What P3 asks of a program in another language: calls of its product, small enough to be files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from contracts.schema import Case
from engine.blocks import TYPES
from engine.weights import EXACT, EXACT_KINDS, ORDERED, Weight
from falsifiers.vectors.calls import Call

ARITHMETIC = EXACT
"""Of Q4_K, Q5_K, Q6_K and Q8_0; F32, F16 and BF16 have only the ordered product."""
WIDTHS = [1, 2, 3, 5, 8, 9, 16, 17]
COLUMNS = {"Q4_K": (256, 768, 2560), "Q5_K": (768,), "Q6_K": (768,), "Q8_0": (352, 768)}
"""Columns of a type's matrices; of those that are not named, one that is no multiple of 256."""
ODD_COLUMNS = 257


def cases() -> Iterator[Case]:
    """Yield cases of P3's falsifiers; Q4_K must be taken, as in the contract."""
    for kind in TYPES:
        for k in COLUMNS.get(kind, (ODD_COLUMNS,)):
            yield _build_case("rows_equal_alone", kind, k, m=WIDTHS)
            yield _build_case("products_are_true", kind, k,
                        flavours=["plain", "wild", "largest", "smallest"])
        yield _build_case("neighbours_cannot_reach_a_row", kind, k, places=[0, 1, 3], must=False)
    yield _build_case("every_tail_is_written", "Q4_K", 256, n=[1, 7, 31, 33, 65], m=3, must=False)


def _build_case(falsifier: str, kind: str, k: int, must: bool = True, **more: Any) -> Case:
    arithmetic = EXACT if kind in EXACT_KINDS else ORDERED
    given = {"arithmetic": arithmetic, "kind": kind, "k": k, "n": 17, **more}
    return Case(phase="p3", falsifier=falsifier, tier="cpu", name=f"vectors-{kind}-k{k}",
                given=given, quick=True, must_claim=must and kind == "Q4_K")


def answer_call(call: Call) -> dict[str, Tensor]:
    """Answer a call as the engine does."""
    weight = Weight(call.name, call.facts["type"], call.inputs["weights"].numpy(), ARITHMETIC)
    return {"out": weight.product(call.inputs["x"])}
