"""Rotation of every head of t tokens in one launch, each token at its own position.

A program takes one head; the partner of a dimension is read again, from cache.
"""

# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import launch
from engine.state import to_device


@triton.jit
def _rotate(x, table, positions, out, x_token, x_head, out_token, out_head, PAIRS: tl.constexpr,
            DIM: tl.constexpr):
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    position = tl.load(positions + token).to(tl.int64)
    d = tl.arange(0, DIM)
    turned = d < 2 * PAIRS
    mine = x + token * x_token + head * x_head
    value = tl.load(mine + d)
    partner = tl.load(mine + tl.where(d < PAIRS, d + PAIRS, d - PAIRS), mask=turned, other=0.0)
    entry = table + position * (2 * PAIRS) + d % PAIRS
    cos = tl.load(entry, mask=turned, other=1.0)
    sin = tl.load(entry + PAIRS, mask=turned, other=0.0)
    low = value * cos - partner * sin
    high = value * cos + partner * sin
    value = tl.where(d < PAIRS, low, tl.where(turned, high, value))
    tl.store(out + token * out_token + head * out_head + d, value)


def rotate(x: Tensor, table: Tensor, positions: Tensor | list[int], out: Tensor) -> None:
    """Write x f32[t, heads, dim] rotated at each token's own position into `out`.

    table is f32[positions, 2, pairs], contiguous; values of a head are neighbours.
    """
    if not len(x):
        return
    positions = to_device(torch.as_tensor(positions), x.device)
    launch(_rotate, tuple(x.shape[:2]), x, table, positions, out, x.stride(0), x.stride(1),
           out.stride(0), out.stride(1), PAIRS=table.shape[2], DIM=x.shape[2])
