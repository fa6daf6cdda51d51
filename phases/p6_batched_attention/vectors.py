"""P6's cases for programs in other languages: calls of its attention, with their caches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from contracts.schema import Case
from engine.state import Refs
from engine.weights import EXACT
from falsifiers.vectors.calls import Call
from phases.p6_batched_attention import reference

ARITHMETIC = EXACT
"""The engine's arithmetic; both of its names give the same bits in this op."""
EDGE_LENGTHS = [0, 1, 7, 8, 9, 62, 63, 64, 65, 127, 128, 129]
"""Lengths at which lanes of 8 keys and splits of 64 begin and end."""


def cases() -> Iterator[Case]:
    """Yield cases of P6's falsifiers; a program must claim attention, as in the contract."""
    yield _build_case("rows_equal_alone", lengths=[1, 17, 64, 130])
    yield _build_case("rows_equal_alone", "chunks", lengths=[0, 64, 17, 62], counts=[1, 2, 1, 9])
    yield _build_case("attention_is_true", "split-edges", lengths=EDGE_LENGTHS)
    yield _build_case("attention_is_true", "heads", heads=[6, 2], lengths=[0, 63, 64])
    for flavour in ("rising", "falling", "equal", "huge", "large"):
        yield _build_case("attention_is_true", flavour, lengths=[2, 64, 100], flavour=flavour)
    yield _build_case("rows_and_slots_may_move", lengths=[0, 64, 17], counts=[1, 2, 1])
    yield _build_case("chunks_equal_steps", length=61, count=5, cuts="few")
    yield _build_case("pads_do_nothing", lengths=[5, 70], pads=2)
    yield _build_case("heads_are_grouped", heads=[4, 2], lengths=[3, 64], flavour="heads")


def _build_case(falsifier: str, name: str = "", **given: Any) -> Case:
    return Case(phase="p6", falsifier=falsifier, tier="cpu", quick=True, must_claim=True,
                name=f"vectors{'-' if name else ''}{name}", given={"heads": [2, 1], **given})


def answer_call(call: Call) -> dict[str, Tensor]:
    """Return what the engine computes for a call; row i's cache is in slot i."""
    inputs = call.inputs
    out, slots = torch.empty(call.outputs["out"]), tuple(range(len(inputs["counts"])))
    caches = {name: inputs[name].clone() for name in ("keys", "values")}
    reference.attend(inputs["q"], inputs["k"], inputs["v"], inputs["gate"],
                     Refs(caches["keys"], slots), Refs(caches["values"], slots),
                     inputs["lengths"].tolist(), inputs["counts"].tolist(), out)
    return {"out": out, **caches}
