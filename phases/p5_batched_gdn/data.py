"""Inputs of P5's ops: tokens of sequences and states, the same on every machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from engine.config import CONV_TAPS, STATE_SIZE
from engine.state import Refs

Inputs = tuple[Tensor, ...]
DENORMAL = 1e-45
GATE_VALUES = {
    "plain": None,
    "extreme": ([0.0, 1.0, DENORMAL, 1.1754944e-38, 0.5, -0.0], [1.0, 0.0, DENORMAL, 0.25, -0.0]),
    "zeros": ([1.0, 0.5], [1.0, 0.0]),
    "huge": ([1.0, 0.9], [1.0]),
    "broken": ([1.0, 0.9], [1.0, torch.nan]),
}
"""Decays and write strengths of a flavour, used in turn; None means drawn values."""
FLAVOURS = tuple(GATE_VALUES)


def draw_normal(seed: int, *shape: int) -> Tensor:
    """Return normal values f32[shape] for a seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def apply_flavour(x: Tensor, flavour: str) -> Tensor:
    """Return `x` with a share of its values replaced by the edge values of a flavour."""
    flat = x.flatten().clone()
    if flavour == "zeros":
        flat = torch.where(flat > 0.7, flat, torch.where(flat > 0, 0.0, -0.0))
        flat.view(x.shape)[..., ::5] = -0.0
    elif flavour == "huge":
        flat = flat * torch.tensor([1e18, 1e-18, 3e-39, 1.0]).repeat(len(flat) // 4 + 1)[:len(flat)]
    elif flavour == "broken":
        flat[3::97], flat[5::89], flat[11::83] = torch.nan, torch.inf, -torch.inf
    return flat.view(x.shape)


@dataclass(frozen=True)
class Row:
    """A row of a call: its slot, and the inputs of its tokens."""

    slot: int
    inputs: Inputs

    @property
    def count(self) -> int:
        """Tokens of the row."""
        return len(self.inputs[0])

    def slice_tokens(self, first: int, count: int, slot: int | None = None) -> Row:
        """Return a row of `count` tokens from `first`, on `slot` or the same slot."""
        return Row(self.slot if slot is None else slot,
                   tuple(x[first:first + count] for x in self.inputs))


@dataclass(frozen=True)
class Convolution:
    """The causal convolution over every channel of a layer."""

    key_heads: int
    value_heads: int
    name: str = "conv_step"

    @property
    def channels(self) -> int:
        """Channels of all queries, keys and values."""
        return (2 * self.key_heads + self.value_heads) * STATE_SIZE

    @property
    def state_shape(self) -> tuple[int, ...]:
        """Shape of a slot's window."""
        return (self.channels, CONV_TAPS - 1)

    def draw_tokens(self, seed: int, count: int, flavour: str = "plain") -> Inputs:
        """Return x [count, C]."""
        return (apply_flavour(draw_normal(seed, count, self.channels), flavour),)

    def lay_out(self, inputs: Inputs, gap: int, device: str) -> tuple[Inputs, Tensor]:
        """Return x with NaN after every token, and the buffer it is a view of."""
        buffer = torch.full((len(inputs[0]), self.channels + gap), torch.nan)
        buffer[:, :self.channels] = inputs[0]
        buffer = buffer.to(device)
        return (buffer[:, :self.channels],), buffer

    def out_shape(self, inputs: Inputs) -> tuple[int, ...]:
        """Return the shape of x."""
        return tuple(inputs[0].shape)

    @cached_property
    def constants(self) -> dict[str, Tensor]:
        """The taps [C, 4], the same for all rows."""
        return {"taps": draw_normal(7, self.channels, CONV_TAPS)}

    def call(self, function: Any, inputs: Inputs, refs: Refs, counts: tuple[int, ...],
             out: Tensor) -> None:
        """Run an implementation."""
        function(inputs[0], self.constants["taps"].to(out.device), refs, counts, out)


@dataclass(frozen=True)
class DeltaRule:
    """The gated delta rule over every value head of a layer."""

    key_heads: int
    value_heads: int
    name: str = "delta_step"

    @property
    def state_shape(self) -> tuple[int, ...]:
        """Shape of a slot's state."""
        return (self.value_heads, STATE_SIZE, STATE_SIZE)

    def draw_tokens(self, seed: int, count: int, flavour: str = "plain") -> Inputs:
        """Return q, k [count, key heads, 128], v [count, V, 128], g and beta [count, V]."""
        heads = (self.key_heads, self.key_heads, self.value_heads)
        q, k, v = (apply_flavour(draw_normal(3 * seed + i, count, n, STATE_SIZE), flavour)
                   for i, n in enumerate(heads))
        if flavour == "zeros":  # one head is all zeros; every addend of token 0's sums is -0
            q[0], k[0], q[:, 0], k[:, 0] = q[0].abs(), k[0].abs(), 0.0, 0.0
        values = GATE_VALUES[flavour]
        if values is None:
            g, beta = (
                torch.sigmoid(draw_normal(5000 + 2 * seed + i, count, self.value_heads) + 2 * i)
                for i in (1, 0))
        else:
            size = count * self.value_heads
            g, beta = (torch.tensor((some * size)[:size]).view(count, -1) for some in values)
        return q, k, v, g, beta

    def lay_out(self, inputs: Inputs, gap: int, device: str) -> tuple[Inputs, Tensor]:
        """Return the inputs with NaN after every token of q, k and v, and the buffer of those.

        An odd gap puts q, k and v of a token next to each other, as the convolution writes them.
        An even gap gives each of them a block and a stride of its own.
        """
        *qkv, g, beta = inputs
        flat = [x.flatten(1) for x in qkv]
        blocks = [torch.cat(flat, 1)] if gap % 2 else flat
        padded = [torch.nn.functional.pad(x, (0, gap + 4 * i), value=torch.nan)
                  for i, x in enumerate(blocks)]
        buffer = torch.cat([x.flatten() for x in padded]).to(device)
        split = buffer.split([x.numel() for x in padded])
        views = [x.view(wide.shape)[:, :block.shape[1]]
                 for x, wide, block in zip(split, padded, blocks, strict=True)]
        if gap % 2:
            views = list(views[0].split([x.shape[1] for x in flat], 1))
        q, k, v = (x.unflatten(1, (-1, STATE_SIZE)) for x in views)
        return (q, k, v, g.to(device), beta.to(device)), buffer

    def out_shape(self, inputs: Inputs) -> tuple[int, ...]:
        """Return the shape of v."""
        return tuple(inputs[2].shape)

    @property
    def constants(self) -> dict[str, Tensor]:
        """Empty: all inputs come with the tokens."""
        return {}

    def call(self, function: Any, inputs: Inputs, refs: Refs, counts: tuple[int, ...],
             out: Tensor) -> None:
        """Run an implementation."""
        function(*inputs, refs, counts, out)


Op = Convolution | DeltaRule
OPS: dict[str, type[Op]] = {"conv_step": Convolution, "delta_step": DeltaRule}
