"""The inputs of a graph that change with each step: one buffer, written in place."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Self

import numpy as np
import torch
from torch import Tensor

from engine.path import RowOperands, Rows
from engine.state import CACHED, Ints, Pool, Refs, Table


@dataclass(frozen=True)
class Followed(Refs):
    """State at the addresses in a graph's input, which may point into any pool.

    `all_slots` is the spare slot's tensor; kernels take strides and types from it.
    """

    shape: tuple[int, ...] = ()
    """Shape of the state at an address, for ops on the host."""

    @property
    def views(self) -> list[Tensor]:
        """Views of the memory that the input points at now."""
        assert self.device_pointers is not None
        return [_at(address, self.shape, self.all_slots.dtype)
                for address in self.device_pointers.tolist()]


def _at(address: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    memory = (ctypes.c_byte * (prod(shape) * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).view(*shape)


@dataclass(frozen=True)
class FollowedTable(Table):
    """A table whose addresses are part of a graph's input."""

    reach: int = 0
    """Largest number of keys of a sequence in this graph."""

    def refs(self, kind: str, layer: int) -> Refs:
        """Return one kind of one layer, in row order."""
        whole = getattr(self.pool, kind)[layer]
        shape = (self.reach, *whole.shape[2:]) if kind in CACHED else tuple(whole.shape[1:])
        return Followed(whole, self.slots, self.pointers[self.pool.places[kind, layer]], shape)


@dataclass(frozen=True)
class Inputs:
    """A graph's inputs for `width` rows; padding rows point to the spare slot."""

    raw: Tensor
    tokens: Tensor
    positions: Tensor
    live: Tensor
    """i64[width], the increment of a row per step: 1 for a real row, 0 for padding."""
    pointers: Tensor
    """u64[layers of every kind, width]."""
    lengths: Tensor
    """i32[width]."""

    @classmethod
    def make(cls, places: int, width: int, device: str) -> Self:
        """Allocate inputs in one buffer."""
        words = (3 + places) * width
        raw = torch.zeros(8 * words + 4 * width, dtype=torch.uint8, device=device)
        numbers = raw[:8 * words].view(torch.int64).view(-1, width)
        return cls(raw, numbers[0], numbers[1], numbers[2], numbers[3:].view(torch.uint64),
                   raw[8 * words:].view(torch.int32))

    def fill(self, spare: Pool, pool: Pool | None, tokens: Sequence[int], rows: Rows) -> None:
        """Write a step's rows and then padding, without a host synchronisation."""
        width, m = len(self.tokens), len(rows.slots)
        words = np.zeros((len(self.pointers) + 3, width), np.uint64)  # NumPy is faster here
        lengths = np.zeros(width, np.int32)
        if m < width:
            words[3:, m:] = spare.addresses((0,)).numpy()
        if pool is not None:
            words[:3, :m] = tokens, rows.positions, [1] * m
            words[3:, :m] = pool.addresses(rows.slots).numpy()
            lengths[:m] = rows.positions
        host = torch.from_numpy(np.frombuffer(bytearray(words.tobytes() + lengths.tobytes()),
                                              np.uint8))
        self.raw.copy_(host.pin_memory() if self.raw.is_cuda else host, non_blocking=True)

    def rows(self, spare: Pool, reach: int) -> Rows:
        """Return rows that read these inputs, for sequences of up to `reach` tokens."""
        width = len(self.tokens)
        lengths = Ints((reach - 1,) * width)  # host side: the launch dimensions
        lengths.device_copy = self.lengths
        table = FollowedTable(spare, (0,) * width, self.pointers, reach)
        operands = RowOperands(self.positions, lengths, Ints((1,) * width), table, reach)
        return Rows((0,) * width, (reach - 1,) * width, (1,) * width, operands)

    def advance(self, chosen: Tensor) -> None:
        """Set the next tokens to `chosen` i64[width] and advance the positions; padding stays."""
        self.tokens.copy_(chosen.clamp(min=0))
        self.positions.add_(self.live)
        self.lengths.add_(self.live.to(torch.int32))
