"""A candidate for P5: an untuned delta rule with `torch.einsum`, in its own arithmetic.

    pytest -m phase5 --candidate file:docs/examples/own_delta.py

It declares no arithmetic, so `truth` uses the contract's budget; `twin` is still bitwise. It passes
`twin` because it computes each row by itself, in the row's slot. It has no convolution and no
gates: their cases are declined and counted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def delta_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, states: Any,
               counts: tuple[int, ...], out: Tensor) -> None:
    """Advance each row's state by its tokens, and write what queries read into out."""
    groups, at = v.shape[1] // k.shape[1], 0
    q, k = (torch.nn.functional.normalize(x, dim=-1, eps=1e-6).repeat(1, groups, 1)
            for x in (q, k))
    for row, count in enumerate(counts):
        for _ in range(count):
            state = states.all_slots[states.slots[row]]
            state.mul_(g[at, :, None, None])
            read = torch.einsum("hkv,hk->hv", state, k[at])
            change = beta[at, :, None] * (v[at] - read)
            state.add_(torch.einsum("hk,hv->hkv", k[at], change))
            out[at] = torch.einsum("hkv,hk->hv", state, q[at]) * q.shape[-1] ** -0.5
            at += 1
