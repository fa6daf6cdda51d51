"""Attention of all rows at once in plain PyTorch: one split of 64 keys after another, all tokens.

Letters: t tokens of all rows, n keys of a split, G KV heads, R query heads of each, D = 256. The
bits are those of arithmetic.md, item 24. A row of no tokens is a pad: its slot is not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from engine.arithmetic import exp, ordered_sum, pairwise_sum, sigmoid
from engine.ops import KEY_LANES, SPLIT, rotate  # every token turns at its own position already
from engine.state import Refs

__all__ = ["attend", "rotate"]

BLOCK = 1 << 20
"""Products of one split of the tokens that are worked together: what a cache holds."""


def attend(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, keys: Refs, values: Refs,
           lengths: Sequence[int], counts: Sequence[int], out: Tensor) -> None:
    """Append k and v [t, G, D] to each row's cache and write gated attention into out[t, H, D].

    lengths[i] is how many rows slot i's cache holds before this step, counts[i] how many tokens
    of row i stand among t; query head h reads KV head h // (H / G). A cache narrower than f32
    rounds what it is given to nearest even; all else is done in f32.
    """
    live = [row for row, count in enumerate(counts) if count]
    rows = [number for number, row in enumerate(live) for _ in range(counts[row])]
    places = [n for n, count in zip(lengths, counts, strict=True) for n in range(n, n + count)]
    if not rows:
        return
    held_k, held_v = (_those_of(refs, live).views for refs in (keys, values))
    for token, (row, place) in enumerate(zip(rows, places, strict=True)):
        held_k[row][place], held_v[row][place] = k[token], v[token]
    heads = q.unflatten(1, (k.shape[1], -1))  # [t, G, R, D]
    size = max(1, BLOCK // (SPLIT * q[0].numel()))
    for first in range(0, len(rows), size):
        some = slice(first, first + size)
        read = _read(heads[some], held_k, held_v, torch.tensor(rows[some]),
                     torch.tensor(places[some]) + 1)
        out[some] = read.flatten(1, 2) * sigmoid(gate[some])


def _those_of(refs: Refs, live: list[int]) -> Refs:
    """Return the state of the rows that have tokens, so that no pad's state is looked up."""
    if len(live) == len(refs.slots):
        return refs
    pointers = None if refs.device_pointers is None else refs.device_pointers[live]
    return replace(refs, slots=tuple(refs.slots[row] for row in live),
                   device_pointers=pointers)


def _read(q: Tensor, keys: list[Tensor], values: list[Tensor], rows: Tensor,
          lengths: Tensor) -> Tensor:
    """Return softmax(q k / 16) v of each token over the `lengths` first keys of its row."""
    starts = range(0, int(lengths.max()), SPLIT)
    live = [(lengths > start).nonzero().flatten() for start in starts]  # who has such a split
    scores = [_scores(q[i], keys, rows[i], lengths[i], start)
              for i, start in zip(live, starts, strict=True)]
    largest_of = [s.amax(1) for s in scores]
    top = torch.full(q.shape[:3], -torch.inf)
    for i, largest in zip(live, largest_of, strict=True):
        top[i] = torch.maximum(top[i], largest)
    bottom, whole = torch.zeros(q.shape[:3]), torch.zeros(q.shape)
    for i, start, s, largest in zip(live, starts, scores, largest_of, strict=True):
        low, acc = _weighted(s, largest, values, rows[i], lengths[i], start)
        share = exp(largest - top[i])
        bottom[i] = bottom[i] + share * low
        whole[i] = whole[i] + share.unsqueeze(-1) * acc
    return whole / bottom.unsqueeze(-1)


def _rows(caches: list[Tensor], rows: Tensor, lengths: Tensor,
          start: int) -> tuple[Tensor, Tensor]:
    """Return a split of each token's cache [t or 1, n, G, D], and which rows are the token's."""
    stop = min(start + SPLIT, int(lengths.max()))
    there = (torch.arange(start, stop) < lengths.unsqueeze(1))[:, :, None, None]
    if bool((rows == rows[0]).all()):  # tokens of one row read one cache: nothing is copied
        return caches[int(rows[0])][start:stop].unsqueeze(0).float(), there
    return torch.stack([caches[row][start:stop] for row in rows.tolist()]).float(), there


def _scores(q: Tensor, keys: list[Tensor], rows: Tensor, lengths: Tensor,
            start: int) -> Tensor:
    """Return scores [t, n, G, R] of a split; -inf stands for a key that a token does not have."""
    cached, there = _rows(keys, rows, lengths, start)
    scores = ordered_sum(q.unsqueeze(1) * cached.unsqueeze(3)) * (q.shape[-1] ** -0.5)
    return torch.where(there, scores, -torch.inf)


def _weighted(scores: Tensor, largest: Tensor, values: list[Tensor], rows: Tensor,
              lengths: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """Return a split's sum of EXP(s - M) [t, G, R] and weighted values [t, G, R, D].

    Key j is added to lane j mod 8; absent keys add +0, whatever their memory holds.
    """
    cached, there = _rows(values, rows, lengths, start)
    p = exp(scores - largest.unsqueeze(1))
    if not bool(there.all()):
        cached, p = torch.where(there, cached, 0.0), torch.where(there, p, 0.0)
    low = torch.zeros(len(p), KEY_LANES, *p.shape[2:])
    acc = torch.zeros(*low.shape, cached.shape[-1])
    for j in range(0, p.shape[1], KEY_LANES):
        eight, n = slice(j, j + KEY_LANES), min(KEY_LANES, p.shape[1] - j)
        low[:, :n] += p[:, eight]
        acc[:, :n] += p[:, eight].unsqueeze(-1) * cached[:, eight].unsqueeze(3)
    return pairwise_sum(low.movedim(1, -1)), _pairs(acc)


def _pairs(x: Tensor) -> Tensor:
    """Add adjacent pairs of axis 1 until one is left."""
    while x.shape[1] > 1:
        x = x[:, 0::2] + x[:, 1::2]
    return x[:, 0]
