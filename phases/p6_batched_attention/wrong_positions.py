"""Wrong rotations: one token turned at another's position, or by other pairs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from engine import ops


def positions_from_zero(x: Tensor, table: Tensor, positions: Any, out: Tensor) -> None:
    ops.rotate(x, table, list(range(len(x))), out)


def position_of_the_first(x: Tensor, table: Tensor, positions: Any, out: Tensor) -> None:
    ops.rotate(x, table, [int(positions[0])] * len(x), out)


def chunk_shares_a_position(x: Tensor, table: Tensor, positions: Any, out: Tensor) -> None:
    shared: list[int] = []
    for i, place in enumerate(int(p) for p in positions):
        follows = i and place == int(positions[i - 1]) + 1
        shared.append(shared[-1] if follows else place)
    ops.rotate(x, table, shared, out)


class KeepsOffset:
    """Rotates by positions plus an offset that the last call left."""

    def __init__(self) -> None:
        self.last = 0

    def __call__(self, x: Tensor, table: Tensor, positions: Any, out: Tensor) -> None:
        moved = [(int(p) + self.last) % len(table) for p in positions]
        self.last = 1 if len(set(map(int, positions))) > 1 else self.last
        ops.rotate(x, table, moved, out)


def neighbours_are_pairs(x: Tensor, table: Tensor, positions: Any, out: Tensor) -> None:
    n = 2 * table.shape[2]
    apart = torch.cat([x[..., 0:n:2], x[..., 1:n:2], x[..., n:]], -1)
    turned = torch.empty_like(apart)
    ops.rotate(apart, table, [int(p) for p in positions], turned)
    out.copy_(turned)
    out[..., 0:n:2], out[..., 1:n:2] = turned[..., :n // 2], turned[..., n // 2:n]


def every_dimension_turns(x: Tensor, table: Tensor, positions: Any, out: Tensor) -> None:
    times = x.shape[-1] // (2 * table.shape[2])
    ops.rotate(x, table.repeat(1, 1, times), [int(p) for p in positions], out)
