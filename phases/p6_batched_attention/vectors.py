"""What P6 asks of programs in other languages: calls of its attention, caches included."""

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
"""The engine's arithmetic; both of its names mean the same bits in this op."""
EDGE_LENGTHS = [0, 1, 7, 8, 9, 62, 63, 64, 65, 127, 128, 129]
"""Lengths at which lanes of 8 keys and splits of 64 begin and end."""


def cases() -> Iterator[Case]:
    """Yield cases of P6's falsifiers; attention must be taken, as in the contract."""
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
    """Answer a call as the engine does, each row's cache in a slot of its number."""
    given = call.inputs
    out, slots = torch.empty(call.outputs["out"]), tuple(range(len(given["counts"])))
    caches = {name: given[name].clone() for name in ("keys", "values")}
    reference.attend(given["q"], given["k"], given["v"], given["gate"],
                     Refs(caches["keys"], slots), Refs(caches["values"], slots),
                     given["lengths"].tolist(), given["counts"].tolist(), out)
    return {"out": out, **caches}
