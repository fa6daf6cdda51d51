"""Weight blocks of GGUF files: the size of each type and how its bytes decode.

Every product in a decoded weight is exact in f32; only the subtraction of a minimum rounds, once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.errors import InputError

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Shorts = NDArray[np.int16]


@dataclass(frozen=True)
class BlockType:
    """One weight type: a block is `weights` neighbours of a row in `bytes` bytes."""

    name: str
    ggml: int
    """The type's number in the file."""
    weights: int
    bytes: int

    def row_bytes(self, columns: int) -> int:
        """Return the bytes of a row of `columns` weights, a multiple of the block's weights."""
        if columns % self.weights:
            raise InputError(f"a row of {columns} weights is not a multiple of {self.weights}, "
                             f"the weights of a {self.name} block")
        return columns // self.weights * self.bytes


TYPES: dict[str, BlockType] = {t.name: t for t in (
    BlockType("F32", 0, 1, 4), BlockType("F16", 1, 1, 2), BlockType("BF16", 30, 1, 2),
    BlockType("Q8_0", 8, 32, 34), BlockType("Q4_K", 12, 256, 144),
    BlockType("Q5_K", 13, 256, 176), BlockType("Q6_K", 14, 256, 210))}


@dataclass(frozen=True)
class BlockFields:
    """The integers and scales of quantised rows; w = d*scale*q - dmin*minimum."""

    q: Shorts
    """[rows, K]; for Q6_K already minus 32."""
    scale: Shorts | None
    """[rows, K/32], for Q6_K [rows, K/16]; None for Q8_0."""
    minimum: Shorts | None
    """[rows, K/32] for Q4_K and Q5_K."""
    d: Floats
    """[rows, K/256], for Q8_0 [rows, K/32]."""
    dmin: Floats | None
    """[rows, K/256] for Q4_K and Q5_K."""


def unpack_blocks(kind: str, raw: Bytes) -> BlockFields:
    """Unpack quantised rows u8[rows, bytes_per_row]; F32, F16 and BF16 raise `InputError`."""
    if kind not in _UNPACKERS:
        raise InputError(f"a {kind} tensor has no quantised blocks to unpack")
    return _UNPACKERS[kind](_reshape_blocks(kind, raw))


def dequantize(kind: str, raw: Bytes) -> Floats:
    """Decode rows of bytes [rows, bytes_per_row] into f32 weights [rows, K]."""
    if kind in _UNPACKERS:
        return _combine_fields(unpack_blocks(kind, raw))
    blocks = np.ascontiguousarray(_reshape_blocks(kind, raw))
    rows = blocks.shape[0]
    if kind == "BF16":
        wide = blocks.view("<u2").astype(np.uint32) << np.uint32(16)
        return wide.view(np.float32).reshape(rows, -1)
    return blocks.view("<f2" if kind == "F16" else "<f4").astype(np.float32).reshape(rows, -1)


