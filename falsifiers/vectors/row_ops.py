"""Ops that work on each row of a step by itself, as calls: norms, the FFN's product, argmax."""

from __future__ import annotations

import torch
from torch import Tensor

from falsifiers.vectors.calls import Call, Offer, broken, plain


class RowOps(Offer):
    """A candidate that has these functions too."""

    def norm(self, x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """Write the norm of x's last axis, times weight, into out of x's shape."""
        self._made("norm", {"x": x, "weight": weight, "eps": torch.tensor([eps])}, out)

    def gated_norm(self, x: Tensor, z: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
        """Write the norm of x[t, V, 128], times weight and SILU(z), into out."""
        given = {"x": x, "z": z, "weight": weight, "eps": torch.tensor([eps])}
        self._made("gated_norm", given, out)

    def silu_mul(self, gate: Tensor, up: Tensor, out: Tensor) -> None:
        """Write SILU(gate) * up into out[t, n]."""
        self._made("silu_mul", {"gate": gate, "up": up}, out)

    def argmax(self, logits: Tensor, out: Tensor) -> None:
        """Write the lowest index of each row's largest value into out[m]; refuse a row with NaN."""
        chosen = torch.empty(out.shape)
        self._made("argmax", {"logits": logits}, chosen)
        for row in (chosen == -1).nonzero().flatten().tolist():
            if not bool(logits[row].isnan().any()):
                broken("law", f"row {row} of {list(logits.shape)} logits is answered by -1, which "
                              f"says that it holds NaN, but it holds none")
            raise ValueError(f"logits of row {row} hold NaN")
        out.copy_(torch.where(chosen.isfinite(), chosen, -2))  # no index, so it is wrong

    def _made(self, op: str, inputs: dict[str, Tensor], out: Tensor) -> None:
        given = {name: plain(x) for name, x in inputs.items()}
        label = "x".join(map(str, next(iter(given.values())).shape))
        out.copy_(self._answer(Call(op, label, {}, given, {"out": tuple(out.shape)}))["out"])

