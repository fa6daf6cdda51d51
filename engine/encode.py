"""Encoders from f32 rows to block bytes, the same bytes on every machine.

Only +, -, *, /, rounding, minima and maxima are used. IEEE 754 defines each of them exactly, and
none depends on an order of summation. The encoders are for test models and do not minimise error.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from engine.blocks import TYPES, Bytes, Floats
from engine.errors import InputError


def encode(kind: str, x: Floats) -> Bytes:
    """Encode rows of finite f32 [rows, K] as bytes [rows, bytes_per_row] of one weight type."""
    if kind not in _ENCODERS:
        raise InputError(f"weight type {kind} is not supported; known are {', '.join(_ENCODERS)}")
    if x.dtype != np.float32 or x.ndim != 2:
        raise InputError(f"rows to encode must be float32 [rows, K], but are {x.dtype} "
                         f"{list(x.shape)}")
    size = TYPES[kind].row_bytes(x.shape[1])
    blocks = np.ascontiguousarray(x).reshape(x.shape[0], -1, TYPES[kind].weights)
    if not bool(np.isfinite(blocks).all()):
        raise InputError(f"only finite weights can be encoded as {kind}")
    return _ENCODERS[kind](blocks).reshape(x.shape[0], size)


def _encode_f32(blocks: Floats) -> Bytes:
    return blocks.astype("<f4").view(np.uint8)


def _encode_f16(x: Floats) -> Bytes:
    """Round to f16 and refuse what becomes infinite: [..., n] -> bytes [..., 2n]."""
    if bool(np.any(np.abs(x) >= np.float32(65520))):
        raise InputError("a weight or a scale is too large for f16")
    return np.ascontiguousarray(x.astype("<f2")).view(np.uint8)


def _encode_bf16(blocks: Floats) -> Bytes:
    bits = blocks.view(np.uint32).astype(np.uint64)
    rounded = (bits + np.uint64(0x7FFF) + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)
    if bool(np.any(rounded & np.uint64(0x7F80) == 0x7F80)):
        raise InputError("a weight is too large for bf16")
    return rounded.astype("<u2").view(np.uint8)


def _round_scale(x: Floats) -> tuple[Bytes, Floats]:
    """Round scales [..., 1] to f16: their bytes [..., 2] and their values, 1 in place of 0."""
    raw = _encode_f16(x)
    value = raw.view("<f2").astype(np.float32)
    return raw, np.where(value == 0, np.float32(1), value)


def _round_to_steps(x: Floats, step: Floats, low: int, high: int) -> Floats:
    """Return x / step rounded to integers in a range; 0 where the step is 0."""
    rounded = np.rint(x / np.where(step == 0, np.float32(1), step))
    return np.clip(np.where(step == 0, np.float32(0), rounded), low, high).astype(np.float32)


def _encode_q8(blocks: Floats) -> Bytes:
    raw, d = _round_scale(np.abs(blocks).max(-1, keepdims=True) / np.float32(127))
    q = _round_to_steps(blocks, d, -127, 127).astype(np.int8)
    return np.concatenate([raw, q.view(np.uint8)], axis=-1)


def _encode_q6(blocks: Floats) -> Bytes:
    """Let each sub-block's largest weight, of either sign, fall on -32."""
    sub = blocks.reshape(*blocks.shape[:2], 16, 16)
    top, bottom = sub.max(-1), sub.min(-1)
    step = np.where(top > -bottom, top, bottom) / np.float32(-32)
    raw, d = _round_scale(np.abs(step).max(-1, keepdims=True) / np.float32(127))
    scale = _round_to_steps(step, d, -127, 127)
    q = _round_to_steps(sub, (d * scale)[..., None], -32, 31).astype(np.int8).reshape(blocks.shape)
    bits = (q + np.int8(32)).astype(np.uint8)
    low = bits.reshape(*blocks.shape[:2], 2, 2, 2, 32)  # [.., half, nibble, 32s, weight]
    high = bits.reshape(*blocks.shape[:2], 2, 4, 32) >> np.uint8(4)
    lows = low[..., 0, :, :] & np.uint8(15) | (low[..., 1, :, :] & np.uint8(15)) << np.uint8(4)
    highs = high[..., 0, :] | high[..., 1, :] << np.uint8(2)
    highs = highs | high[..., 2, :] << np.uint8(4) | high[..., 3, :] << np.uint8(6)
    parts = [lows, highs, scale.astype(np.int8).view(np.uint8), raw]
    return np.concatenate([p.reshape(*blocks.shape[:2], -1) for p in parts], axis=-1)


def _fit_minima(blocks: Floats, top: int) -> tuple[Bytes, Bytes]:
    """Fit sub-blocks of 32 as d*scale*q - dmin*minimum with q in 0..top.

    Returns the 16 leading bytes of each block [rows, blocks, 16] and q [rows, blocks, 8, 32].
    """
    sub = blocks.reshape(*blocks.shape[:2], 8, 32)
    low = np.minimum(sub.min(-1), np.float32(0))
    step = (sub.max(-1) - low) / np.float32(top)
    raw_d, d = _round_scale(step.max(-1, keepdims=True) / np.float32(63))
    raw_min, dmin = _round_scale((-low).max(-1, keepdims=True) / np.float32(63))
    scale, minimum = _round_to_steps(step, d, 0, 63), _round_to_steps(-low, dmin, 0, 63)
    q = _round_to_steps(sub + (dmin * minimum)[..., None], (d * scale)[..., None], 0, top)
    packed = _pack_6bit(scale.astype(np.uint8), minimum.astype(np.uint8))
    return np.concatenate([raw_d, raw_min, packed], axis=-1), q.astype(np.uint8)


def _pack_6bit(scale: Bytes, minimum: Bytes) -> Bytes:
    """Pack eight scales and eight minima [..., 8] of 0..63 into 12 bytes."""
    four = np.uint8(4)
    first = scale[..., :4] | scale[..., 4:] >> four << np.uint8(6)
    second = minimum[..., :4] | minimum[..., 4:] >> four << np.uint8(6)
    third = scale[..., 4:] & np.uint8(15) | minimum[..., 4:] << four
    return np.concatenate([first, second, third], axis=-1)


def _pack_nibbles(q: Bytes) -> Bytes:
    """Pack [..., 8, 32] of 0..15: even sub-blocks are low nibbles, odd ones high."""
    return (q[..., 0::2, :] | q[..., 1::2, :] << np.uint8(4)).reshape(*q.shape[:2], 128)


def _encode_q4(blocks: Floats) -> Bytes:
    head, q = _fit_minima(blocks, 15)
    return np.concatenate([head, _pack_nibbles(q)], axis=-1)


def _encode_q5(blocks: Floats) -> Bytes:
    head, q = _fit_minima(blocks, 31)
    bit = np.arange(8, dtype=np.uint8).reshape(8, 1)
    fifth = np.bitwise_or.reduce(q >> np.uint8(4) << bit, axis=-2)
    return np.concatenate([head, fifth, _pack_nibbles(q & np.uint8(15))], axis=-1)


_ENCODERS: dict[str, Callable[[Floats], Bytes]] = {
    "F32": _encode_f32, "F16": _encode_f16, "BF16": _encode_bf16, "Q8_0": _encode_q8,
    "Q4_K": _encode_q4, "Q5_K": _encode_q5, "Q6_K": _encode_q6}
