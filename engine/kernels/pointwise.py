"""Applies one pinned function elementwise; falsifiers test the shared functions through it."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import launch
from engine.kernels.functions import exp, log1p, sigmoid, silu, softplus

FUNCTIONS = ("exp", "log1p", "sigmoid", "silu", "softplus")


@triton.jit
def _pointwise(x, out, n, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0.0)
    if FUNCTION == 0:
        value = exp(value)
    elif FUNCTION == 1:
        value = log1p(value)
    elif FUNCTION == 2:
        value = sigmoid(value)
    elif FUNCTION == 3:
        value = silu(value)
    else:
        value = softplus(value)
    tl.store(out + at, value, mask=at < n)


def pointwise(name: str, x: Tensor, out: Tensor, block: int = 1024) -> None:
    """Write the function called `name` (one of FUNCTIONS) of x f32[n] into out[n]."""
    n = x.numel()
    launch(_pointwise, (triton.cdiv(n, block),), x, out, n, FUNCTION=FUNCTIONS.index(name),
           BLOCK=block)
