"""RMS norm of each head times SILU of its gate, fused; one program per head.

The block size is the head width, so values stay in registers between the sum and the store.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import launch, pair_sum
from engine.kernels.functions import silu


@triton.jit
def _gated_norm(x, z, weight, out, eps, LANES: tl.constexpr, STEPS: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    value = tl.load(x + at)
    # each lane has one square, which is never -0, so SUM's initial +0 is omitted
    mean = tl.div_rn(pair_sum(value * value, LANES, STEPS), LANES * 1.0)
    scale = tl.div_rn(1.0, tl.sqrt_rn(mean + eps))
    normed = (value * scale) * tl.load(weight + tl.arange(0, LANES))
    tl.store(out + at, normed * silu(tl.load(z + at)))


def gated_norm(x: Tensor, z: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """Write the RMS norm of each head of x f32[t, V, 128] times SILU(z) into `out`.

    All three are contiguous; weight is f32[128], and a head may have any power of two.
    """
    t, heads, width = x.shape
    launch(_gated_norm, (t * heads,), x, z, weight, out, eps, LANES=width,
           STEPS=width.bit_length() - 1)
