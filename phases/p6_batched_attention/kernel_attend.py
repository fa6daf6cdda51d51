"""Split-KV attention in Triton, for any device and the interpreter: append, splits, merge.

A program processes one token, one KV head and one split of 64 keys, found through the row's
pointers. The query heads of the KV head share its loads. Not tuned: use `kernel_attend_cuda` for
speed.
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
    """Return a token's row: the number of rows that end at or before the token."""
    row = 0
    for i in range(m):
        row += (tl.load(starts + i + 1) <= token).to(tl.int32)
    return row


@triton.jit
def _visible_keys(token, starts, lengths, row):
    """Return the number of keys that a token attends to, including its own."""
    return tl.load(lengths + row) + (token - tl.load(starts + row)) + 1


NOT_SPECIALISED = ["m", "first", "splits"]
"""Arguments that one compiled kernel takes at any value."""
TRITON_TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
"""Triton types of the cache types."""


@triton.jit
def _head_ptr(pointers, row, first_key, key_row, head, key_head, KV: tl.constexpr):
    """Return the address of a head's cached keys or values, from key `first_key` of a row on.

    bf16 is addressed as uint16, because the interpreter's bf16 conversions round differently.
    """
    base = tl.load(pointers + row)
    at = first_key.to(tl.int64) * key_row + head.to(tl.int64) * key_head
    storage = tl.uint16 if KV.is_bf16() else KV
    return base.to(tl.pointer_type(storage)) + at


@triton.jit
def _to_cache(x, KV: tl.constexpr):
    """Return f32 values in the cache type, rounded to nearest even."""
    if KV.is_bf16():
        bits = x.to(tl.uint32, bitcast=True)
        bits = tl.where(x != x, 0x7FC00000, bits + 0x7FFF + ((bits >> 16) & 1))
        x = (bits >> 16).to(tl.uint16)
    else:
        x = x.to(KV)
    return x


@triton.jit
def _from_cache(x, KV: tl.constexpr):
    """Return cached values as f32; exact."""
    if KV.is_bf16():
        bits = x.to(tl.uint32) << 16
        x = bits.to(tl.float32, bitcast=True)
    return x.to(tl.float32)


@triton.jit(do_not_specialize=["m"])
def _append(k, v, keys, values, starts, lengths, m, k_token, k_head, v_token, v_head, key_row,
            key_head, value_row, value_head, DIM: tl.constexpr, KV: tl.constexpr):
    token, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row = _row_of(token, starts, m)
    at = _visible_keys(token, starts, lengths, row) - 1
    d = tl.arange(0, DIM)
    key = _head_ptr(keys, row, at, key_row, head, key_head, KV)
    value = _head_ptr(values, row, at, value_row, head, value_head, KV)
    token = token.to(tl.int64)
    tl.store(key + d, _to_cache(tl.load(k + token * k_token + head * k_head + d), KV))
    tl.store(value + d, _to_cache(tl.load(v + token * v_token + head * v_head + d), KV))


@triton.jit
def _sum_columns(x, KEYS: tl.constexpr, WIDTH: tl.constexpr, STEPS: tl.constexpr):
    """Add adjacent pairs along the last axis of x[KEYS, WIDTH] down to [KEYS]."""
    for step in tl.static_range(STEPS):
        left, right = tl.split(tl.reshape(x, [KEYS, WIDTH >> (step + 1), 2]))
        x = left + right
    return tl.reshape(x, [KEYS])


