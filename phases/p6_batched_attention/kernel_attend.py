"""Split attention in Triton, for any device and the interpreter: append, splits, then merge.

A program takes one token, one KV head and one split of 64 keys, found through the row's pointers;
the query heads of a group share the keys that it loads. Not tuned: `kernel_attend_cuda` is the
fast one.
"""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import launch, pair_sum
from engine.kernels.functions import exp, sigmoid
from engine.state import Refs
from phases.p6_batched_attention.launches import DIM, SPLIT, as_ints, check, launches


@triton.jit
def _row_of(token, starts, m):
    """Return the row that a token belongs to: as many rows end at or before it."""
    row = 0
    for i in range(m):
        row += (tl.load(starts + i + 1) <= token).to(tl.int32)
    return row


@triton.jit
def _reach(token, starts, lengths, row):
    """Return how many keys a token of a row sees, itself among them."""
    return tl.load(lengths + row) + (token - tl.load(starts + row)) + 1


UNSPECIALISED = ["m", "first", "splits"]
"""Arguments of which one compiled kernel takes every value."""


@triton.jit(do_not_specialize=["m"])
def _append(k, v, keys, values, starts, lengths, m, k_token, k_head, v_token, v_head, key_row,
            key_head, value_row, value_head, DIM: tl.constexpr):
    token, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row = _row_of(token, starts, m)
    at = (_reach(token, starts, lengths, row) - 1).to(tl.int64)
    d = tl.arange(0, DIM)
    key = tl.load(keys + row).to(tl.pointer_type(tl.float32)) + at * key_row + head * key_head
    value = tl.load(values + row).to(tl.pointer_type(tl.float32)) + at * value_row \
        + head * value_head
    token = token.to(tl.int64)
    tl.store(key + d, tl.load(k + token * k_token + head * k_head + d))
    tl.store(value + d, tl.load(v + token * v_token + head * v_head + d))


@triton.jit
def _pairs_of_columns(x, KEYS: tl.constexpr, WIDTH: tl.constexpr, STEPS: tl.constexpr):
    """Add adjacent pairs of the last axis of x[KEYS, WIDTH] until one is left: [KEYS]."""
    for step in tl.static_range(STEPS):
        left, right = tl.split(tl.reshape(x, [KEYS, WIDTH >> (step + 1), 2]))
        x = left + right
    return tl.reshape(x, [KEYS])


@triton.jit
def _pairs_of_lanes(x, DIM: tl.constexpr):
    """Add adjacent pairs of the eight lanes of x[8, DIM] until one is left: [DIM]."""
    for step in tl.static_range(3):
        pairs = tl.permute(tl.reshape(x, [4 >> step, 2, DIM]), [0, 2, 1])
        left, right = tl.split(pairs)
        x = left + right
    return tl.reshape(x, [DIM])


@triton.jit(do_not_specialize=UNSPECIALISED)
def _attend_split(q, keys, values, starts, lengths, m, first, tops, parts, splits, q_token, q_head,
                  key_row, key_head, value_row, value_head, GROUP: tl.constexpr,
                  SPLIT: tl.constexpr, DIM: tl.constexpr, SCALE: tl.constexpr):
    place, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    token = first + place
    row = _row_of(token, starts, m)
    left = _reach(token, starts, lengths, row) - split * SPLIT
    if left > 0:
        HALF: tl.constexpr = DIM // 2
        j, lane = tl.arange(0, SPLIT), tl.arange(0, HALF)
        first_key = (split * SPLIT).to(tl.int64)
        held_k = tl.load(keys + row).to(tl.pointer_type(tl.float32)) + first_key * key_row \
            + head.to(tl.int64) * key_head
        held_v = tl.load(values + row).to(tl.pointer_type(tl.float32)) + first_key * value_row \
            + head.to(tl.int64) * value_head
        at = held_k + j.to(tl.int64)[:, None] * key_row + lane[None, :]
        there = (j < left)[:, None]
        low_k = tl.load(at, mask=there, other=0.0)
        high_k = tl.load(at + HALF, mask=there, other=0.0)
        heads = tl.num_programs(1) * GROUP
        for r in tl.static_range(GROUP):
            h = head * GROUP + r
            mine = q + token.to(tl.int64) * q_token + h.to(tl.int64) * q_head
            sums = (0.0 + tl.load(mine + lane)[None, :] * low_k) \
                + tl.load(mine + HALF + lane)[None, :] * high_k
            score = _pairs_of_columns(sums, SPLIT, HALF, 7) * SCALE
            top = tl.max(tl.where(j < left, score, float("-inf")), axis=0)
            p = tl.where(j < left, exp(score - top), 0.0)
            part = (place * heads + h).to(tl.int64) * splits + split
            tl.store(tops + 2 * part, top)
            _store_sums(p, held_v, left, value_row, tops + 2 * part + 1, parts + part * DIM,
                        SPLIT, DIM)


