"""ordered product of m rows in one launch; each weight block is decoded once for all rows.

Each pair of weight row and activation row has 256 lanes, which add products in order; then adjacent
pairs are added. `tl.sum` is not used, because the compiler chooses its order. Quants and scales are
loaded as bytes, each once, because blocks of 34 and 210 bytes are aligned to two bytes only.
"""

# mypy: ignore-errors
from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from engine.blocks import TYPES
from engine.kernels import launch
from engine.kernels.decode import CODES, load_group, typed_bytes
from engine.weights import ORDERED, Weight

ARITHMETIC = ORDERED
TILES = {1: (8, 4), 4: (4, 4), 16: (4, 8), 64: (1, 8)}
"""Largest m: (weight rows per program, warps). They affect no bit."""
NOT_SPECIALISED = ("n", "k", "m", "x_stride", "out_stride", "row_bytes")


@triton.jit
def pair_sums(x, WIDTH: tl.constexpr, STEPS: tl.constexpr):
    """Add adjacent pairs of x[WIDTH] STEPS times: [WIDTH >> STEPS]."""
    for step in tl.static_range(STEPS):
        left, right = tl.split(tl.reshape(x, [WIDTH >> (step + 1), 2]))
        x = left + right
    return x


@triton.jit(do_not_specialize=NOT_SPECIALISED, do_not_specialize_on_alignment=["out"])
def _gemv_rows(weight, x, out, n, k, m, x_stride, out_stride, row_bytes, KIND: tl.constexpr,
               N: tl.constexpr, M: tl.constexpr):
    weight_row = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    row_valid = weight_row < n
    row = tl.arange(0, M)
    lane = tl.arange(0, 256)
    first = x + row.to(tl.int64)[:, None] * x_stride
    sums = tl.zeros([M, N, 256], tl.float32)
    for group in range((k + 255) // 256):
        w = load_group(weight, weight_row, row_valid, group, k, row_bytes, KIND, N)
        column = group * 256 + lane
        value = tl.load(first + column[None, :], mask=(row < m)[:, None] & (column < k)[None, :],
                        other=0.0)
        sums = sums + value[:, None, :] * w[None, :, :]
    y = pair_sums(tl.reshape(sums, [M * N * 256]), M * N * 256, 8)
    at = out + row.to(tl.int64)[:, None] * out_stride + weight_row[None, :]
    tl.store(at, tl.reshape(y, [M, N]), mask=(row < m)[:, None] & row_valid[None, :])


def supports(case: Any) -> str | None:
    """Return why a case is not supported, or None. Every type that the engine reads is."""
    kind = case.given.get("kind")
    return None if kind in CODES else f"{kind} has no ordered product here"


def gemv_rows(weight: Weight, x: Tensor, out: Tensor) -> None:
    """Write W x for every row of x f32[m, K] into out f32[m, N]; 64 rows per launch.

    Rows may have any stride; the values of a row are contiguous.
    """
    raw = typed_bytes(weight, x.device)
    for row in range(0, len(x), max(TILES)):
        _launch(weight, raw, x[row:row + max(TILES)], out[row:row + max(TILES)])


def _launch(weight: Weight, raw: Tensor, x: Tensor, out: Tensor) -> None:
    m = len(x)
    tile = next(tile for tile in TILES if m <= tile)
    rows, warps = TILES[tile]
    launch(_gemv_rows, (triton.cdiv(weight.n, rows),), raw, x, out, weight.n, weight.k, m,
           x.stride(0), out.stride(0), TYPES[weight.kind].row_bytes(weight.k),
           KIND=CODES[weight.kind], N=rows, M=tile, num_warps=warps)