@triton.jit
def _sum_lanes(x, HEADS: tl.constexpr, WIDTH: tl.constexpr):
    """Add adjacent pairs of the eight lanes of x[HEADS, 8, WIDTH] down to [HEADS, WIDTH]."""
    for step in tl.static_range(3):
        pairs = tl.permute(tl.reshape(x, [HEADS, 4 >> step, 2, WIDTH]), [0, 1, 3, 2])
        left, right = tl.split(pairs)
        x = left + right
    return tl.reshape(x, [HEADS, WIDTH])


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def _attend_split(q, keys, values, starts, lengths, m, first, stats, partials, splits, q_token,
                  q_head, key_row, key_head, value_row, value_head, Q_PER_KV: tl.constexpr,
                  HEADS: tl.constexpr, SPLIT: tl.constexpr, DIM: tl.constexpr,
                  SCALE: tl.constexpr, KV: tl.constexpr):
    local_token, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    token = first + local_token
    row = _row_of(token, starts, m)
    remaining = _visible_keys(token, starts, lengths, row) - split * SPLIT
    if remaining > 0:
        k_ptr = _head_ptr(keys, row, split * SPLIT, key_row, head, key_head, KV)
        v_ptr = _head_ptr(values, row, split * SPLIT, value_row, head, value_head, KV)
        q_ptr = q + token.to(tl.int64) * q_token + head.to(tl.int64) * Q_PER_KV * q_head
        score = _scores(q_ptr, k_ptr, remaining, q_head, key_row, Q_PER_KV, HEADS, SPLIT, DIM // 2,
                        SCALE, KV)
        valid = (tl.arange(0, SPLIT) < remaining)[None, :]
        max_score = tl.max(tl.where(valid, score, float("-inf")), axis=1)
        p = tl.where(valid, exp(score - max_score[:, None]), 0.0)
        exp_sum, partial = _weighted_values(p, v_ptr, remaining, value_row, HEADS, SPLIT, DIM, KV)
        r, d = tl.arange(0, HEADS), tl.arange(0, DIM)
        heads = local_token.to(tl.int64) * tl.num_programs(1) * Q_PER_KV + head * Q_PER_KV + r
        at = heads * splits + split
        tl.store(stats + 2 * at, max_score, mask=r < Q_PER_KV)
        tl.store(stats + 2 * at + 1, exp_sum, mask=r < Q_PER_KV)
        tl.store(partials + at[:, None] * DIM + d[None, :], partial, mask=(r < Q_PER_KV)[:, None])


@triton.jit
def _scores(q, keys, remaining, q_head, key_row, Q_PER_KV: tl.constexpr, HEADS: tl.constexpr,
            SPLIT: tl.constexpr, HALF: tl.constexpr, SCALE: tl.constexpr, KV: tl.constexpr):
    """Return the scores [HEADS, SPLIT] of a KV head's query heads; each key is loaded once."""
    j, lane = tl.arange(0, SPLIT), tl.arange(0, HALF)
    at = keys + j.to(tl.int64)[:, None] * key_row + lane[None, :]
    valid = (j < remaining)[:, None]
    k_low = _from_cache(tl.load(at, mask=valid, other=0), KV)
    k_high = _from_cache(tl.load(at + HALF, mask=valid, other=0), KV)
    scores = tl.zeros([HEADS, SPLIT], tl.float32)
    for r in tl.static_range(Q_PER_KV):
        q_ptr = q + r * q_head + lane
        sums = (0.0 + tl.load(q_ptr)[None, :] * k_low) + tl.load(q_ptr + HALF)[None, :] * k_high
        score = _sum_columns(sums, SPLIT, HALF, 7) * SCALE
        scores = tl.where((tl.arange(0, HEADS) == r)[:, None], score[None, :], scores)
    return scores


