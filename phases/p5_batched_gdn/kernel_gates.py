"""Gates of the delta rule, alpha and beta, for all tokens and value heads in one launch."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import launch
from engine.kernels.functions import exp, sigmoid, softplus

ARITHMETIC = "ordered"


@triton.jit
def _gates(a, b, neg_exp_a, dt_bias, alpha, beta, heads, total, a_stride, b_stride,
           BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < total
    token, head = (index // heads).to(tl.int64), index % heads
    dt = tl.load(a + token * a_stride + head, mask=mask, other=0.0)
    dt = softplus(dt + tl.load(dt_bias + head, mask=mask, other=0.0))
    tl.store(alpha + index, exp(tl.load(neg_exp_a + head, mask=mask, other=0.0) * dt), mask=mask)
    b_value = tl.load(b + token * b_stride + head, mask=mask, other=0.0)
    tl.store(beta + index, sigmoid(b_value), mask=mask)


def gates(a: Tensor, b: Tensor, neg_exp_a: Tensor, dt_bias: Tensor, alpha: Tensor,
          beta: Tensor, block: int = 128) -> None:
    """Write EXP(neg_exp_a * SOFTPLUS(a + dt_bias)) into alpha[t, V], SIGMOID(b) into beta[t, V].

    neg_exp_a is GGUF `ssm_a`, which stores -exp(A_log). Tokens of a and b may be strided; alpha and
    beta are contiguous. `block` changes no result.
    """
    total, heads = a.numel(), a.shape[1]
    launch(_gates, (triton.cdiv(total, block),), a, b, neg_exp_a, dt_bias, alpha, beta, heads,
           total, a.stride(0), b.stride(0), BLOCK=block)
