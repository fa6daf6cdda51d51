"""exact-23 product of m rows in one launch; each weight block is decoded once for all rows.

Activations are quantised to three balanced int8 limbs. Each sub-block is one int8 `tl.dot` per
limb, with activation rows as columns. Limbs are joined in int64; each later operation rounds once.
For any device and the interpreter; `kernel_exact_mma` is the fast version.
"""

# mypy: ignore-errors
from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import launch
from engine.kernels.device_bytes import device_bytes
from engine.weights import EXACT, Weight

ARITHMETIC = EXACT
KINDS = {"Q4_K": (4, 144), "Q5_K": (5, 176), "Q6_K": (6, 210), "Q8_0": (8, 34)}
"""The kernel's code of each type, and the bytes of its block."""


@triton.jit
def _load_half(at, mask):
    """Return the f16 at `at` as f32, from two byte loads: 34- and 210-byte blocks align to 2."""
    low = tl.load(at, mask=mask, other=0).to(tl.int32)
    high = tl.load(at + 1, mask=mask, other=0).to(tl.int32)
    return (low | (high << 8)).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _load_group_scale(x, row, stride, first, k, m):
    """Return not_finite[M], the scale[M] and its inverse[M] of one group of 256 (items 1 to 3)."""
    column = first + tl.arange(0, 256)
    mask = (row < m)[:, None] & (column < k)[None, :]
    value = tl.load(x + row.to(tl.int64)[:, None] * stride + column[None, :], mask=mask, other=0.0)
    max_bits = tl.max(value.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)
    not_finite = max_bits >= 0x7F800000
    exponent = tl.where(not_finite, 0, tl.maximum(((max_bits + 0x010101) >> 23) - 126, -77))
    nan = tl.full(max_bits.shape, 0x7FC00000, tl.int32)
    s = tl.where(not_finite, nan, (exponent + 104) << 23).to(tl.float32, bitcast=True)
    return not_finite, s, ((150 - exponent) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _load_quantised(x, row, stride, first, k, m, not_finite, inverse_scale):
    """Return 32 columns of quantised activations i32[32, M] (item 4)."""
    column = first + tl.arange(0, 32)
    mask = (row < m)[None, :] & (column < k)[:, None]
    value = tl.load(x + row.to(tl.int64)[None, :] * stride + column[:, None], mask=mask, other=0.0)
    y = value * inverse_scale[None, :]
    magnitude = (tl.abs(y) + 8388608.0).to(tl.int32, bitcast=True) & 0x7FFFFF
    quantised = tl.where(value.to(tl.int32, bitcast=True) < 0, -magnitude, magnitude)
    return tl.where(not_finite[None, :], tl.zeros_like(quantised), quantised)


@triton.jit
def _dot(q, a):
    """Return sum q a over 32 columns, exact: q int8[N, 32], a int32[32, M] -> int64[N, M]."""
    l0 = ((a + 128) & 255) - 128
    remaining = (a - l0) >> 8
    l1 = ((remaining + 128) & 255) - 128
    l2 = (remaining - l1) >> 8
    d0 = tl.dot(q, l0.to(tl.int8), out_dtype=tl.int32).to(tl.int64)
    d1 = tl.dot(q, l1.to(tl.int8), out_dtype=tl.int32).to(tl.int64)
    d2 = tl.dot(q, l2.to(tl.int8), out_dtype=tl.int32).to(tl.int64)
    return d0 + (d1 << 8) + (d2 << 16)


@triton.jit
def _load_scales(block, inside, j: tl.constexpr):
    """Return scale and minimum of sub-block j of Q4_K and Q5_K: int32[N] each."""
    b = block + 4
    if j < 4:
        sc = tl.load(b + j, mask=inside, other=0).to(tl.int32) & 63
        mn = tl.load(b + j + 4, mask=inside, other=0).to(tl.int32) & 63
    else:
        both = tl.load(b + j + 4, mask=inside, other=0).to(tl.int32)
        sc = (both & 15) | ((tl.load(b + j - 4, mask=inside, other=0).to(tl.int32) >> 6) << 4)
        mn = (both >> 4) | ((tl.load(b + j, mask=inside, other=0).to(tl.int32) >> 6) << 4)
    return sc, mn


@triton.jit
def _load_quants(block, inside, j: tl.constexpr, KIND: tl.constexpr):
    """Return the 32 quants of sub-block j as int32[N, 32]."""
    lane = tl.arange(0, 32)
    mask = inside[:, None] & (lane < 32)[None, :]
    if KIND == 8:
        byte = tl.load(block[:, None] + 2 + lane[None, :], mask=mask, other=0)
        q = byte.to(tl.int8, bitcast=True).to(tl.int32)
    elif KIND == 6:
        half: tl.constexpr = j // 4
        turn: tl.constexpr = j % 4
        low = tl.load(block[:, None] + 64 * half + 32 * (turn % 2) + lane[None, :], mask=mask,
                      other=0).to(tl.int32)
        high = tl.load(block[:, None] + 128 + 32 * half + lane[None, :], mask=mask,
                       other=0).to(tl.int32)
        q = (((low >> (4 * (turn // 2))) & 15) | (((high >> (2 * turn)) & 3) << 4)) - 32
    else:
        skip: tl.constexpr = 48 if KIND == 5 else 16
        byte = tl.load(block[:, None] + skip + 32 * (j // 2) + lane[None, :], mask=mask,
                       other=0).to(tl.int32)
        q = (byte >> (4 * (j % 2))) & 15
        if KIND == 5:
            fifth = tl.load(block[:, None] + 16 + lane[None, :], mask=mask, other=0).to(tl.int32)
            q = q | (((fifth >> j) & 1) << 4)
    return q


@triton.jit
def _gemv_rows(weight, x, out, n, k, m, x_stride, out_stride, row_bytes,
               KIND: tl.constexpr, BYTES: tl.constexpr, N: tl.constexpr, M: tl.constexpr):
    weight_row = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    row = tl.arange(0, M)
    row_valid = weight_row < n
    lane = tl.arange(0, 32)
    groups = (k + 255) // 256
    total = tl.zeros([N, M], tl.float32)
    segment = tl.zeros([N, M], tl.float32)
    for g in range(groups):
        not_finite, scale, inverse_scale = _load_group_scale(x, row, x_stride, g * 256, k, m)
        dot_sum = tl.zeros([N, M], tl.int64)
        minimum_sum = tl.zeros([N, M], tl.int64)
        even = tl.zeros([N, M], tl.float32)
        pair = tl.zeros([N, M], tl.float32)
        four = tl.zeros([N, M], tl.float32)
        for j in tl.static_range(8):
            first = g * 256 + 32 * j
            a = _load_quantised(x, row, x_stride, first, k, m, not_finite, inverse_scale)
            at = g * 8 + j if KIND == 8 else g
            block = weight + weight_row * row_bytes + at * BYTES
            valid = row_valid & (first + tl.zeros([N], tl.int32) < k)
            q = _load_quants(block, valid, j, KIND)
            if KIND == 8:
                term = _load_half(block, valid)[:, None] * _dot(q.to(tl.int8), a).to(tl.float32)
                term = tl.where(valid[:, None], term, 0.0)
                if j % 2 == 0:
                    even = term
                elif j % 4 == 1:
                    pair = even + term
                elif j == 3:
                    four = pair + (even + term)
                else:
                    value = four + (pair + (even + term))
            elif KIND == 6:
                lower_half = tl.where((lane < 16)[None, :], q, 0)
                sc = tl.load(block + 192 + 2 * j, mask=valid, other=0).to(tl.int8, bitcast=True)
                dot_sum += sc.to(tl.int64)[:, None] * _dot(lower_half.to(tl.int8), a)
                sc = tl.load(block + 193 + 2 * j, mask=valid, other=0).to(tl.int8, bitcast=True)
                dot_sum += sc.to(tl.int64)[:, None] * _dot((q - lower_half).to(tl.int8), a)
            else:
                sc, mn = _load_scales(block, valid, j)
                dot_sum += sc.to(tl.int64)[:, None] * _dot(q.to(tl.int8), a)
                minimum_sum += mn.to(tl.int64)[:, None] * tl.sum(a, axis=0).to(tl.int64)[None, :]
        if KIND != 8:
            block = weight + weight_row * row_bytes + g * BYTES
            if KIND == 6:
                value = _load_half(block + 208, row_valid)[:, None] * dot_sum.to(tl.float32)
            else:
                value = (_load_half(block, row_valid)[:, None] * dot_sum.to(tl.float32)
                         - _load_half(block + 2, row_valid)[:, None] * minimum_sum.to(tl.float32))
        segment = segment + value * scale[None, :]
        if (g % 4 == 3) | (g == groups - 1):
            total = total + segment
            segment = tl.zeros([N, M], tl.float32)
    address = out + row.to(tl.int64)[None, :] * out_stride + weight_row[:, None]
    tl.store(address, total, mask=row_valid[:, None] & (row < m)[None, :])


def supports(case: Any) -> str | None:
    """Return why a case is not supported, or None. Only quantised types have an exact product."""
    kind = case.given.get("kind")
    return None if kind in KINDS else f"{kind} has no exact product"


def gemv_rows(weight: Weight, x: Tensor, out: Tensor) -> None:
    """Write W x for every row of x f32[m, K] into out f32[m, N], m up to 64, any row strides."""
    m, k = x.shape
    code, nbytes = KINDS[weight.kind]
    raw = device_bytes(weight, x.device)
    rows = 16
    tile = max(16, triton.next_power_of_2(m))
    launch(_gemv_rows, (triton.cdiv(weight.n, rows),), raw, x, out, weight.n, k, m, x.stride(0),
           out.stride(0), raw.stride(0), KIND=code, BYTES=nbytes, N=rows, M=tile,
           num_stages=1)  # with more stages, 64 rows exceed shared memory
