"""Packs weight blocks into tensor-core fragment order: the same bits in the order lanes read them.

A tile is 16 rows of one group of 256 columns: quants as [quad][32 lanes][4 words], then 16 bytes of
scales per row, then (not Q8_0) d and dmin as two f16 per row. `tiles.cuh` documents the fragment of
a lane. `unpack` is the inverse; a test uses it to check that packing loses nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

CODE = {"Q4_K": 4, "Q5_K": 5, "Q6_K": 6, "Q8_0": 8}
QUADS = {"Q4_K": 4, "Q5_K": 5, "Q6_K": 6, "Q8_0": 8}
ROWS = 32
"""Rows are padded with zero blocks to a multiple of ROWS."""


def tile_bytes(kind: str) -> int:
    """Return the bytes of one packed tile."""
    return QUADS[kind] * 512 + 256 + (0 if kind == "Q8_0" else 64)


def pack(kind: str, raw: Tensor, size: int) -> Tensor:
    """Return tiles u8[T, G, bytes] of block bytes u8[N, row bytes]; `size` is a block's bytes.

    T counts tiles of 16 rows, even; G counts groups of 256 columns.
    """
    raw = torch.nn.functional.pad(raw, (0, 0, 0, -len(raw) % ROWS))
    blocks = raw.view(len(raw), -1, size)
    if kind == "Q8_0":
        blocks = torch.nn.functional.pad(blocks, (0, 0, 0, -blocks.shape[1] % 8))
        quants = [_fragments(blocks[..., 2:].reshape(len(raw), -1, 8 * 32))]
        return torch.cat([*quants, _by_row(blocks[..., :2].reshape(len(raw), -1, 16))], dim=2)
    if kind == "Q6_K":
        quants = [_fragments(blocks[..., :128]), _fragments(blocks[..., 128:192] ^ 0xAA)]
        d = torch.nn.functional.pad(blocks[..., 208:], (0, 2))
        return torch.cat([*quants, _by_row(blocks[..., 192:208]), _by_row(d)], dim=2)
    start = 48 if kind == "Q5_K" else 16
    quants = [_fragments(blocks[..., start:])]
    if kind == "Q5_K":
        quants.append(_fragments(blocks[..., 16:48]))
    return torch.cat([*quants, _by_row(_plain_scales(blocks[..., 4:16])), _by_row(blocks[..., :4])],
                     dim=2)


def _fragments(x: Tensor) -> Tensor:
    """Return bytes [N, G, 32 c] as [T, G, c quads of 32 lanes of 4 words]."""
    n, groups, width = x.shape
    # tile, +8, g, group, c, half, t, byte
    parts = x.reshape(n // 16, 2, 8, groups, width // 32, 2, 4, 4)
    return parts.permute(0, 3, 4, 2, 6, 5, 1, 7).reshape(n // 16, groups, -1)


def _by_row(x: Tensor) -> Tensor:
    """Return bytes [N, G, b] as [T, G, 16 b]."""
    n, groups, width = x.shape
    return x.reshape(n // 16, 16, groups, width).transpose(1, 2).reshape(n // 16, groups, -1)


def _plain_scales(b: Tensor) -> Tensor:
    """Return eight scales and eight minima of the 12 packed bytes, a byte each."""
    low, middle, high = b[..., :4], b[..., 4:8], b[..., 8:]
    return torch.cat([low & 63, (high & 15) | (low >> 6 << 4),
                      middle & 63, (high >> 4) | (middle >> 6 << 4)], dim=-1)


def unpack(kind: str, tiles: Tensor, n: int, k: int) -> Tensor:
    """Return the block bytes u8[n, row bytes] that `pack` was given."""
    quants, rest = tiles.split([QUADS[kind] * 512, tiles.shape[2] - QUADS[kind] * 512], dim=2)
    bytes_of = _unfragment(quants)
    if kind == "Q8_0":
        d = _rows(rest, 16).reshape(len(bytes_of), -1, 2)
        blocks = torch.cat([d, bytes_of.reshape(len(bytes_of), -1, 32)], dim=2)
        return blocks[:n, :k // 32].reshape(n, -1)
    scales, d = _rows(rest[..., :256], 16), _rows(rest[..., 256:], 4)
    if kind == "Q6_K":
        parts = [bytes_of[..., :128], bytes_of[..., 128:] ^ 0xAA, scales, d[..., :2]]
    elif kind == "Q5_K":
        parts = [d, _packed_scales(scales), bytes_of[..., 128:], bytes_of[..., :128]]
    else:
        parts = [d, _packed_scales(scales), bytes_of]
    return torch.cat(parts, dim=2)[:n].reshape(n, -1)


def _unfragment(x: Tensor) -> Tensor:
    tiles, groups, width = x.shape
    parts = x.reshape(tiles, groups, width // 512, 8, 4, 2, 2, 4)  # c, g, t, half, +8, byte
    return parts.permute(0, 6, 3, 1, 2, 5, 4, 7).reshape(tiles * 16, groups, -1)


def _rows(x: Tensor, width: int) -> Tensor:
    tiles, groups, _ = x.shape
    return x.reshape(tiles, groups, 16, width).transpose(1, 2).reshape(tiles * 16, groups, width)


def _packed_scales(x: Tensor) -> Tensor:
    scale, minimum = x[..., :8], x[..., 8:]
    return torch.cat([scale[..., :4] | (scale[..., 4:] >> 4 << 6),
                      minimum[..., :4] | (minimum[..., 4:] >> 4 << 6),
                      (scale[..., 4:] & 15) | (minimum[..., 4:] << 4)], dim=-1)
