"""RMS norm, one row per program: 128 lanes in order, then adjacent pairs by reshape and split."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import launch, pair_sum


@triton.jit
def _rms_norm(x, weight, out, n, eps, stride, LANES: tl.constexpr, STEPS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, LANES)
    total = tl.zeros([LANES], tl.float32)
    for start in range(0, n, LANES):
        value = tl.load(x + row * stride + start + lane, mask=start + lane < n, other=0.0)
        total = total + value * value
    mean = tl.div_rn(pair_sum(total, LANES, STEPS), n.to(tl.float32))
    scale = tl.div_rn(1.0, tl.sqrt_rn(mean + eps))
    for start in range(0, n, LANES):
        mask = start + lane < n
        value = tl.load(x + row * stride + start + lane, mask=mask, other=0.0)
        w = tl.load(weight + start + lane, mask=mask, other=0.0)
        tl.store(out + row * n + start + lane, (value * scale) * w, mask=mask)


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """Write the RMS norm of each row of x f32[rows, n], weighted by f32[n], into out[rows, n]."""
    rows, n = x.shape
    launch(_rms_norm, (rows,), x, weight, out, n, eps, x.stride(0), LANES=128, STEPS=7)
