"""Split attention in Triton, for any device and the interpreter: append, splits, then merge.

A program takes one token, one KV head and one split of 64 keys, found through the row's pointers;
the query heads of a group share what it loads. Not tuned: `kernel_attend_cuda` is the fast one.
"""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import launch
from engine.kernels.functions import exp, sigmoid
from engine.state import Refs
from phases.p6_batched_attention.launches import DIM, SPLIT, as_ints, check_operands, plan_launches


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
KINDS = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
"""Triton's names of what a cache may be kept in."""


@triton.jit
def _head(pointers, row, first_key, key_row, head, key_head, KV: tl.constexpr):
    """Return where a head's cached keys or values begin, from one key of a row on.

    bf16 goes by its bits: the interpreter's own conversions round it otherwise.
    """
    base = tl.load(pointers + row)
    at = first_key.to(tl.int64) * key_row + head.to(tl.int64) * key_head
    kept = tl.uint16 if KV.is_bf16() else KV
    return base.to(tl.pointer_type(kept)) + at


@triton.jit
def _rounded(x, KV: tl.constexpr):
    """Return f32 values as a cache holds them: rounded to nearest even."""
    if KV.is_bf16():
        bits = x.to(tl.uint32, bitcast=True)
        bits = tl.where(x != x, 0x7FC00000, bits + 0x7FFF + ((bits >> 16) & 1))
        x = (bits >> 16).to(tl.uint16)
    else:
        x = x.to(KV)
    return x


@triton.jit
def _widened(x, KV: tl.constexpr):
    """Return cached values as f32, exactly."""
    if KV.is_bf16():
        bits = x.to(tl.uint32) << 16
        x = bits.to(tl.float32, bitcast=True)
    return x.to(tl.float32)


@triton.jit(do_not_specialize=["m"])
def _append(k, v, keys, values, starts, lengths, m, k_token, k_head, v_token, v_head, key_row,
            key_head, value_row, value_head, DIM: tl.constexpr, KV: tl.constexpr):
    token, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row = _row_of(token, starts, m)
    at = _reach(token, starts, lengths, row) - 1
    d = tl.arange(0, DIM)
    key = _head(keys, row, at, key_row, head, key_head, KV)
    value = _head(values, row, at, value_row, head, value_head, KV)
    token = token.to(tl.int64)
    tl.store(key + d, _rounded(tl.load(k + token * k_token + head * k_head + d), KV))
    tl.store(value + d, _rounded(tl.load(v + token * v_token + head * v_head + d), KV))


@triton.jit
def _pairs_of_columns(x, KEYS: tl.constexpr, WIDTH: tl.constexpr, STEPS: tl.constexpr):
    """Add adjacent pairs of the last axis of x[KEYS, WIDTH] until one is left: [KEYS]."""
    for step in tl.static_range(STEPS):
        left, right = tl.split(tl.reshape(x, [KEYS, WIDTH >> (step + 1), 2]))
        x = left + right
    return tl.reshape(x, [KEYS])


@triton.jit
def _pairs_of_lanes(x, HEADS: tl.constexpr, WIDTH: tl.constexpr):
    """Add adjacent pairs of the eight lanes of x[HEADS, 8, WIDTH] until one is left."""
    for step in tl.static_range(3):
        pairs = tl.permute(tl.reshape(x, [HEADS, 4 >> step, 2, WIDTH]), [0, 1, 3, 2])
        left, right = tl.split(pairs)
        x = left + right
    return tl.reshape(x, [HEADS, WIDTH])


@triton.jit(do_not_specialize=UNSPECIALISED)
def _attend_split(q, keys, values, starts, lengths, m, first, tops, parts, splits, q_token, q_head,
                  key_row, key_head, value_row, value_head, GROUP: tl.constexpr,
                  HEADS: tl.constexpr, SPLIT: tl.constexpr, DIM: tl.constexpr,
                  SCALE: tl.constexpr, KV: tl.constexpr):
    place, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    token = first + place
    row = _row_of(token, starts, m)
    left = _reach(token, starts, lengths, row) - split * SPLIT
    if left > 0:
        held_k = _head(keys, row, split * SPLIT, key_row, head, key_head, KV)
        held_v = _head(values, row, split * SPLIT, value_row, head, value_head, KV)
        mine = q + token.to(tl.int64) * q_token + head.to(tl.int64) * GROUP * q_head
        score = _scores(mine, held_k, left, q_head, key_row, GROUP, HEADS, SPLIT, DIM // 2, SCALE,
                        KV)
        there = (tl.arange(0, SPLIT) < left)[None, :]
        top = tl.max(tl.where(there, score, float("-inf")), axis=1)
        p = tl.where(there, exp(score - top[:, None]), 0.0)
        low, part = _sums(p, held_v, left, value_row, HEADS, SPLIT, DIM, KV)
        r, d = tl.arange(0, HEADS), tl.arange(0, DIM)
        heads = place.to(tl.int64) * tl.num_programs(1) * GROUP + head * GROUP + r
        at = heads * splits + split
        tl.store(tops + 2 * at, top, mask=r < GROUP)
        tl.store(tops + 2 * at + 1, low, mask=r < GROUP)
        tl.store(parts + at[:, None] * DIM + d[None, :], part, mask=(r < GROUP)[:, None])


