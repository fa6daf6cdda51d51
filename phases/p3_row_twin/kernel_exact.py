"""exact-23 for m rows in one launch: each weight block is decoded once and dotted with every row.

Activations become three balanced int8 limbs; a sub-block is one int8 `tl.dot` a limb, so that
rows are columns of the dot. Limbs are joined in int64, and each later step rounds once.
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
"""The code that the kernel knows a type by, and the bytes of its block."""


@triton.jit
def _half(at, mask):
    """Return the f16 at two bytes as f32; blocks of 210 and 34 bytes are not aligned to more."""
    low = tl.load(at, mask=mask, other=0).to(tl.int32)
    high = tl.load(at + 1, mask=mask, other=0).to(tl.int32)
    return (low | (high << 8)).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _group_scale(x, row, stride, first, k, m):
    """Return broken[M], the scale s[M] and its inverse r[M] of one group of 256 (items 1 to 3)."""
    column = first + tl.arange(0, 256)
    mask = (row < m)[:, None] & (column < k)[None, :]
    value = tl.load(x + row.to(tl.int64)[:, None] * stride + column[None, :], mask=mask, other=0.0)
    size = tl.max(value.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)
    broken = size >= 0x7F800000
    e = tl.where(broken, 0, tl.maximum(((size + 0x010101) >> 23) - 126, -77))
    nan = tl.full(size.shape, 0x7FC00000, tl.int32)
    s = tl.where(broken, nan, (e + 104) << 23).to(tl.float32, bitcast=True)
    return broken, s, ((150 - e) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _integers(x, row, stride, first, k, m, broken, r):
    """Return 32 columns of activations as integers [32, M] (item 4)."""
    column = first + tl.arange(0, 32)
    mask = (row < m)[None, :] & (column < k)[:, None]
    value = tl.load(x + row.to(tl.int64)[None, :] * stride + column[:, None], mask=mask, other=0.0)
    y = value * r[None, :]
    size = (tl.abs(y) + 8388608.0).to(tl.int32, bitcast=True) & 0x7FFFFF
    a = tl.where(value.to(tl.int32, bitcast=True) < 0, -size, size)
    return tl.where(broken[None, :], tl.zeros_like(a), a)


@triton.jit
def _dot(q, a):
    """Return sum q a over 32 columns, exact: q int8[N, 32], a int32[32, M] -> int64[N, M]."""
    l0 = ((a + 128) & 255) - 128
    rest = (a - l0) >> 8
    l1 = ((rest + 128) & 255) - 128
    l2 = (rest - l1) >> 8
    d0 = tl.dot(q, l0.to(tl.int8), out_dtype=tl.int32).to(tl.int64)
    d1 = tl.dot(q, l1.to(tl.int8), out_dtype=tl.int32).to(tl.int64)
    d2 = tl.dot(q, l2.to(tl.int8), out_dtype=tl.int32).to(tl.int64)
    return d0 + (d1 << 8) + (d2 << 16)


@triton.jit
def _scales(block, inside, j: tl.constexpr):
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
def _quants(block, inside, j: tl.constexpr, KIND: tl.constexpr):
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
    wide = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    row = tl.arange(0, M)
    inside = wide < n
    lane = tl.arange(0, 32)
    groups = (k + 255) // 256
    whole = tl.zeros([N, M], tl.float32)
    segment = tl.zeros([N, M], tl.float32)
    for g in range(groups):
        broken, s, r = _group_scale(x, row, x_stride, g * 256, k, m)
        p = tl.zeros([N, M], tl.int64)
        minima = tl.zeros([N, M], tl.int64)
        even = tl.zeros([N, M], tl.float32)
        pair = tl.zeros([N, M], tl.float32)
        four = tl.zeros([N, M], tl.float32)
        for j in tl.static_range(8):
            first = g * 256 + 32 * j
            a = _integers(x, row, x_stride, first, k, m, broken, r)
            at = g * 8 + j if KIND == 8 else g
            block = weight + wide * row_bytes + at * BYTES
            there = inside & (first + tl.zeros([N], tl.int32) < k)
            q = _quants(block, there, j, KIND)
            if KIND == 8:
                t = _half(block, there)[:, None] * _dot(q.to(tl.int8), a).to(tl.float32)
                t = tl.where(there[:, None], t, 0.0)
                if j % 2 == 0:
                    even = t
                elif j % 4 == 1:
                    pair = even + t
                elif j == 3:
                    four = pair + (even + t)
                else:
                    value = four + (pair + (even + t))
            elif KIND == 6:
                lower = tl.where((lane < 16)[None, :], q, 0)
                sc = tl.load(block + 192 + 2 * j, mask=there, other=0).to(tl.int8, bitcast=True)
                p += sc.to(tl.int64)[:, None] * _dot(lower.to(tl.int8), a)
                sc = tl.load(block + 193 + 2 * j, mask=there, other=0).to(tl.int8, bitcast=True)
                p += sc.to(tl.int64)[:, None] * _dot((q - lower).to(tl.int8), a)
            else:
                sc, mn = _scales(block, there, j)
                p += sc.to(tl.int64)[:, None] * _dot(q.to(tl.int8), a)
                minima += mn.to(tl.int64)[:, None] * tl.sum(a, axis=0).to(tl.int64)[None, :]
        if KIND != 8:
            block = weight + wide * row_bytes + g * BYTES
            if KIND == 6:
                value = _half(block + 208, inside)[:, None] * p.to(tl.float32)
            else:
                value = (_half(block, inside)[:, None] * p.to(tl.float32)
                         - _half(block + 2, inside)[:, None] * minima.to(tl.float32))
        segment = segment + value * s[None, :]
        if (g % 4 == 3) | (g == groups - 1):
            whole = whole + segment
            segment = tl.zeros([N, M], tl.float32)
    address = out + row.to(tl.int64)[None, :] * out_stride + wide[:, None]
    tl.store(address, whole, mask=inside[:, None] & (row < m)[None, :])


def supports(case: Any) -> str | None:
    """Return why a case cannot be taken, or None: quantised types have an exact product."""
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
           num_stages=1)  # staged loads of 64 rows need more shared memory than there is
