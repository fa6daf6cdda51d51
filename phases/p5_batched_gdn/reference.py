"""The recurrent ops of a GDN layer for all rows at once, in plain PyTorch: dull on purpose.

Letters: t tokens of all rows, m rows, C = conv_dim, V value heads. Row i has counts[i] tokens,
which stand next to each other and are taken in order, and any slot of its own. States of a bunch of
rows are gathered, all of them that have a next token move on together, and each state goes back to
its slot at the end. A row without tokens is left out, and its slot with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from engine.arithmetic import l2_norm, silu
from engine.ops import L2_EPS, gates
from engine.state import Refs

__all__ = ["conv_step", "delta_step", "gates"]  # gates already takes all rows at once


BUNCH = 1 << 18
"""Values of state that move on together: what a cache holds, and no bit depends on it."""


@dataclass(frozen=True)
class Bunch:
    """Rows that move on together, those with most tokens first, so that who is left is a prefix."""

    rows: list[int]
    counts: tuple[int, ...]
    """Tokens of every row of the step."""

    @staticmethod
    def of(counts: tuple[int, ...], refs: Refs) -> Iterator[Bunch]:
        """Yield the rows that have tokens, in bunches."""
        busy = [row for row, count in enumerate(counts) if count]
        busy.sort(key=lambda row: -counts[row])
        size = max(1, BUNCH // refs.all_slots[0].numel())
        for first in range(0, len(busy), size):
            yield Bunch(busy[first:first + size], counts)

    def turns(self) -> Iterator[list[int]]:
        """Yield for each turn the tokens that are taken, one of each row that has one left."""
        starts = list(accumulate(self.counts, initial=0))
        for turn in range(self.counts[self.rows[0]]):
            yield [starts[row] + turn for row in self.rows if self.counts[row] > turn]

    def gather(self, refs: Refs) -> Tensor:
        """Return copies of the rows' states, [rows, ...]."""
        views = refs.views
        return torch.stack([views[row] for row in self.rows])

    def scatter(self, refs: Refs, states: Tensor) -> None:
        """Write each row's state into its slot."""
        views = refs.views
        for row, state in zip(self.rows, states, strict=True):
            views[row].copy_(state)


def conv_step(x: Tensor, taps: Tensor, windows: Refs, counts: tuple[int, ...],
              out: Tensor) -> None:
    """Write the SiLU of the causal convolution of x[t, C] into out[t, C]; shift the windows.

    taps is [C, 4]; tap 3 multiplies the present token, window[:, 0] is the oldest.
    """
    for bunch in Bunch.of(counts, windows):
        held = bunch.gather(windows)
        for at in bunch.turns():
            window, present = held[:len(at)], x[at]
            a, b, c = window.unbind(2)
            y = ((taps[:, 0] * a + taps[:, 1] * b) + taps[:, 2] * c) + taps[:, 3] * present
            out[at] = silu(y)
            window.copy_(torch.stack([b, c, present], dim=2))
        bunch.scatter(windows, held)


def delta_step(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, states: Refs,
               counts: tuple[int, ...], out: Tensor) -> None:
    """Advance the gated delta rule for each row's tokens in order; write reads into out[t, V, 128].

    q and k are [t, key_heads, 128] as the convolution left them, v is [t, V, 128]; value head h
    uses key head h mod key_heads. Decay first, read after decay, output after write.
    """
    groups = v.shape[1] // k.shape[1]
    q = (l2_norm(q, L2_EPS) * scale_of(q)).repeat(1, groups, 1).unsqueeze(3)
    k = l2_norm(k, L2_EPS).repeat(1, groups, 1).unsqueeze(3)
    for bunch in Bunch.of(counts, states):
        held = bunch.gather(states)
        for at in bunch.turns():
            state = held[:len(at)]
            state.mul_(alpha[at][:, :, None, None])
            v_new = beta[at].unsqueeze(2) * (v[at] - over_keys(state * k[at]))
            state.add_(k[at] * v_new.unsqueeze(2))
            out[at] = over_keys(state * q[at])
        bunch.scatter(states, held)


def scale_of(q: Tensor) -> float:
    """Return f32(1 / sqrt(width)), by which queries are multiplied."""
    return float(torch.tensor(q.shape[-1] ** -0.5, dtype=torch.float32))


def over_keys(x: Tensor) -> Tensor:
    """Return SUM over the keys of x[..., keys, values]: adjacent pairs, rows of values at a time.

    128 keys have a lane each, and a lane begins at +0, which tells only where every addend is -0:
    added last it gives the same bits.
    """
    while x.shape[-2] > 1:
        x = x[..., 0::2, :] + x[..., 1::2, :]
    return x[..., 0, :] + 0.0