@triton.jit
def _scores(q, keys, left, q_head, key_row, GROUP: tl.constexpr, HEADS: tl.constexpr,
            SPLIT: tl.constexpr, HALF: tl.constexpr, SCALE: tl.constexpr, KV: tl.constexpr):
    """Return the scores [HEADS, SPLIT] of a group's query heads; each key is loaded once."""
    j, lane = tl.arange(0, SPLIT), tl.arange(0, HALF)
    at = keys + j.to(tl.int64)[:, None] * key_row + lane[None, :]
    there = (j < left)[:, None]
    low = _widened(tl.load(at, mask=there, other=0), KV)
    high = _widened(tl.load(at + HALF, mask=there, other=0), KV)
    scores = tl.zeros([HEADS, SPLIT], tl.float32)
    for r in tl.static_range(GROUP):
        mine = q + r * q_head + lane
        sums = (0.0 + tl.load(mine)[None, :] * low) + tl.load(mine + HALF)[None, :] * high
        own = _pairs_of_columns(sums, SPLIT, HALF, 7) * SCALE
        scores = tl.where((tl.arange(0, HEADS) == r)[:, None], own[None, :], scores)
    return scores


@triton.jit
def _sums(p, values, left, value_row, HEADS: tl.constexpr, SPLIT: tl.constexpr,
          DIM: tl.constexpr, KV: tl.constexpr):
    """Return the sums of p [HEADS] and of p times values [HEADS, DIM]: key j to lane j mod 8."""
    eight, d, octet = tl.arange(0, 8), tl.arange(0, DIM), tl.arange(0, SPLIT // 8)
    p = tl.reshape(p, [HEADS, SPLIT // 8, 8])
    low, whole = tl.zeros([HEADS, 8, 1], tl.float32), tl.zeros([HEADS, 8, DIM], tl.float32)
    for i in range((tl.minimum(left, SPLIT) + 7) // 8):  # what is left out would add +0
        j = i * 8 + eight
        v = _widened(tl.load(values + j.to(tl.int64)[:, None] * value_row + d[None, :],
                             mask=(j < left)[:, None], other=0), KV)
        # one term of each of these sums is not masked, so nothing is rounded
        mine = tl.sum(tl.where((octet == i)[None, :, None], p, 0.0), axis=1)
        low = low + mine[:, :, None]
        whole = whole + mine[:, :, None] * v[None, :, :]
    return (tl.reshape(_pairs_of_lanes(low, HEADS, 1), [HEADS]),
            _pairs_of_lanes(whole, HEADS, DIM))


@triton.jit(do_not_specialize=UNSPECIALISED)
def _attend_merge(gate, starts, lengths, m, first, tops, parts, splits, out, gate_token, gate_head,
                  out_token, out_head, GROUP: tl.constexpr, HEADS: tl.constexpr,
                  SPLIT: tl.constexpr, DIM: tl.constexpr):
    place, token = tl.program_id(0).to(tl.int64), first + tl.program_id(0)
    own = (_reach(token, starts, lengths, _row_of(token, starts, m)) + SPLIT - 1) // SPLIT
    r, d = tl.arange(0, HEADS), tl.arange(0, DIM)
    there, wide = r < GROUP, (r < GROUP)[:, None]
    head = tl.program_id(1).to(tl.int64) * GROUP + r
    at = (place * tl.num_programs(1) * GROUP + head) * splits
    top = tl.load(tops + 2 * at, mask=there, other=0.0)
    for i in range(1, own):
        top = tl.maximum(top, tl.load(tops + 2 * (at + i), mask=there, other=0.0))
    bottom, whole = tl.zeros([HEADS], tl.float32), tl.zeros([HEADS, DIM], tl.float32)
    for i in range(own):
        share = exp(tl.load(tops + 2 * (at + i), mask=there, other=0.0) - top)
        bottom = bottom + share * tl.load(tops + 2 * (at + i) + 1, mask=there, other=1.0)
        whole = whole + share[:, None] * tl.load(parts + (at + i)[:, None] * DIM + d[None, :],
                                                 mask=wide, other=0.0)
    token = token.to(tl.int64)
    opened = sigmoid(tl.load(gate + token * gate_token + head[:, None] * gate_head + d[None, :],
                             mask=wide, other=0.0))
    read = tl.div_rn(whole, tl.zeros([HEADS, DIM], tl.float32) + bottom[:, None])
    tl.store(out + token * out_token + head[:, None] * out_head + d[None, :], read * opened,
             mask=wide)


def attend(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, keys: Refs, values: Refs,
           lengths: Sequence[int], counts: Sequence[int], out: Tensor) -> None:
    """Append k and v [t, G, D] to each row's cache and write gated attention into out[t, H, D]."""
    check_operands(q, k, v, gate, keys, values, out)
    (t, heads), groups, m = q.shape[:2], k.shape[1], len(counts)
    group = heads // groups
    lengths, counts = as_ints(lengths), as_ints(counts)
    key_at, value_at = keys.pointers, values.pointers
    rows = counts.starts.on(out.device), lengths.on(out.device), m
    cache = (*keys.whole.stride()[1:3], *values.whole.stride()[1:3])
    kv = KINDS[keys.whole.dtype]
    if t:
        launch(_append, (t, groups), k, v, key_at, value_at, *rows, *k.stride()[:2],
               *v.stride()[:2], *cache, DIM=DIM, KV=kv)
    for one in plan_launches(lengths, counts, heads):
        tops, parts = one.scratch(heads, out)
        launch(_attend_split, (one.tokens, groups, one.splits), q, key_at, value_at, *rows,
               one.first, tops, parts, one.splits, *q.stride()[:2], *cache,
               GROUP=group, HEADS=triton.next_power_of_2(group), SPLIT=SPLIT, DIM=DIM,
               SCALE=DIM ** -0.5, KV=kv)
        launch(_attend_merge, (one.tokens, groups), gate, *rows, one.first, tops, parts,
               one.splits, out, *gate.stride()[:2], *out.stride()[:2], GROUP=group,
               HEADS=triton.next_power_of_2(group), SPLIT=SPLIT, DIM=DIM)
