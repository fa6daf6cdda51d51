"""Random weights from raw bits, so that a seed gives the same file on every machine.

Every draw has its own stream, keyed by seed and name. numpy guarantees that the bits of Philox
never change, but not those of its distributions.
"""

from __future__ import annotations

import hashlib

import numpy as np

from engine.blocks import TYPES, Bytes, Floats
from engine.encode import encode

CHUNK = 1 << 20
"""Weights drawn from one stream; a larger tensor takes several."""


def random_bytes(key: str, count: int) -> Bytes:
    """Return `count` random bytes of the stream `key`."""
    number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:16], "little")
    words = np.random.Philox(key=number).random_raw(count // 8 + 1)
    return np.asarray(words, "<u8").view(np.uint8)[:count]


def gaussian(key: str, rows: int, columns: int) -> Floats:
    """Draw [rows, columns] of mean 0 and deviation 1: sums of four uniform 16-bit integers."""
    quarters = random_bytes(key, 8 * rows * columns).view("<u2").reshape(rows, columns, 4)
    total = quarters[..., 0].astype(np.int32)
    for i in range(1, 4):
        total += quarters[..., i]
    return (total - np.int32(131070)).astype(np.float32) * np.float32(1 / 37837.0)


def uniform(key: str, rows: int, columns: int, low: float, high: float) -> Floats:
    """Draw [rows, columns] evenly from [low, high)."""
    bits = random_bytes(key, 4 * rows * columns).view("<u4").reshape(rows, columns) >> np.uint32(8)
    part = bits.astype(np.float32) * np.float32(2.0**-24)
    return part * np.float32(high - low) + np.float32(low)


def encoded_gaussian(kind: str, key: str, rows: int, columns: int, std: float) -> Bytes:
    """Draw gaussian weights and encode them: bytes [rows, bytes of a row]."""
    return encode(kind, gaussian(key, rows, columns) * np.float32(std))


def random_blocks(kind: str, key: str, rows: int, columns: int, std: float) -> Bytes:
    """Draw the bytes of blocks themselves, about thirty times as fast as encoding.

    Quants are uniform over their range, scale bytes over the upper part of theirs. The other fields
    of each type are set so that weights have mean 0 and deviation `std`.
    """
    if kind not in _FILLERS:
        return encoded_gaussian(kind, key, rows, columns, std)
    size = TYPES[kind].bytes
    raw = random_bytes(key, rows * TYPES[kind].row_bytes(columns)).reshape(-1, size)
    _FILLERS[kind](raw, std)
    return raw.reshape(rows, -1)


def _f16_bytes(value: float, bits: int = 11) -> Bytes:
    """Return an f16 with at most `bits` leading bits as its two bytes."""
    mantissa, exponent = np.frexp(value)
    short = np.ldexp(np.rint(np.ldexp(mantissa, bits)), int(exponent) - bits)
    return np.array([short], "<f2").view(np.uint8)


def _fill_minima(raw: Bytes, std: float, top: int) -> None:
    """Give each sub-block a scale of 32 to 63 and a minimum that puts its mean at 0.

    A weight is d*(scale*q - (top/2)*minimum) with minimum = scale.
    """
    spread = np.sqrt(((top + 1) ** 2 - 1) / 12)
    d = _f16_bytes(std / (spread * 48.4), 6)  # six bits, so that top/2 times d is an f16 too
    raw[:, 0:2] = d
    raw[:, 2:4] = _f16_bytes(float(d.view("<f2")[0]) * top / 2)
    raw[:, 4:8] |= np.uint8(0xA0)
    raw[:, 8:12] = raw[:, 4:8]
    low = raw[:, 12:16] & np.uint8(15)
    raw[:, 12:16] = low | low << np.uint8(4)


def _fill_q4(raw: Bytes, std: float) -> None:
    _fill_minima(raw, std, 15)


def _fill_q5(raw: Bytes, std: float) -> None:
    _fill_minima(raw, std, 31)


def _fill_q6(raw: Bytes, std: float) -> None:
    """Take scales of either sign, 64 to 127 in size, so that the mean of -1/2 cancels."""
    sign = raw[:, 192:208] & np.uint8(0x80)
    size = raw[:, 192:208] & np.uint8(0x3F) | np.uint8(0x40)
    raw[:, 192:208] = np.where(sign != 0, np.uint8(0) - size, size)
    raw[:, 208:210] = _f16_bytes(std / (18.48 * 97.3))


def _fill_q8(raw: Bytes, std: float) -> None:
    raw[:, 0:2] = _f16_bytes(std / 73.9)


_FILLERS = {"Q4_K": _fill_q4, "Q5_K": _fill_q5, "Q6_K": _fill_q6, "Q8_0": _fill_q8}
