"""exact-23 product of one row with a Q4_K matrix; each weight byte is loaded once.

The kernel quantises activations to three balanced int8 limbs. Integer sums do not depend on their
order, so they use `tl.sum`; f32 sums do not.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import launch


@triton.jit
def _quantise(x):
    """Return x[256] quantised to integers, and the scale (arithmetic.md, items 1 to 4)."""
    bits = x.to(tl.int32, bitcast=True)
    max_bits = tl.max(bits & 0x7FFFFFFF, axis=0)
    not_finite = max_bits >= 0x7F800000
    exponent = tl.maximum(((max_bits + 0x010101) >> 23) - 126, -77)
    exponent = tl.where(not_finite, 0, exponent)
    scale = ((exponent + 104) << 23).to(tl.float32, bitcast=True)
    y = x * ((150 - exponent) << 23).to(tl.float32, bitcast=True)
    magnitude = (tl.abs(y) + 8388608.0).to(tl.int32, bitcast=True) & 0x7FFFFF
    quantised = tl.where(bits < 0, -magnitude, magnitude)
    quantised = tl.where(not_finite, tl.zeros_like(quantised), quantised)
    nan = tl.full([], 0x7FC00000, tl.int32).to(tl.float32, bitcast=True)
    return quantised, tl.where(not_finite, nan, scale)


@triton.jit
def _concat_columns(low, high, ROWS: tl.constexpr, HALF: tl.constexpr):
    """Return [ROWS, 2 * HALF]: low's columns, then high's."""
    joined = tl.permute(tl.join(low, high), [0, 2, 1])
    return tl.reshape(joined, [ROWS, 2 * HALF])


@triton.jit
def _scaled_sum(q, a, scales, ROWS: tl.constexpr):
    """Return sum_j scales_j * sum_32 q * a over eight sub-blocks, exact in int64: [ROWS]."""
    total = tl.zeros([ROWS], tl.int64)
    remaining = a
    for limb in tl.static_range(3):
        low = ((remaining + 128) & 255) - 128
        remaining = (remaining - low) >> 8
        dots = tl.sum(tl.reshape(q * low[None, :], [ROWS, 8, 32]), axis=2)
        total += tl.sum(dots * scales, axis=1).to(tl.int64) << (8 * limb)
    return total


@triton.jit
def _load_half(block, mask):
    """Load two bytes as f16 and return f32."""
    low = tl.load(block, mask=mask, other=0).to(tl.int32)
    high = tl.load(block + 1, mask=mask, other=0).to(tl.int32)
    return (low | (high << 8)).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _gemv_q4_k(weight, x, out, n, groups, ROWS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row_valid = row < n
    column, byte, scale_byte = tl.arange(0, 256), tl.arange(0, 128), tl.arange(0, 4)
    total = tl.zeros([ROWS], tl.float32)
    for first in range(0, groups, 4):
        segment = tl.zeros([ROWS], tl.float32)
        for i in tl.static_range(4):
            g = first + i
            block_valid = row_valid & (g + tl.zeros([ROWS], tl.int32) < groups)
            block = weight + (row * groups + g) * 144
            a, scale = _quantise(tl.load(x + g * 256 + column,
                                            mask=g * 256 + column < groups * 256, other=0.0))
            d, dmin = _load_half(block, block_valid), _load_half(block + 2, block_valid)
            packed = block[:, None] + 4 + scale_byte[None, :]
            packed0 = tl.load(packed, mask=block_valid[:, None], other=0).to(tl.int32)
            packed1 = tl.load(packed + 4, mask=block_valid[:, None], other=0).to(tl.int32)
            packed2 = tl.load(packed + 8, mask=block_valid[:, None], other=0).to(tl.int32)
            scales = _concat_columns(packed0 & 63, (packed2 & 15) | ((packed0 >> 6) << 4), ROWS, 4)
            minima = _concat_columns(packed1 & 63, (packed2 >> 4) | ((packed1 >> 6) << 4), ROWS, 4)
            nibbles = tl.load(block[:, None] + 16 + byte[None, :], mask=block_valid[:, None],
                              other=0).to(tl.int32)
            nibbles = tl.reshape(nibbles, [ROWS * 4, 32])
            q = tl.reshape(_concat_columns(nibbles & 15, nibbles >> 4, ROWS * 4, 32), [ROWS, 256])
            p = _scaled_sum(q, a, scales, ROWS).to(tl.float32)
            m = _scaled_sum(tl.full([ROWS, 256], 1, tl.int32), a, minima, ROWS).to(tl.float32)
            value = ((d * p) - (dmin * m)) * scale
            segment = segment + tl.where(block_valid, value, 0.0)
        total = total + segment
    tl.store(out + row, total, mask=row_valid)


def gemv_q4_k(weight: Tensor, x: Tensor, out: Tensor, rows: int = 16) -> None:
    """Write W x into out f32[N]: weight u8[N, K / 256 * 144] as in the file, x f32[K].

    `rows` is the row tile; it affects no bit.
    """
    n = weight.shape[0]
    launch(_gemv_q4_k, (triton.cdiv(n, rows),), weight, x, out, n, x.shape[0] // 256, ROWS=rows)
