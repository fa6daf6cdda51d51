"""The ops of a step without state, as calls; each works on every row by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from falsifiers.vectors.calls import Call, ExternalOps, as_int32, as_storables, raise_broken


class RowOps(ExternalOps):
    """A candidate that also has the ops without state."""

    probe: ClassVar[Call] = Call("argmax", "probe", {}, {"logits": torch.zeros(1, 4)},
                                 {"out": (1,)})

    def embed(self, weight: Any, tokens: Sequence[int], out: Tensor) -> None:
        """Write the dequantised rows of `tokens` into out[t, K]."""
        inputs = {"weights": torch.tensor(weight.raw), "tokens": as_int32(tokens)}
        call = Call("embed", f"{weight.kind}-k{weight.k}-t{len(out)}", {"type": weight.kind},
                    inputs, {"out": tuple(out.shape)})
        self._call_into(call, out=out)

    def project(self, weight: Any, x: Tensor, out: Tensor) -> None:
        """Write W x for every row of x[t, K] into out[t, N]."""
        self.gemv_rows(weight, x, out)

    def add_norm(self, norm: Callable[..., None], x: Tensor, y: Tensor, weight: Tensor, eps: float,
                 total: Tensor, out: Tensor) -> None:
        """Write x + y of [t, n] into `total` and its norm, times weight, into out."""
        inputs = as_storables(x=x, y=y, weight=weight, eps=torch.tensor([eps]))
        shapes = {"total": tuple(total.shape), "out": tuple(out.shape)}
        self._call_into(Call("add_norm", "x".join(map(str, x.shape)), {}, inputs, shapes),
                        total=total, out=out)

    def norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """Write the norm of x's last axis, times weight, into out of x's shape."""
        self._call_op("norm", {"x": x, "weight": weight, "eps": torch.tensor([eps])}, out)

    def gated_norm(self, x: Tensor, z: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """Write the norm of x[t, V, 128], times weight and SILU(z), into out."""
        inputs = {"x": x, "z": z, "weight": weight, "eps": torch.tensor([eps])}
        self._call_op("gated_norm", inputs, out)

    def silu_mul(self, gate: Tensor, up: Tensor, out: Tensor) -> None:
        """Write SILU(gate) * up into out[t, n]."""
        self._call_op("silu_mul", {"gate": gate, "up": up}, out)

    def argmax(self, logits: Tensor, out: Tensor) -> None:
        """Write the lowest index of each row's maximum into out[m].

        Raises `ValueError` for a row with NaN, which the answer must mark by -1.
        """
        chosen = torch.empty(out.shape)
        self._call_op("argmax", {"logits": logits}, chosen)
        for row in (chosen == -1).nonzero().flatten().tolist():
            if not bool(logits[row].isnan().any()):
                raise_broken("law", f"row {row} of {list(logits.shape)} logits is answered by -1, "
                                    f"which marks NaN, but the row has none")
            raise ValueError(f"logits of row {row} hold NaN")
        out.copy_(torch.where(chosen.isfinite(), chosen, -2))  # -2 is no index, so it is wrong

    def _call_op(self, op: str, tensors: dict[str, Tensor], out: Tensor) -> None:
        inputs = as_storables(**tensors)
        label = "x".join(map(str, next(iter(inputs.values())).shape))
        self._call_into(Call(op, label, {}, inputs, {"out": tuple(out.shape)}), out=out)

    def _call_into(self, call: Call, **outs: Tensor) -> None:
        """Make a call and copy its outputs into the tensors of the same names."""
        answer = self._answer(call)
        for name, out in outs.items():
            out.copy_(answer[name])

