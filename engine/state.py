"""Per-sequence state: a pool of slots, each with KV rows, conv window and recurrent state.

Tensors are keyed by the layer's index in the model: conv[layer] is [slots, conv_dim, 3] (oldest
tap first), delta[layer] is [slots, value_heads, key, value], k and v[layer] are
[slots, capacity, kv_heads, 256]. All are f32; k and v may be narrower (arithmetic.md, item 27).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from engine.config import Config
from engine.errors import InputError

RECURRENT = ("conv", "delta")
CACHED = ("k", "v")
KV_TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
"""Types of stored keys and values, by the name that a user passes."""


def kv_type(name: str) -> torch.dtype:
    """Return the torch type of a KV type's name; raise `InputError` for an unknown name."""
    if name not in KV_TYPES:
        raise InputError(f"unknown KV type {name!r}: use one of {', '.join(KV_TYPES)}")
    return KV_TYPES[name]


class Ints(tuple[int, ...]):
    """One integer for each row of a step: a tuple on the host, copied to a device on first use."""

    device_copy: Tensor | None = None

    def on(self, device: torch.device | str) -> Tensor:
        """Return the integers as i32[m] on a device; the copy is cached and asynchronous."""
        if self.device_copy is None:
            self.device_copy = to_device(torch.tensor(self, dtype=torch.int32), device)
        return self.device_copy

    @cached_property
    def starts(self) -> Ints:
        """Offsets of each row's first token among all tokens, then the total: m + 1 integers."""
        return Ints(accumulate(self, initial=0))


def to_device(values: Tensor, device: torch.device | str) -> Tensor:
    """Return values on a device; a copy from the host to CUDA is asynchronous."""
    if values.is_cuda or torch.device(device).type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


@dataclass(frozen=True)
class Refs:
    """One layer's state of the slots that a step names, in row order."""

    all_slots: Tensor
    """The state of every slot of the pool, [slots, ...]."""
    slots: tuple[int, ...]
    device_pointers: Tensor | None = None
    """The slots' addresses, u64[m], if they are on the device already."""

    @property
    def whole(self) -> Tensor:
        """The older name of `all_slots`, for candidates that use it."""
        return self.all_slots

    @property
    def views(self) -> list[Tensor]:
        """One view for each row; writing into a view writes the slot."""
        return [self.all_slots[slot] for slot in self.slots]

    @property
    def pointers(self) -> Tensor:
        """Addresses of the slots, u64[m], on the state's device, for kernels."""
        if self.device_pointers is not None:
            return self.device_pointers
        stride = self.all_slots.stride(0) * self.all_slots.element_size()
        first = self.all_slots.data_ptr()
        return to_device(torch.tensor([first + slot * stride for slot in self.slots],
                                      dtype=torch.uint64), self.all_slots.device)


@dataclass(frozen=True)
class Table:
    """Addresses of every layer's state of the slots that a step names, copied once a step."""

    pool: Pool
    slots: tuple[int, ...]
    pointers: Tensor
    """u64[layers of every kind, m] on the state's device, in the order of `Pool.places`."""

    def refs(self, kind: str, layer: int) -> Refs:
        """Return one kind ("conv", "delta", "k" or "v") of one layer, in row order."""
        pointers = self.pointers[self.pool.places[kind, layer]]
        return Refs(getattr(self.pool, kind)[layer], self.slots, pointers)


