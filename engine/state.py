"""Per-sequence state: a pool of slots, each one's KV rows, conv window and recurrent state.

All f32, flat per slot, keyed by the layer's index in the model: conv[layer] is
[slots, conv_dim, 3] (oldest tap first), delta[layer] is [slots, value_heads, key, value], k and
v[layer] are [slots, capacity, kv_heads, 256].
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import Config
from engine.errors import InputError

RECURRENT = ("conv", "delta")
CACHED = ("k", "v")


@dataclass(frozen=True)
class Refs:
    """One layer's state of the slots a step names, in row order."""

    views: list[Tensor]
    """Views for the reference; writing into one writes the slot."""

    @property
    def pointers(self) -> Tensor:
        """Addresses, u64[m], on the state's device, for kernels."""
        return torch.tensor([view.data_ptr() for view in self.views], dtype=torch.uint64,
                            device=self.views[0].device)


class Pool:
    """State for `slots` sequences of up to `capacity` tokens; every slot starts fresh."""

    def __init__(self, config: Config, slots: int, capacity: int, device: str = "cpu") -> None:
        if slots < 1:
            raise InputError(f"a pool of {slots} slots is refused: at least 1")
        if not 0 < capacity <= config.context:
            raise InputError(f"a capacity of {capacity} tokens is refused: 1 to the model's "
                             f"context of {config.context}")
        self.config, self.slots, self.capacity, self.device = config, slots, capacity, device
        gdn, attn = config.gdn_layers, config.attention_layers
        window = (slots, config.conv_dim, config.conv_kernel - 1)
        square = (slots, config.value_heads, config.state_size, config.state_size)
        rows = (slots, capacity, config.kv_heads, config.head_dim)
        self.conv = {i: torch.zeros(window, device=device) for i in gdn}
        self.delta = {i: torch.zeros(square, device=device) for i in gdn}
        self.k = {i: torch.zeros(rows, device=device) for i in attn}
        self.v = {i: torch.zeros(rows, device=device) for i in attn}

    def slot(self, index: int) -> State:
        """Return the view of one slot."""
        if not 0 <= index < self.slots:
            raise InputError(f"slot {index} is outside the pool of {self.slots} slots")
        return State(self, index)

    def refs(self, kind: str, layer: int, slots: Sequence[int]) -> Refs:
        """Return one kind ("conv", "delta", "k" or "v") of one layer for slots in row order."""
        whole: Tensor = getattr(self, kind)[layer]
        return Refs([whole[slot] for slot in slots])

    @property
    def nbytes(self) -> int:
        """Bytes of state held, of all slots."""
        return sum(tensor.nbytes for kind in (*RECURRENT, *CACHED)
                   for tensor in getattr(self, kind).values())


@dataclass(frozen=True)
class State:
    """One slot of a pool: a view, so that what is written here is written there."""

    pool: Pool
    index: int

    def named(self, length: int | None = None) -> dict[str, Tensor]:
        """Return every tensor of the slot by name (`3.conv`), KV cut to `length` rows if given."""
        tensors = {}
        for kind in (*RECURRENT, *CACHED):
            for layer, whole in getattr(self.pool, kind).items():
                view = whole[self.index]
                tensors[f"{layer}.{kind}"] = view[:length] if kind in CACHED else view
        return tensors

    def digest(self, length: int | None = None) -> str:
        """Return the sha256 of the bits, every NaN as 0x7fc00000, KV cut to `length` rows."""
        digest = hashlib.sha256()
        for name, view in self.named(length).items():
            plain = torch.where(torch.isnan(view), torch.nan, view).cpu().contiguous()
            digest.update(name.encode() + plain.numpy().tobytes())
        return digest.hexdigest()

    def clear(self) -> None:
        """Make the slot fresh: conv window and recurrent state zero.

        KV rows stay as they are, since a sequence reads only rows that it wrote.
        """
        for kind in RECURRENT:
            for whole in getattr(self.pool, kind).values():
                whole[self.index].zero_()

    def copy_to(self, other: State) -> None:
        """Copy every tensor of this slot into another slot of the same shape."""
        for name, view in other.named().items():
            view.copy_(self.named()[name])


@dataclass(frozen=True)
class Checkpoint:
    """A sequence's whole state after `position` tokens, detached from any slot."""

    position: int
    tensors: dict[str, Tensor]


def checkpoint(state: State, position: int) -> Checkpoint:
    """Copy a slot's state after `position` tokens; the slot may be reused at once."""
    if not 0 <= position <= state.pool.capacity:
        raise InputError(f"a checkpoint at position {position} is refused: 0 to the capacity of "
                         f"{state.pool.capacity}")
    return Checkpoint(position, {k: v.clone() for k, v in state.named(position).items()})


def restore(saved: Checkpoint, state: State) -> None:
    """Write a checkpoint into a slot; KV rows past its position stay as they are."""
    if saved.position > state.pool.capacity:
        raise InputError(f"a checkpoint at position {saved.position} does not fit the capacity of "
                         f"{state.pool.capacity}")
    for name, view in state.named(saved.position).items():
        view.copy_(saved.tensors[name])
