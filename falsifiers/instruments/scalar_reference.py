"""A scalar reference of the products, written only from `contracts/arithmetic.md`.

It decodes one weight at a time and sums Python integers, so it shares no code with the engine.
Numbers in brackets are items of that document.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

BLOCK = {"Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210), "Q8_0": (32, 34),
         "F32": (1, 4), "F16": (1, 2), "BF16": (1, 2)}
F = np.float32


def _f16(raw: bytes) -> np.float32:
    return F(struct.unpack("<e", raw)[0])


def decode_block(kind: str, block: bytes) -> tuple[list[int], list[int], list[int], F, F]:
    """Return one block's q, scale and minimum of each weight, d and dmin."""
    if kind == "Q8_0":
        return list(struct.unpack("<32b", block[2:])), [1] * 32, [0] * 32, _f16(block[:2]), F(0)
    if kind == "Q6_K":
        low, high, scales, d = block[:128], block[128:192], block[192:208], _f16(block[208:])
        q = []
        for i in range(256):
            n, t, k = i // 128, i % 128 // 32, i % 32
            byte = low[64 * n + 32 * (t & 1) + k]
            four = byte & 15 if t < 2 else byte >> 4
            q.append((four | ((high[32 * n + k] >> 2 * t) & 3) << 4) - 32)
        signed = struct.unpack("<16b", scales)
        return q, [signed[i // 16] for i in range(256)], [0] * 256, d, F(0)
    d, dmin, b = _f16(block[:2]), _f16(block[2:4]), block[4:16]
    fifth, quants = (block[16:48], block[48:]) if kind == "Q5_K" else (bytes(32), block[16:])
    q, scale, minimum = [], [], []
    for i in range(256):
        j, k = i // 32, i % 32
        byte = quants[32 * (j // 2) + k]
        q.append((byte >> 4 if j % 2 else byte & 15) + 16 * (fifth[k] >> j & 1))
        scale.append(b[j] & 63 if j < 4 else (b[j + 4] & 15) | b[j - 4] >> 6 << 4)
        minimum.append(b[j + 4] & 63 if j < 4 else b[j + 4] >> 4 | b[j] >> 6 << 4)
    return q, scale, minimum, d, dmin


def _round(value: Fraction | int) -> np.float32:
    """Round an integer to f32 once; the integers here are exact in f64."""
    return F(float(value))


def fixed_point(x: Sequence[np.float32]) -> tuple[list[int], np.float32]:
    """Return one group of quantised activations and their scale [2-4], computed in rationals."""
    bits = [int(np.asarray(v, F).view(np.uint32)) & 0x7FFFFFFF for v in x]
    if max(bits) >= 0x7F800000:
        return [0] * len(x), F("nan")
    e = max(((max(bits) + 0x010101) >> 23) - 126, -77)
    integers = []
    for v in x:
        exact = Fraction(float(v)) * Fraction(2) ** (23 - e)
        integers.append(round(exact))  # Python rounds halves to even
    return integers, F(2.0 ** (e - 23))


def exact_row(kind: str, raw: bytes, x: np.ndarray) -> np.float32:
    """Return the exact-23 product of one row of block bytes with x f32[K] [5-6]."""
    size, nbytes = BLOCK[kind]
    per_group = 256 // size
    blocks = [decode_block(kind, raw[i:i + nbytes]) for i in range(0, len(raw), nbytes)]
    values = []
    for g in range(0, len(blocks), per_group):
        a, s = fixed_point(list(x[g * size:(g + per_group) * size]))
        parts = []
        for j, (q, scale, minimum, d, dmin) in enumerate(blocks[g:g + per_group]):
            block = a[j * size:(j + 1) * size]
            p = sum(c * w * v for c, w, v in zip(scale, q, block, strict=True))
            m = sum(c * v for c, v in zip(minimum, block, strict=True))
            part = F(d * _round(p))
            parts.append(F(part - F(dmin * _round(m))) if kind in ("Q4_K", "Q5_K") else part)
        if kind == "Q8_0":
            t = parts + [F(0)] * (8 - len(parts))
            parts = [F(F(F(t[0] + t[1]) + F(t[2] + t[3])) + F(F(t[4] + t[5]) + F(t[6] + t[7])))]
        values.append(F(parts[0] * s))
    y = F(0)
    for first in range(0, len(values), 4):
        segment = F(0)
        for v in values[first:first + 4]:
            segment = F(segment + v)
        y = F(y + segment)
    return y


def dense_row(kind: str, raw: bytes) -> list[np.float32]:
    """Return one row's weights as f32 [9]."""
    if kind == "F32":
        return list(np.frombuffer(raw, "<f4"))
    if kind == "F16":
        return list(np.frombuffer(raw, "<f2").astype(F))
    if kind == "BF16":
        return list((np.frombuffer(raw, "<u2").astype(np.uint32) << np.uint32(16)).view(F))
    size, nbytes = BLOCK[kind]
    out = []
    for i in range(0, len(raw), nbytes):
        q, scale, minimum, d, dmin = decode_block(kind, raw[i:i + nbytes])
        for k in range(size):
            w = F(F(d * F(scale[k])) * F(q[k]))
            out.append(F(w - F(dmin * F(minimum[k]))) if kind in ("Q4_K", "Q5_K") else w)
    return out


def ordered_row(kind: str, raw: bytes, x: np.ndarray) -> np.float32:
    """Return the ordered product of one row with x f32[K] [10]: 256 lanes, then pairs."""
    lanes = [F(0)] * 256
    for k, w in enumerate(dense_row(kind, raw)):
        lanes[k % 256] = F(lanes[k % 256] + F(F(x[k]) * w))
    while len(lanes) > 1:
        lanes = [F(lanes[i] + lanes[i + 1]) for i in range(0, len(lanes), 2)]
    return lanes[0]
