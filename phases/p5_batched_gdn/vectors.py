"""P5's cases for programs in other languages: calls of its recurrent ops, with their states."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from contracts.schema import Case
from engine.state import Refs
from engine.weights import EXACT
from falsifiers.vectors.calls import Call
from phases.p5_batched_gdn import reference

ARITHMETIC = EXACT
"""The engine's arithmetic; both of its names give the same bits in these ops."""
FLAVOURS = {"delta_step": ("plain", "zeros", "extreme", "huge", "broken"),
            "conv_step": ("plain", "zeros", "huge", "broken")}


def cases() -> Iterator[Case]:
    """Yield cases of P5's falsifiers; a program must claim the delta rule, as in the contract."""
    for op, flavours in FLAVOURS.items():
        yield _build_case("rows_equal_alone", op, m=[1, 2, 3, 5], longest=3)
        for flavour in flavours:
            yield _build_case("rows_are_true", op, flavour, heads=[1, 2], m=2, longest=3,
                              flavour=flavour)
        yield _build_case("order_and_slots_do_not_matter", op, m=3, slots=8, longest=2)
        yield _build_case("chunks_equal_steps", op, tokens=6, start="held", splits="few")
        yield _build_case("pad_rows_do_nothing", op, m=2, pads=[1, 2])


def _build_case(falsifier: str, op: str, name: str = "", **given: Any) -> Case:
    must = op == "delta_step" and name in ("", "plain")
    return Case(phase="p5", falsifier=falsifier, tier="cpu",
                name=f"vectors-{op}{'-' if name else ''}{name}", quick=True, must_claim=must,
                given={"op": op, "heads": [1, 1], **given})


def answer_call(call: Call) -> dict[str, Tensor]:
    """Return what the engine computes for a call; row i's state is in slot i."""
    inputs = dict(call.inputs)
    counts, states = tuple(inputs.pop("counts").tolist()), inputs.pop("states").clone()
    out = torch.empty(call.outputs["out"])
    refs = Refs(states, tuple(range(len(states))))
    getattr(reference, call.op)(*inputs.values(), refs, counts, out)
    return {"out": out, "states": states}
