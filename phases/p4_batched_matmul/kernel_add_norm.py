"""Residual sum and RMS norm fused; one program per row.

The sum of squares has the engine's order: 128 lanes in order, then adjacent pairs.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import launch, pair_sum


@triton.jit
def _add_norm(x, y, weight, total, out, n, eps, LANES: tl.constexpr, STEPS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, LANES)
    sums = tl.zeros([LANES], tl.float32)
    for start in range(0, n, LANES):
        at, mask = row * n + start + lane, start + lane < n
        value = tl.load(x + at, mask=mask, other=0.0) + tl.load(y + at, mask=mask, other=0.0)
        tl.store(total + at, value, mask=mask)
        sums = sums + value * value
    mean = tl.div_rn(pair_sum(sums, LANES, STEPS), n.to(tl.float32))
    scale = tl.div_rn(1.0, tl.sqrt_rn(mean + eps))
    for start in range(0, n, LANES):
        at, mask = row * n + start + lane, start + lane < n
        value = tl.load(x + at, mask=mask, other=0.0) + tl.load(y + at, mask=mask, other=0.0)
        w = tl.load(weight + start + lane, mask=mask, other=0.0)
        tl.store(out + at, (value * scale) * w, mask=mask)


def add_norm(x: Tensor, y: Tensor, weight: Tensor, eps: float, total: Tensor,
             out: Tensor) -> None:
    """Write x + y of f32[t, n] into `total` and its weighted RMS norm into `out`, all contiguous.

    `total` is neither x nor y.
    """
    rows, n = x.shape
    launch(_add_norm, (rows,), x, y, weight, total, out, n, eps, LANES=128, STEPS=7)
