"""Decay and write strength of every value head, for all tokens at once."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import launch
from engine.kernels.functions import exp, sigmoid, softplus

ARITHMETIC = "ordered"


@triton.jit
def _gates(a, b, decay, bias, g, beta, heads, total, a_stride, b_stride, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    token, head = (at // heads).to(tl.int64), at % heads
    step = tl.load(a + token * a_stride + head, mask=inside, other=0.0)
    step = softplus(step + tl.load(bias + head, mask=inside, other=0.0))
    tl.store(g + at, exp(tl.load(decay + head, mask=inside, other=0.0) * step), mask=inside)
    write = tl.load(b + token * b_stride + head, mask=inside, other=0.0)
    tl.store(beta + at, sigmoid(write), mask=inside)


def gates(a: Tensor, b: Tensor, decay: Tensor, dt_bias: Tensor, alpha: Tensor,
          beta: Tensor,
          block: int = 128) -> None:
    """Write EXP(decay * SOFTPLUS(a + dt_bias)) into alpha[t, V], SIGMOID(b) into beta[t, V].

    Tokens of a and b may be strided; alpha and beta are dense. `block` changes no result.
    """
    total, heads = a.numel(), a.shape[1]
    launch(_gates, (triton.cdiv(total, block),), a, b, decay, dt_bias, alpha, beta, heads, total,
           a.stride(0), b.stride(0), BLOCK=block)
