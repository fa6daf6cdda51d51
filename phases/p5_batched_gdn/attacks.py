"""Seatings, splits, pads and gates that P5's falsifiers run its ops on."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from phases.p5_batched_gdn.data import Row, draw_normal
from phases.p5_batched_gdn.harness import Harness, PoisonedPool

EDGE_VALUES = (torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e-45, -1e-45, 87.0, -87.0, 88.0, 88.5,
               -103.0, 3e38, -3e38, 1.1754944e-38, 16.0)


def draw_sequence(harness: Harness, seed: int, length: int, slot: int,
                  flavour: str = "plain") -> Row:
    """Return the first tokens of a sequence, as a row of that slot."""
    return Row(slot, harness.op.draw_tokens(seed, length, flavour))


def build_batch(harness: Harness, m: int, longest: int, seed: int, flavour: str = "plain"
                ) -> tuple[PoisonedPool, list[Row], dict[int, Tensor]]:
    """Return a pool of m + 2 slots, m rows of 1 to `longest` tokens in it, and their states.

    Slots are drawn, so that a row's slot equals its number only by chance.
    """
    slots = random.Random(seed).sample(range(m + 2), m)
    rows = [draw_sequence(harness, seed + 7 * i, 1 + (2 - i) % longest, slot, flavour)
            for i, slot in enumerate(slots)]
    states = {slot: harness.draw_state(seed + slot, flavour) for slot in slots}
    return harness.build_pool(m + 2, states), rows, states


def row_placements(m: int, slots: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield orders of m rows with their slots: the first ones, the last, reversed, and drawn."""
    yield list(range(m)), list(range(m))
    yield list(range(m)), list(range(slots - m, slots))
    yield list(range(m))[::-1], list(range(slots - m, slots))
    draw = random.Random(m)
    for _ in range(2):
        yield draw.sample(range(m), m), draw.sample(range(slots), m)


def splits(length: int, which: str) -> Iterator[tuple[int, ...]]:
    """Yield ways to cut a chunk into one, two and three; `all` of them or a `few`."""
    yield (length,)
    twos = [(a, length - a) for a in range(1, length)]
    threes = [(a, b - a, length - b) for a, b in itertools.combinations(range(1, length), 2)]
    if which == "all":
        yield from (*twos, *threes)
    else:
        yield from (twos[0], twos[len(twos) // 2], twos[-1], threes[len(threes) // 2])


def insert_pads(rows: Sequence[Row], pads: int, place: str, pad_slot: int) -> list[Row]:
    """Return the rows with `pads` rows without tokens `before`, `between` or `after` them.

    Pads name `pad_slot`, which no sequence may own.
    """
    pad = [rows[0].slice_tokens(0, 0, pad_slot)] * pads
    at = {"before": 0, "between": (len(rows) + 1) // 2, "after": len(rows)}[place]
    return [*rows[:at], *pad, *rows[at:]]


def gate_inputs(tokens: int, heads: int, device: str, *, plain: bool = False
                ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return a and b [tokens, heads] with NaN after every token, and decay and bias [heads].

    Values alternate between drawn ones of three sizes and `EDGE_VALUES`. With `plain` they are
    drawn ones of size 1 only, whose gates are not denormal.
    """
    size = tokens * heads
    both = []
    for seed, gap in ((21, 3), (22, 5)):  # a and b differ in their strides
        x, steps = draw_normal(seed, size), torch.tensor([1.0, 30.0, 200.0]).repeat(size)[:size]
        edges = torch.tensor(EDGE_VALUES).roll(seed).repeat(size // len(EDGE_VALUES) + 1)[:size]
        if not plain:
            x = torch.where(torch.arange(size) % 3 == 1, edges, x * steps)
        wide = torch.full((tokens, heads + gap), torch.nan)
        wide[:, :heads] = x.view(tokens, heads)
        both.append(wide.to(device)[:, :heads])
    decay = -torch.exp(draw_normal(23, heads))
    decay[0] = -1e-30
    return (both[0], both[1]), (decay, draw_normal(24, heads))