@triton.jit
def _weighted_values(p, values, remaining, value_row, HEADS: tl.constexpr, SPLIT: tl.constexpr,
          DIM: tl.constexpr, KV: tl.constexpr):
    """Return the sums of p [HEADS] and of p * values [HEADS, DIM]; key j goes to lane j % 8."""
    sum_lane, d, octet = tl.arange(0, 8), tl.arange(0, DIM), tl.arange(0, SPLIT // 8)
    p = tl.reshape(p, [HEADS, SPLIT // 8, 8])
    exp_sum, weighted = tl.zeros([HEADS, 8, 1], tl.float32), tl.zeros([HEADS, 8, DIM], tl.float32)
    for i in range((tl.minimum(remaining, SPLIT) + 7) // 8):  # the remaining keys would add +0
        j = i * 8 + sum_lane
        v = _from_cache(tl.load(values + j.to(tl.int64)[:, None] * value_row + d[None, :],
                                mask=(j < remaining)[:, None], other=0), KV)
        # each sum has one unmasked term, so nothing is rounded
        weight = tl.sum(tl.where((octet == i)[None, :, None], p, 0.0), axis=1)
        exp_sum = exp_sum + weight[:, :, None]
        weighted = weighted + weight[:, :, None] * v[None, :, :]
    return (tl.reshape(_sum_lanes(exp_sum, HEADS, 1), [HEADS]),
            _sum_lanes(weighted, HEADS, DIM))


@triton.jit(do_not_specialize=NOT_SPECIALISED)
def _attend_merge(gate, starts, lengths, m, first, stats, partials, splits, out, gate_token,
                  gate_head, out_token, out_head, Q_PER_KV: tl.constexpr, HEADS: tl.constexpr,
                  SPLIT: tl.constexpr, DIM: tl.constexpr):
    local_token, token = tl.program_id(0).to(tl.int64), first + tl.program_id(0)
    n_keys = _visible_keys(token, starts, lengths, _row_of(token, starts, m))
    n_splits = (n_keys + SPLIT - 1) // SPLIT
    r, d = tl.arange(0, HEADS), tl.arange(0, DIM)
    valid, valid_rows = r < Q_PER_KV, (r < Q_PER_KV)[:, None]
    head = tl.program_id(1).to(tl.int64) * Q_PER_KV + r
    at = (local_token * tl.num_programs(1) * Q_PER_KV + head) * splits
    max_score = tl.load(stats + 2 * at, mask=valid, other=0.0)
    for i in range(1, n_splits):
        max_score = tl.maximum(max_score, tl.load(stats + 2 * (at + i), mask=valid, other=0.0))
    denominator, numerator = tl.zeros([HEADS], tl.float32), tl.zeros([HEADS, DIM], tl.float32)
    for i in range(n_splits):
        split_weight = exp(tl.load(stats + 2 * (at + i), mask=valid, other=0.0) - max_score)
        denominator = denominator + split_weight * tl.load(stats + 2 * (at + i) + 1, mask=valid,
                                                           other=1.0)
        numerator = numerator + split_weight[:, None] * tl.load(
            partials + (at + i)[:, None] * DIM + d[None, :], mask=valid_rows, other=0.0)
    token = token.to(tl.int64)
    gate_value = sigmoid(tl.load(gate + token * gate_token + head[:, None] * gate_head + d[None, :],
                                 mask=valid_rows, other=0.0))
    read = tl.div_rn(numerator, tl.zeros([HEADS, DIM], tl.float32) + denominator[:, None])
    tl.store(out + token * out_token + head[:, None] * out_head + d[None, :], read * gate_value,
             mask=valid_rows)


def attend(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, keys: Refs, values: Refs,
           lengths: Sequence[int], counts: Sequence[int], out: Tensor) -> None:
    """Append k and v [t, G, D] to each row's cache and write gated attention into out[t, H, D]."""
    check_operands(q, k, v, gate, keys, values, out)
    (t, heads), kv_heads, m = q.shape[:2], k.shape[1], len(counts)
    q_per_kv = heads // kv_heads
    lengths, counts = as_ints(lengths), as_ints(counts)
    key_pointers, value_pointers = keys.pointers, values.pointers
    rows = counts.starts.on(out.device), lengths.on(out.device), m
    cache = (*keys.all_slots.stride()[1:3], *values.all_slots.stride()[1:3])
    kv = TRITON_TYPES[keys.all_slots.dtype]
    if t:
        launch(_append, (t, kv_heads), k, v, key_pointers, value_pointers, *rows, *k.stride()[:2],
               *v.stride()[:2], *cache, DIM=DIM, KV=kv)
    for one in plan_launches(lengths, counts, heads):
        stats, partials = one.scratch(heads, out)
        launch(_attend_split, (one.tokens, kv_heads, one.splits), q, key_pointers, value_pointers,
               *rows, one.first, stats, partials, one.splits, *q.stride()[:2], *cache,
               Q_PER_KV=q_per_kv, HEADS=triton.next_power_of_2(q_per_kv), SPLIT=SPLIT, DIM=DIM,
               SCALE=DIM ** -0.5, KV=kv)
        launch(_attend_merge, (one.tokens, kv_heads), gate, *rows, one.first, stats, partials,
               one.splits, out, *gate.stride()[:2], *out.stride()[:2], Q_PER_KV=q_per_kv,
               HEADS=triton.next_power_of_2(q_per_kv), SPLIT=SPLIT, DIM=DIM)
