"""Matrices and activations to attack with, the same bytes on every machine."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

from engine.blocks import TYPES, Bytes

SCALE_OFFSETS = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q8_0": (0,)}
"""Where a block's f16 scales stand."""
MEAN_QUANT = {"Q4_K": 7.5, "Q5_K": 15.5}
"""The mean of a type's unsigned quants."""
QUANT_BYTES = {"Q4_K": (4, 144, 0xFF), "Q5_K": (4, 176, 0xFF), "Q6_K": (0, 192, 0x00),
          "Q8_0": (2, 34, 0x80)}
"""The bytes that hold integers, and the value that makes each weight largest."""
LARGEST_F16, SMALLEST_F16 = 0x7BFF, 0x0001
"""The largest and the smallest positive f16."""


def draw_bytes(name: str, size: int) -> Bytes:
    """Return `size` bytes drawn for a name."""
    return np.frombuffer(hashlib.shake_256(name.encode()).digest(size), np.uint8)


def draw_normal(name: str, *shape: int) -> np.ndarray:
    """Return f32 values around zero with a spread near one."""
    words = draw_bytes(name, 8 * int(np.prod(shape))).view("<u2").reshape(-1, 4)
    total = words.astype(np.int64).sum(1) - 131070
    return np.asarray(total / 37000.0, np.float32).reshape(shape)


def blocks(kind: str, n: int, k: int, flavour: str = "plain") -> Bytes:
    """Return a matrix's block bytes u8[n, bytes of a row].

    Flavours: `plain` has scales as models have them; `wild` any finite ones, so that sizes span
    every f16 value; `largest` and `smallest` have every scale and integer at that end.
    """
    block = TYPES[kind]
    name, size = f"{kind} {n} {k} {flavour}", block.row_bytes(k)
    if kind not in SCALE_OFFSETS:
        return _float_blocks(kind, draw_normal(name, n, k), flavour)
    raw = draw_bytes(name, n * size).reshape(n, -1, block.bytes).copy()
    for at in SCALE_OFFSETS[kind]:
        size_of = MEAN_QUANT.get(kind, 1.0) if at == 2 else 1.0  # weights lie around zero
        half = raw[:, :, at:at + 2].copy().view("<u2")
        if flavour == "wild":
            half &= 0xBBFF  # no exponent of all ones
        elif flavour == "plain":
            half = ((0.5 + half / 65536) / 1024 * size_of).astype("<f2").view("<u2")
        else:
            half[:] = LARGEST_F16 if flavour == "largest" else SMALLEST_F16
        raw[:, :, at:at + 2] = half.view(np.uint8)
    if flavour == "largest":
        first, last, value = QUANT_BYTES[kind]
        raw[:, :, first:last] = value
        if kind == "Q6_K":
            raw[:, :, 192:208] = 0x80
    return raw.reshape(n, size)


def _float_blocks(kind: str, values: np.ndarray, flavour: str) -> Bytes:
    """Return rows of F32, F16 or BF16 as bytes; every value of them is exact."""
    power = {"plain": 0, "wild": 0, "largest": 14, "smallest": -24}[flavour]
    values = values * np.float32(2.0 ** power)
    if flavour == "wild":
        values = values * np.exp2(np.arange(values.size) % 25 - 14, dtype=np.float32
                                  ).reshape(values.shape)
    if kind == "F16":
        return values.astype("<f2").view(np.uint8)
    bits = values.astype("<f4").view("<u4")
    if kind == "BF16":
        return (bits >> np.uint32(16)).astype("<u2").view(np.uint8)
    return bits.view(np.uint8)


def activations(m: int, k: int, name: str = "rows") -> Tensor:
    """Return f32[m, k], no two rows alike and each of another size."""
    rows = draw_normal(f"{name} {k}", m, k) * (1 + np.arange(m, dtype=np.float32) % 7)[:, None]
    return torch.from_numpy(rows)


def extreme_activations(k: int) -> Tensor:
    """Return f32[7, k]: plain, an outlier, tiny, huge, zeros, signed zeros, an infinity.

    The largest of the outlier's group is the least that needs the next scale, that of the huge
    row's the largest that does not.
    """
    plain = activations(1, k, "extreme")[0]
    least, most = torch.tensor([0x4E7EFEFF, 0x737EFEFE], dtype=torch.int32).view(torch.float32)
    outlier, huge = plain.clone(), plain * 2.0 ** 100
    outlier[k // 2], outlier[-1], huge[k // 3] = least, 1e-42, most
    negative = torch.where(torch.arange(k) % 2 == 0, 0.0, -0.0)
    broken = plain.clone()
    broken[k - 1] = float("inf")
    return torch.stack([plain, outlier, plain * 2.0 ** -99, huge,
                        torch.zeros(k), negative, broken])
