"""Wrong kernels: a right kernel with one function or one source string replaced."""

# ruff: noqa: ANN001, ANN002, ANN003, ANN201, ANN202
# mypy: ignore-errors
from __future__ import annotations

from contextlib import contextmanager
from functools import cache

import torch
import triton
import triton.language as tl

from engine.kernels import launch
from engine.kernels.nvrtc import Kernel, compile_source, source_of
from engine.op_table import Op
from engine.state import Refs
from falsifiers.judging.subject import Builder
from falsifiers.mutation.mutants import replace_source
from phases.p6_batched_attention import (
    kernel_attend,
    kernel_attend_cuda,
    kernel_norm_rotate,
    kernel_rotate,
    reference,
)
from phases.p6_batched_attention.kernel_attend import _from_cache, _sum_columns, _sum_lanes
from phases.wrong_refs import with_ops


@contextmanager
def _patch_module(module, **parts):
    """Run with some functions of a module replaced."""
    originals = {name: getattr(module, name) for name in parts}
    try:
        for name, part in parts.items():
            setattr(module, name, part)
        yield
    finally:
        for name, part in originals.items():
            setattr(module, name, part)


def with_attend_parts(before=None, **parts) -> Builder:
    """Return a builder whose Triton attention has some functions replaced."""
    def run(*args):
        if before is not None:
            before(*args)
        with _patch_module(kernel_attend, **parts):
            kernel_attend.attend(*args)

    return with_ops(attend=Op(reference.attend, triton=run))


def with_attend(run) -> Builder:
    """Return a builder whose attention kernel is `run`."""
    return with_ops(attend=Op(reference.attend, triton=run))


def with_rotate_parts(**parts) -> Builder:
    """Return a builder whose rotation kernel has some functions replaced."""
    def run(*args):
        with _patch_module(kernel_rotate, **parts):
            kernel_rotate.rotate(*args)

    return with_ops(rotate=Op(reference.rotate, triton=run))


@triton.jit
def row_is_the_token(token, starts, m):
    return tl.minimum(token, m - 1)


@triton.jit
def chunk_reaches_its_first_token(token, starts, lengths, row):
    return tl.load(lengths + row) + 1


@triton.jit
def halves_for_pairs(x, KEYS: tl.constexpr, WIDTH: tl.constexpr, STEPS: tl.constexpr):
    for step in tl.static_range(STEPS):
        halves = tl.permute(tl.reshape(x, [KEYS, 2, WIDTH >> (step + 1)]), [0, 2, 1])
        left, right = tl.split(halves)
        x = left + right
    return tl.reshape(x, [KEYS])


@triton.jit
def library_exp(x):
    return tl.exp(x)


@triton.jit
def scores_without_a_mask(q, keys, left, q_head, key_row, Q_PER_KV: tl.constexpr,
                          HEADS: tl.constexpr, SPLIT: tl.constexpr, HALF: tl.constexpr,
                          SCALE: tl.constexpr, KV: tl.constexpr):
    lane, j = tl.arange(0, HALF), tl.minimum(tl.arange(0, SPLIT), left)
    at = keys + j.to(tl.int64)[:, None] * key_row + lane[None, :]
    low, high = _from_cache(tl.load(at), KV), _from_cache(tl.load(at + HALF), KV)
    scores = tl.zeros([HEADS, SPLIT], tl.float32)
    for r in tl.static_range(Q_PER_KV):
        mine = q + r * q_head + lane
        sums = (0.0 + tl.load(mine)[None, :] * low) + tl.load(mine + HALF)[None, :] * high
        own = _sum_columns(sums, SPLIT, HALF, 7) * SCALE
        scores = tl.where((tl.arange(0, HEADS) == r)[:, None], own[None, :], scores)
    return scores


@triton.jit
def scores_read_by_each_head(q, keys, left, q_head, key_row, Q_PER_KV: tl.constexpr,
                             HEADS: tl.constexpr, SPLIT: tl.constexpr, HALF: tl.constexpr,
                             SCALE: tl.constexpr, KV: tl.constexpr):
    j, lane = tl.arange(0, SPLIT), tl.arange(0, HALF)
    at = keys + j.to(tl.int64)[:, None] * key_row + lane[None, :]
    there = (j < left)[:, None]
    scores = tl.zeros([HEADS, SPLIT], tl.float32)
    for r in tl.static_range(Q_PER_KV):
        low = _from_cache(tl.load(at, mask=there, other=0), KV)
        high = _from_cache(tl.load(at + HALF, mask=there, other=0), KV)
        mine = q + r * q_head + lane
        sums = (0.0 + tl.load(mine)[None, :] * low) + tl.load(mine + HALF)[None, :] * high
        own = _sum_columns(sums, SPLIT, HALF, 7) * SCALE
        scores = tl.where((tl.arange(0, HEADS) == r)[:, None], own[None, :], scores)
    return scores


