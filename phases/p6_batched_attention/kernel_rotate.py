"""Rotary embedding of every head of t tokens in one launch, each token at its own position.

A program processes one head. It loads each dimension's partner a second time, from cache.
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
    rotated = d < 2 * PAIRS
    x_ptr = x + token * x_token + head * x_head
    value = tl.load(x_ptr + d)
    partner = tl.load(x_ptr + tl.where(d < PAIRS, d + PAIRS, d - PAIRS), mask=rotated, other=0.0)
    table_ptr = table + position * (2 * PAIRS) + d % PAIRS
    cos = tl.load(table_ptr, mask=rotated, other=1.0)
    sin = tl.load(table_ptr + PAIRS, mask=rotated, other=0.0)
    first_half = value * cos - partner * sin
    second_half = value * cos + partner * sin
    value = tl.where(d < PAIRS, first_half, tl.where(rotated, second_half, value))
    tl.store(out + token * out_token + head * out_head + d, value)


def rotate(x: Tensor, table: Tensor, positions: Tensor | list[int], out: Tensor) -> None:
    """Write x f32[t, heads, dim] rotated at each token's own position into `out`.

    table is f32[positions, 2, pairs], contiguous; the values of a head are contiguous.
    """
    if not len(x):
        return
    positions = to_device(torch.as_tensor(positions), x.device)
    launch(_rotate, tuple(x.shape[:2]), x, table, positions, out, x.stride(0), x.stride(1),
           out.stride(0), out.stride(1), PAIRS=table.shape[2], DIM=x.shape[2])
