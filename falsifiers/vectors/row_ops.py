"""Ops that work on each row of a step by itself, as calls: all of a step but those with state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from falsifiers.vectors.calls import Call, ExternalOps, as_storable, raise_broken


class RowOps(ExternalOps):
    """A candidate that has these functions too."""

    probe: ClassVar[Call] = Call("argmax", "probe", {}, {"logits": torch.zeros(1, 4)},
                                 {"out": (1,)})

    def embed(self, weight: Any, tokens: Sequence[int], out: Tensor) -> None:
        """Write the dequantised rows of `tokens` into out[t, K]."""
        given = {"weights": torch.tensor(weight.raw),
                 "tokens": torch.tensor(tokens, dtype=torch.int32)}
        label = f"{weight.kind}-k{weight.k}-t{len(out)}"
        self._call_into(
            Call("embed", label, {"type": weight.kind}, given, {"out": tuple(out.shape)}), out=out
        )

    def project(self, weight: Any, x: Tensor, out: Tensor) -> None:
        """Write W x for every row of x[t, K] into out[t, N]."""
        self.gemv_rows(weight, x, out)

    def add_norm(self, norm: Callable[..., None], x: Tensor, y: Tensor, weight: Tensor, eps: float,
                 total: Tensor, out: Tensor) -> None:
        """Write x + y of [t, n] into `total` and its norm, times weight, into out."""
        given = {
            "x": as_storable(x),
            "y": as_storable(y),
            "weight": as_storable(weight),
            "eps": torch.tensor([eps]),
        }
        shapes = {"total": tuple(total.shape), "out": tuple(out.shape)}
        self._call_into(Call("add_norm", "x".join(map(str, x.shape)), {}, given, shapes),
                  total=total, out=out)

    def norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """Write the norm of x's last axis, times weight, into out of x's shape."""
        self._call_op("norm", {"x": x, "weight": weight, "eps": torch.tensor([eps])}, out)

    def gated_norm(self, x: Tensor, z: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """Write the norm of x[t, V, 128], times weight and SILU(z), into out."""
        given = {"x": x, "z": z, "weight": weight, "eps": torch.tensor([eps])}
        self._call_op("gated_norm", given, out)

    def silu_mul(self, gate: Tensor, up: Tensor, out: Tensor) -> None:
        """Write SILU(gate) * up into out[t, n]."""
        self._call_op("silu_mul", {"gate": gate, "up": up}, out)

    def argmax(self, logits: Tensor, out: Tensor) -> None:
        """Write the lowest index of each row's largest value into out[m]; refuse a row with NaN."""
        chosen = torch.empty(out.shape)
        self._call_op("argmax", {"logits": logits}, chosen)
        for row in (chosen == -1).nonzero().flatten().tolist():
            if not bool(logits[row].isnan().any()):
                raise_broken(
                    "law",
                    f"row {row} of {list(logits.shape)} logits is answered by -1, which "
                    f"says that it holds NaN, but it holds none",
                )
            raise ValueError(f"logits of row {row} hold NaN")
        out.copy_(torch.where(chosen.isfinite(), chosen, -2))  # no index, so it is wrong

    def _call_op(self, op: str, inputs: dict[str, Tensor], out: Tensor) -> None:
        given = {name: as_storable(x) for name, x in inputs.items()}
        label = "x".join(map(str, next(iter(given.values())).shape))
        self._call_into(Call(op, label, {}, given, {"out": tuple(out.shape)}), out=out)

    def _call_into(self, call: Call, **outs: Tensor) -> None:
        """Put a call and write each of its outputs where it belongs."""
        answer = self._answer(call)
        for name, out in outs.items():
            out.copy_(answer[name])