class Pool:
    """State for `slots` sequences of up to `capacity` tokens; every slot starts as zeros."""

    def __init__(self, config: Config, slots: int, capacity: int, device: str = "cpu",
                 kv: str = "f32") -> None:
        if slots < 1:
            raise InputError(f"a pool of {slots} slots is refused: use at least 1")
        if not 0 < capacity <= config.context:
            raise InputError(f"a capacity of {capacity} tokens is refused: use 1 to "
                             f"{config.context}, the model's context")
        self.config, self.slots, self.capacity, self.device = config, slots, capacity, device
        self.kv, dtype = kv, kv_type(kv)
        gdn, attn = config.gdn_layers, config.attention_layers
        window = (slots, config.conv_dim, config.conv_kernel - 1)
        square = (slots, config.value_heads, config.state_size, config.state_size)
        rows = (slots, capacity, config.kv_heads, config.head_dim)
        self.conv = {i: torch.zeros(window, device=device) for i in gdn}
        self.delta = {i: torch.zeros(square, device=device) for i in gdn}
        self.k = {i: torch.zeros(rows, dtype=dtype, device=device) for i in attn}
        self.v = {i: torch.zeros(rows, dtype=dtype, device=device) for i in attn}

    def slot(self, index: int) -> State:
        """Return the view of one slot."""
        if not 0 <= index < self.slots:
            raise InputError(f"slot {index} is outside the pool of {self.slots} slots")
        return State(self, index)

    def refs(self, kind: str, layer: int, slots: Sequence[int]) -> Refs:
        """Return one kind ("conv", "delta", "k" or "v") of one layer for slots in row order."""
        return Refs(getattr(self, kind)[layer], tuple(slots))

    @cached_property
    def places(self) -> dict[tuple[str, int], int]:
        """The row of each (kind, layer) in a table of addresses."""
        every = [(kind, layer) for kind in (*RECURRENT, *CACHED) for layer in getattr(self, kind)]
        return {key: row for row, key in enumerate(every)}

    def addresses(self, slots: Sequence[int]) -> Tensor:
        """Return the addresses of slots on the host, u64[layers of every kind, m]."""
        first, stride = self._base_and_stride
        return torch.from_numpy(first + stride * np.array(slots, np.uint64))

    @cached_property
    def _base_and_stride(self) -> tuple[np.ndarray, np.ndarray]:
        """Address of slot 0 and bytes between slots for each place, both u64[places, 1]."""
        tensors = [getattr(self, kind)[layer] for kind, layer in self.places]
        first = [[tensor.data_ptr()] for tensor in tensors]
        stride = [[tensor.stride(0) * tensor.element_size()] for tensor in tensors]
        return np.array(first, np.uint64), np.array(stride, np.uint64)

    def table(self, slots: Sequence[int]) -> Table:
        """Return the table of slots in row order, with its addresses on the device."""
        return Table(self, tuple(slots), to_device(self.addresses(slots), self.device))

    @property
    def nbytes(self) -> int:
        """Bytes of all slots together."""
        return sum(tensor.nbytes for kind in (*RECURRENT, *CACHED)
                   for tensor in getattr(self, kind).values())


@dataclass(frozen=True)
class State:
    """A view of one slot of a pool; writing here writes the pool."""

    pool: Pool
    index: int

    def named(self, length: int | None = None) -> dict[str, Tensor]:
        """Return every tensor of the slot by name (`3.conv`), KV cut to `length` rows if given."""
        tensors = {}
        for kind in (*RECURRENT, *CACHED):
            for layer, tensor in getattr(self.pool, kind).items():
                view = tensor[self.index]
                tensors[f"{layer}.{kind}"] = view[:length] if kind in CACHED else view
        return tensors

    def digest(self, length: int | None = None) -> str:
        """Return the sha256 of the bits, every NaN as one pattern, KV cut to `length` rows."""
        digest = hashlib.sha256()
        for name, view in self.named(length).items():
            plain = torch.where(torch.isnan(view), torch.nan, view).cpu().contiguous()
            digest.update(name.encode() + plain.view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def clear(self) -> None:
        """Zero the conv window and the recurrent state.

        KV rows stay unchanged: a sequence reads only rows that it wrote.
        """
        for kind in RECURRENT:
            for tensor in getattr(self.pool, kind).values():
                tensor[self.index].zero_()

    def copy_to(self, other: State) -> None:
        """Copy every tensor of this slot into another slot of the same shape."""
        for name, view in other.named().items():
            view.copy_(self.named()[name])


@dataclass(frozen=True)
class Checkpoint:
    """A copy of a sequence's state after `position` tokens; it shares no memory with a slot."""

    position: int
    tensors: dict[str, Tensor]


def checkpoint(state: State, position: int) -> Checkpoint:
    """Copy a slot's state after `position` tokens; the slot can be reused at once."""
    if not 0 <= position <= state.pool.capacity:
        raise InputError(f"a checkpoint at position {position} is refused: use 0 to "
                         f"{state.pool.capacity}, the capacity")
    return Checkpoint(position, {k: v.clone() for k, v in state.named(position).items()})


def restore(saved: Checkpoint, state: State) -> None:
    """Write a checkpoint into a slot; KV rows past its position stay unchanged.

    A checkpoint that does not fit raises `InputError` and changes nothing.
    """
    if saved.position > state.pool.capacity:
        raise InputError(f"a checkpoint at position {saved.position} does not fit the capacity of "
                         f"{state.pool.capacity}")
    views = state.named(saved.position)
    for name, view in views.items():
        kind = saved.tensors[name].dtype
        if view.dtype != kind:
            raise InputError(f"a checkpoint with {name} in {kind} does not fit a pool that stores "
                             f"it in {view.dtype}")
    for name, view in views.items():
        view.copy_(saved.tensors[name])