@triton.jit
def eight_keys_a_lane(p, values, left, value_row, HEADS: tl.constexpr, SPLIT: tl.constexpr,
                      DIM: tl.constexpr, KV: tl.constexpr):
    eight, d, octet = tl.arange(0, 8), tl.arange(0, DIM), tl.arange(0, SPLIT // 8)
    p = tl.reshape(p, [HEADS, 8, SPLIT // 8])
    low, whole = tl.zeros([HEADS, 8, 1], tl.float32), tl.zeros([HEADS, 8, DIM], tl.float32)
    for i in range(SPLIT // 8):
        j = eight * 8 + i
        v = _from_cache(tl.load(values + j.to(tl.int64)[:, None] * value_row + d[None, :],
                                mask=(j < left)[:, None], other=0), KV)
        mine = tl.sum(tl.where((octet == i)[None, None, :], p, 0.0), axis=2)
        low = low + mine[:, :, None]
        whole = whole + mine[:, :, None] * v[None, :, :]
    return (tl.reshape(_sum_lanes(low, HEADS, 1), [HEADS]),
            _sum_lanes(whole, HEADS, DIM))


@triton.jit
def _touch(pointers, M: tl.constexpr):
    tl.load(pointers + tl.arange(0, M))


def every_pointer_is_read(q, k, v, gate, keys, values, lengths, counts, out) -> None:
    for i in range(len(counts)):
        launch(_touch, (1,), keys.pointers[i:i + 1], M=1)


@triton.jit
def rotate_by_the_first(x, table, positions, out, x_token, x_head, out_token, out_head,
                        PAIRS: tl.constexpr, DIM: tl.constexpr):
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    position = tl.load(positions).to(tl.int64)
    d = tl.arange(0, DIM)
    turned = d < 2 * PAIRS
    mine = x + token * x_token + head * x_head
    value = tl.load(mine + d)
    partner = tl.load(mine + tl.where(d < PAIRS, d + PAIRS, d - PAIRS), mask=turned, other=0.0)
    entry = table + position * (2 * PAIRS) + d % PAIRS
    cos = tl.load(entry, mask=turned, other=1.0)
    sin = tl.load(entry + PAIRS, mask=turned, other=0.0)
    value = tl.where(d < PAIRS, value * cos - partner * sin, value * cos + partner * sin)
    tl.store(out + token * out_token + head * out_head + d, value)


@triton.jit
def truncate_to_kv(x, KV: tl.constexpr):
    if KV.is_bf16():
        x = (x.to(tl.uint32, bitcast=True) >> 16).to(tl.uint16)
    elif KV.is_fp16():
        near = x.to(tl.float16)
        larger = tl.abs(near.to(tl.float32)) > tl.abs(x)
        bits = near.to(tl.int16, bitcast=True)
        x = tl.where(larger, bits - 1, bits).to(tl.float16, bitcast=True)
    return x


@triton.jit
def nan_rounded_as_a_number(x, KV: tl.constexpr):
    if KV.is_bf16():
        bits = x.to(tl.uint32, bitcast=True)
        x = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.uint16)
    else:
        x = x.to(KV)
    return x


def values_by_the_strides_of_keys(q, k, v, gate, keys, values, lengths, counts, out) -> None:
    v = v.as_strided(k.shape, k.stride())
    kernel_attend.attend(q, k, v, gate, keys, values, lengths, counts, out)


@triton.jit
def read_as_bf16(x, KV: tl.constexpr):
    if not KV.is_fp32():
        bits = x.to(tl.uint16, bitcast=True)
        x = (bits.to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return x


@cache
def _compile_kernel(source: str, name: str, options: tuple[str, ...]) -> Kernel:
    return Kernel(compile_source(source, options), name)


def with_cuda_source(right: str, wrong: str) -> Builder:
    """Return a builder whose CUDA attention has one source string replaced."""
    def run(*args):
        source = replace_source(kernel_attend_cuda.source(), right, wrong)
        with _patch_module(kernel_attend_cuda, _function=lambda name, *of: _compile_kernel(
                source, name, kernel_attend_cuda.options(*of))):
            return kernel_attend_cuda.attend(*args)

    return with_ops(attend=Op(reference.attend, cuda=run))


def with_norm_rotate_source(right: str, wrong: str) -> Builder:
    """Return a builder whose CUDA norm and rotation have one source string replaced."""
    def run(norm, rotate, *args):
        source = replace_source(source_of(kernel_norm_rotate.SOURCE), right, wrong)
        with _patch_module(kernel_norm_rotate,
                           _function=lambda: _compile_kernel(source, "norm_rotate", ())):
            kernel_norm_rotate.norm_rotate(*args)

    return with_ops(norm_rotate=run)


def offset_of_31_bits(q, k, v, gate, keys, values, lengths, counts, out) -> None:
    """Use cache rows at the address that an offset without its upper bits would give."""
    near = []
    for cache_ in (keys, values):
        rows, apart = cache_.all_slots.shape[1], cache_.all_slots.stride(1)
        found = torch.tensor([i * apart % 2**31 // apart for i in range(rows)])
        near.append(Refs(cache_.all_slots[:, found.to(out.device)].contiguous(), cache_.slots))
    kernel_attend_cuda.attend(q, k, v, gate, *near, lengths, counts, out)
    for cache_, copy in zip((keys, values), near, strict=True):
        for slot, length, count in zip(keys.slots, lengths, counts, strict=True):
            new = slice(length, length + count)
            cache_.all_slots[slot, new] = copy.all_slots[slot, new]


def with_short_offsets() -> Builder:
    """Return a builder whose attention on a device drops the upper bits of offsets."""
    return with_ops(attend=Op(reference.attend, cuda=offset_of_31_bits))
