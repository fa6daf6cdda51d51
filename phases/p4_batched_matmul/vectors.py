"""What P4 asks of programs in other languages: calls of the ops beside its products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from contracts.schema import Case
from engine import ops
from engine.weights import EXACT
from falsifiers.vectors.calls import Call
from falsifiers.vectors.row_ops import RowOps

ARITHMETIC = EXACT
"""The engine's arithmetic; both of its names mean the same bits in these ops."""
OFFER = RowOps


def cases() -> Iterator[Case]:
    """Yield cases of P4's falsifiers; argmax must be taken, as in the contract."""
    for vocab in (509, 4096):
        yield _case("argmax_takes_the_lowest_index", f"argmax-vocab{vocab}", must=True,
                    vocab=vocab, stride=vocab + 7)
    yield _case("argmax_refuses_nan", "argmax-nan", must=True, vocab=509, rows=5)
    for op, sizes in (("norm", (128, 300)), ("silu_mul", (512, 1500)), ("gated_norm", (4,))):
        for n in sizes:
            yield _case("kernels_give_the_reference_bits", f"{op}-n{n}", op=op, n=n)


def _case(falsifier: str, name: str, must: bool = False, **given: Any) -> Case:
    return Case(phase="p4", falsifier=falsifier, tier="cpu", quick=True, must_claim=must,
                name=f"vectors-{name}", given=given)


def right(call: Call) -> dict[str, Tensor]:
    """Answer a call as the engine does."""
    given, out = dict(call.inputs), torch.empty(call.outputs["out"])
    if call.op == "argmax":
        chosen = torch.empty(out.shape, dtype=torch.int64)
        ops.argmax(given["logits"], chosen, refuse=False)
        return {"out": chosen.float()}
    eps = [float(given.pop("eps"))] if "eps" in given else []
    getattr(ops, call.op)(*given.values(), *eps, out)
    return {"out": out}