@triton.jit
def _store_sums(p, held_v, left, value_row, low, part, SPLIT: tl.constexpr, DIM: tl.constexpr):
    """Store a split's sum of p and of p times its values: key j to lane j mod 8, in order."""
    eight, d, octet = tl.arange(0, 8), tl.arange(0, DIM), tl.arange(0, SPLIT // 8)
    p = tl.reshape(p, [SPLIT // 8, 8])
    sums, whole = tl.zeros([8], tl.float32), tl.zeros([8, DIM], tl.float32)
    for i in range(SPLIT // 8):
        j = i * 8 + eight
        v = tl.load(held_v + j.to(tl.int64)[:, None] * value_row + d[None, :],
                    mask=(j < left)[:, None], other=0.0)
        # one of the eight sums' terms is not masked, so nothing is rounded
        mine = tl.sum(tl.where((octet == i)[:, None], p, 0.0), axis=0)
        sums = sums + mine
        whole = whole + mine[:, None] * v
    tl.store(low, pair_sum(sums, 8, 3))
    tl.store(part + d, _pairs_of_lanes(whole, DIM))


@triton.jit(do_not_specialize=UNSPECIALISED)
def _attend_merge(gate, starts, lengths, m, first, tops, parts, splits, out, gate_token, gate_head,
                  out_token, out_head, SPLIT: tl.constexpr, DIM: tl.constexpr):
    place, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    token = first + place
    own = (_reach(token, starts, lengths, _row_of(token, starts, m)) + SPLIT - 1) // SPLIT
    d = tl.arange(0, DIM)
    part = (place.to(tl.int64) * tl.num_programs(1) + head) * splits
    top = tl.load(tops + 2 * part)
    for i in range(1, own):
        top = tl.maximum(top, tl.load(tops + 2 * (part + i)))
    bottom, whole = tl.zeros([DIM], tl.float32), tl.zeros([DIM], tl.float32)
    for i in range(own):
        share = exp(tl.load(tops + 2 * (part + i)) - top)
        bottom = bottom + share * tl.load(tops + 2 * (part + i) + 1)
        whole = whole + share * tl.load(parts + (part + i) * DIM + d)
    token = token.to(tl.int64)
    opened = sigmoid(tl.load(gate + token * gate_token + head * gate_head + d))
    tl.store(out + token * out_token + head * out_head + d,
             tl.div_rn(whole, bottom) * opened)


def attend(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, keys: Refs, values: Refs,
           lengths: Sequence[int], counts: Sequence[int], out: Tensor) -> None:
    """Append k and v [t, G, D] to each row's cache and write gated attention into out[t, H, D]."""
    check(q, k, v, gate, keys, values, out)
    (t, heads), groups, m = q.shape[:2], k.shape[1], len(counts)
    lengths, counts = as_ints(lengths), as_ints(counts)
    key_at, value_at = keys.pointers, values.pointers
    rows = counts.starts.on(out.device), lengths.on(out.device), m
    cache = (*keys.whole.stride()[1:3], *values.whole.stride()[1:3])
    if t:
        launch(_append, (t, groups), k, v, key_at, value_at, *rows, *k.stride()[:2],
               *v.stride()[:2], *cache, DIM=DIM)
    for one in launches(lengths, counts, heads):
        tops, parts = one.scratch(heads, out)
        launch(_attend_split, (one.tokens, groups, one.splits), q, key_at, value_at, *rows,
               one.first, tops, parts, one.splits, *q.stride()[:2], *cache,
               GROUP=heads // groups, SPLIT=SPLIT, DIM=DIM, SCALE=DIM ** -0.5)
        launch(_attend_merge, (one.tokens, heads), gate, *rows, one.first, tops, parts,
               one.splits, out, *gate.stride()[:2], *out.stride()[:2], SPLIT=SPLIT, DIM=DIM)
