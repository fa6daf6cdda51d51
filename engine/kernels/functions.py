"""Pinned functions of contracts/arithmetic.md, items 14 to 16, for Triton kernels.

They use multiply, add and `div_rn` in the documented order. NaN is detected by its bits, because
comparisons and conversions drop it.
"""

from __future__ import annotations

import struct

import triton
import triton.language as tl


def _f32(bits: int) -> tl.constexpr:
    """Return the f32 constant of a bit pattern, as arithmetic.md lists it."""
    return tl.constexpr(struct.unpack("<f", struct.pack("<I", bits))[0])


ROUND = tl.constexpr(12582912.0)
LOG2E, LN2_HIGH, LN2_LOW = _f32(0x3FB8AA3B), _f32(0x3F318000), _f32(0xB95E8083)
E5, E4, E3 = _f32(0x394F83AF), _f32(0x3AB6C737), _f32(0x3C08893A)
E2, E1, E0 = _f32(0x3D2AAA46), _f32(0x3E2AAAAA), _f32(0x3F000000)
L4, L3, L2 = _f32(0x3DF8E5E4), _f32(0x3DDB67D5), _f32(0x3E1284DE)
L1, L0 = _f32(0x3E4CCB53), _f32(0x3EAAAAAC)


@triton.jit
def is_nan(x):
    """Return where x is NaN, by its bits."""
    return (x.to(tl.int32, bitcast=True) & 0x7FFFFFFF) > 0x7F800000


@triton.jit
def exp(x):
    """Return EXP [14]: +0 below -87, +inf above 88, NaN stays NaN."""
    y = tl.where(x < -87.0, -87.0, tl.where(x > 88.0, 88.0, x))
    y = tl.where(is_nan(x), 0.0, y)
    n = (y * LOG2E + ROUND) - ROUND
    t = (y - n * LN2_HIGH) - n * LN2_LOW
    p = t * E5 + E4
    p = p * t + E3
    p = p * t + E2
    p = p * t + E1
    p = p * t + E0
    power = ((n.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    e = ((((p * t) * t) + t) + 1.0) * power
    e = tl.where(x < -87.0, 0.0, e)
    e = tl.where(x > 88.0, float("inf"), e)
    return tl.where(is_nan(x), x, e)


@triton.jit
def log1p(t):
    """Return LOG1P [15] for 0 <= t <= 1."""
    u = tl.div_rn(t, t + 2.0)
    z = u * u
    p = z * L4 + L3
    p = p * z + L2
    p = p * z + L1
    p = p * z + L0
    w = u + u
    return w + w * (z * p)


@triton.jit
def softplus(x):
    """Return SOFTPLUS [16]."""
    y = tl.where(x > 0.0, x, 0.0) + log1p(exp(-tl.abs(x)))
    return tl.where(is_nan(x), x, y)


@triton.jit
def sigmoid(x):
    """Return SIGMOID [16]."""
    t = exp(-tl.abs(x))
    y = tl.div_rn(tl.where(x < 0.0, t, 1.0), t + 1.0)
    return tl.where(is_nan(x), x, y)


@triton.jit
def silu(x):
    """Return SILU [16]."""
    return x * sigmoid(x)
