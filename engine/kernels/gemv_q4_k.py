"""The exact-23 product of one row with a Q4_K matrix: each weight byte is loaded once.

Activations become three balanced int8 limbs inside the kernel; integer sums may run in any order,
so `tl.sum` is allowed on them and on nothing else.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import launch


@triton.jit
def _fixed_point(x):
    """Return x[256] as integers and their scale (arithmetic.md, items 1 to 4)."""
    bits = x.to(tl.int32, bitcast=True)
    size = tl.max(bits & 0x7FFFFFFF, axis=0)
    broken = size >= 0x7F800000
    e = tl.maximum(((size + 0x010101) >> 23) - 126, -77)
    e = tl.where(broken, 0, e)
    scale = ((e + 104) << 23).to(tl.float32, bitcast=True)
    y = x * ((150 - e) << 23).to(tl.float32, bitcast=True)
    magnitude = (tl.abs(y) + 8388608.0).to(tl.int32, bitcast=True) & 0x7FFFFF
    a = tl.where(bits < 0, -magnitude, magnitude)
    a = tl.where(broken, tl.zeros_like(a), a)
    nan = tl.full([], 0x7FC00000, tl.int32).to(tl.float32, bitcast=True)
    return a, tl.where(broken, nan, scale)


@triton.jit
def _pairs(low, high, ROWS: tl.constexpr, HALF: tl.constexpr):
    """Return [ROWS, 2 * HALF]: low's columns, then high's."""
    joined = tl.permute(tl.join(low, high), [0, 2, 1])
    return tl.reshape(joined, [ROWS, 2 * HALF])


@triton.jit
def _scaled_sum(q, a, scales, ROWS: tl.constexpr):
    """Return sum_j scales_j * sum_32 q * a over eight sub-blocks, exact in int64: [ROWS]."""
    whole = tl.zeros([ROWS], tl.int64)
    rest = a
    for limb in tl.static_range(3):
        low = ((rest + 128) & 255) - 128
        rest = (rest - low) >> 8
        dots = tl.sum(tl.reshape(q * low[None, :], [ROWS, 8, 32]), axis=2)
        whole += tl.sum(dots * scales, axis=1).to(tl.int64) << (8 * limb)
    return whole


@triton.jit
def _half(block, mask):
    """Return the f16 at two bytes as f32."""
    low = tl.load(block, mask=mask, other=0).to(tl.int32)
    high = tl.load(block + 1, mask=mask, other=0).to(tl.int32)
    return (low | (high << 8)).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _gemv_q4_k(weight, x, out, n, groups, ROWS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < n
    column, byte, four = tl.arange(0, 256), tl.arange(0, 128), tl.arange(0, 4)
    whole = tl.zeros([ROWS], tl.float32)
    for first in range(0, groups, 4):
        segment = tl.zeros([ROWS], tl.float32)
        for i in tl.static_range(4):
            g = first + i
            mask = inside & (g + tl.zeros([ROWS], tl.int32) < groups)
            block = weight + (row * groups + g) * 144
            a, scale = _fixed_point(tl.load(x + g * 256 + column,
                                            mask=g * 256 + column < groups * 256, other=0.0))
            d, dmin = _half(block, mask), _half(block + 2, mask)
            packed = block[:, None] + 4 + four[None, :]
            b0 = tl.load(packed, mask=mask[:, None], other=0).to(tl.int32)
            b1 = tl.load(packed + 4, mask=mask[:, None], other=0).to(tl.int32)
            b2 = tl.load(packed + 8, mask=mask[:, None], other=0).to(tl.int32)
            scales = _pairs(b0 & 63, (b2 & 15) | ((b0 >> 6) << 4), ROWS, 4)
            minima = _pairs(b1 & 63, (b2 >> 4) | ((b1 >> 6) << 4), ROWS, 4)
            nibbles = tl.load(block[:, None] + 16 + byte[None, :], mask=mask[:, None],
                              other=0).to(tl.int32)
            nibbles = tl.reshape(nibbles, [ROWS * 4, 32])
            q = tl.reshape(_pairs(nibbles & 15, nibbles >> 4, ROWS * 4, 32), [ROWS, 256])
            p = _scaled_sum(q, a, scales, ROWS).to(tl.float32)
            m = _scaled_sum(tl.full([ROWS, 256], 1, tl.int32), a, minima, ROWS).to(tl.float32)
            value = ((d * p) - (dmin * m)) * scale
            segment = segment + tl.where(mask, value, 0.0)
        whole = whole + segment
    tl.store(out + row, whole, mask=inside)


def gemv_q4_k(weight: Tensor, x: Tensor, out: Tensor, rows: int = 16) -> None:
    """Write W x into out f32[N]: weight u8[N, K / 256 * 144] as in the file, x f32[K].

    `rows` is the row tile; it changes no bit.
    """
    n = weight.shape[0]
    launch(_gemv_q4_k, (triton.cdiv(n, rows),), weight, x, out, n, x.shape[0] // 256, ROWS=rows)