def has_finite_scales(kind: str, raw: Bytes) -> bool:
    """Return whether every `d` and `dmin` of rows u8[rows, bytes_per_row] is finite.

    F32, F16 and BF16 have no scales: every weight must be finite.
    """
    size = TYPES[kind].bytes if kind in TYPES else 1
    span = max(1, _CHUNK // max(1, raw.shape[1] // size))
    return all(_all_finite(kind, raw[at:at + span]) for at in range(0, raw.shape[0], span))


def _all_finite(kind: str, raw: Bytes) -> bool:
    blocks = _reshape_blocks(kind, raw)
    if kind in _UNPACKERS:
        start, count = _SCALES[kind]
        blocks = blocks[..., start:start + 2 * count]
    wide = "<u4" if kind == "F32" else "<u2"
    exponent = {"F32": 0x7F800000, "BF16": 0x7F80}.get(kind, 0x7C00)
    bits = np.ascontiguousarray(blocks).view(wide)
    return not bool(np.any((bits & np.asarray(exponent, bits.dtype)) == exponent))


def _reshape_blocks(kind: str, raw: Bytes) -> Bytes:
    """Return raw rows as [rows, blocks, bytes of a block]."""
    if kind not in TYPES:
        raise InputError(f"weight type {kind} is not supported; known are {', '.join(TYPES)}")
    size = TYPES[kind].bytes
    if raw.dtype != np.uint8 or raw.ndim != 2 or raw.shape[1] % size:
        raise InputError(f"{kind} rows must be bytes [rows, a multiple of {size}], "
                         f"but are {raw.dtype} {list(raw.shape)}")
    return raw.reshape(raw.shape[0], raw.shape[1] // size, size)


def _read_f16(blocks: Bytes, at: int) -> Floats:
    """Return the f16 at byte `at` of each block, widened: [rows, blocks]."""
    pair = np.ascontiguousarray(blocks[..., at:at + 2])
    return pair.view("<f2")[..., 0].astype(np.float32)


def _flatten_rows(x: NDArray[np.generic]) -> Shorts:
    """Return [rows, blocks, ...] as int16 [rows, the rest]."""
    return x.astype(np.int16).reshape(x.shape[0], -1)


def _unpack_6bit(b: Bytes) -> tuple[Shorts, Shorts]:
    """Unpack 12 bytes [rows, blocks, 12] into eight scales and eight minima, each 0..63."""
    low, middle, high = b[..., :4], b[..., 4:8], b[..., 8:]
    scale = np.concatenate([low & 63, (high & 15) | (low >> 6) << 4], axis=-1)
    minimum = np.concatenate([middle & 63, (high >> 4) | (middle >> 6) << 4], axis=-1)
    return _flatten_rows(scale), _flatten_rows(minimum)


def _unpack_nibbles(b: Bytes) -> Bytes:
    """Unpack [..., 32c] into [..., 2c, 32]: each 32 low nibbles, then the 32 high ones."""
    chunks = b.reshape(*b.shape[:-1], -1, 1, 32)
    both = chunks >> np.array([0, 4], np.uint8).reshape(2, 1) & np.uint8(15)
    return both.reshape(*b.shape[:-1], -1, 32)


def _unpack_q4(blocks: Bytes) -> BlockFields:
    scale, minimum = _unpack_6bit(blocks[..., 4:16])
    return BlockFields(_flatten_rows(_unpack_nibbles(blocks[..., 16:])), scale, minimum,
                 _read_f16(blocks, 0), _read_f16(blocks, 2))


def _unpack_q5(blocks: Bytes) -> BlockFields:
    scale, minimum = _unpack_6bit(blocks[..., 4:16])
    bit = np.arange(8, dtype=np.uint8).reshape(8, 1)
    fifth = blocks[..., None, 16:48] >> bit & np.uint8(1)
    q = _unpack_nibbles(blocks[..., 48:]) | fifth << np.uint8(4)
    return BlockFields(_flatten_rows(q), scale, minimum, _read_f16(blocks, 0), _read_f16(blocks, 2))


def _unpack_q6(blocks: Bytes) -> BlockFields:
    lead = blocks.shape[:2]
    low = blocks[..., :128].reshape(*lead, 2, 1, 2, 32)
    low = low >> np.array([0, 4], np.uint8).reshape(2, 1, 1) & np.uint8(15)
    high = blocks[..., 128:192].reshape(*lead, 2, 1, 32)
    high = high >> np.array([0, 2, 4, 6], np.uint8).reshape(4, 1) & np.uint8(3)
    q = low.reshape(*lead, 256) | high.reshape(*lead, 256) << np.uint8(4)
    scale = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8)
    return BlockFields(_flatten_rows(q) - np.int16(32), _flatten_rows(scale), None,
                       _read_f16(blocks, 208), None)


def _unpack_q8(blocks: Bytes) -> BlockFields:
    q = np.ascontiguousarray(blocks[..., 2:]).view(np.int8)
    return BlockFields(_flatten_rows(q), None, None, _read_f16(blocks, 0), None)


def _combine_fields(parts: BlockFields) -> Floats:
    """Return the weights: ((d*scale)*q) - (dmin*minimum), [rows, K]."""
    rows, columns = parts.q.shape
    if parts.scale is None:
        return (parts.d[..., None] * parts.q.reshape(rows, -1, 32)).reshape(rows, columns)
    subs = parts.scale.shape[1]
    step = (parts.d[..., None] * parts.scale.reshape(*parts.d.shape, -1)).reshape(rows, subs, 1)
    w = step * parts.q.reshape(rows, subs, -1)
    if parts.minimum is not None and parts.dmin is not None:
        low = parts.dmin[..., None] * parts.minimum.reshape(*parts.d.shape, -1)
        w = w - low.reshape(rows, subs, 1)
    return w.reshape(rows, columns)


_UNPACKERS: dict[str, Callable[[Bytes], BlockFields]] = {
    "Q4_K": _unpack_q4, "Q5_K": _unpack_q5, "Q6_K": _unpack_q6, "Q8_0": _unpack_q8}
_CHUNK = 1 << 20
"""Blocks looked at together, so that a large tensor needs little memory."""
_SCALES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208, 1), "Q8_0": (0, 1)}
