"""Argmax of m rows as one integer maximum over packed (value, index) pairs.

A value is mapped to an integer of the same order (-0 and +0 to the same one); the low 32 bits are
0x7FFFFFFF - index. The largest pair has the lowest index of the largest value, in any reduction
order. NaN is larger than every number.
"""

# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import launch
from engine.ops import refuse_nan


@triton.jit
def _part_argmax(logits, best, n, stride, parts, BLOCK: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = part * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(logits + row * stride + column, mask=column < n, other=0.0)
    bits = value.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    key = tl.where(bits < 0, -magnitude, magnitude)
    key = tl.where(magnitude > 0x7F800000, 0x7FFFFFFF, key)
    pair = (key.to(tl.int64) << 32) | (0x7FFFFFFF - column).to(tl.int64)
    pair = tl.where(column < n, pair, -0x7FFFFFFFFFFFFFFF)
    tl.store(best + row * parts + part, tl.max(pair, axis=0))


@triton.jit
def _merge_parts(best, out, parts, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, BLOCK)
    pair = tl.load(best + row * parts + part, mask=part < parts, other=-0x7FFFFFFFFFFFFFFF)
    pair = tl.max(pair, axis=0)
    index = 0x7FFFFFFF - (pair & 0x7FFFFFFF)
    tl.store(out + row, tl.where((pair >> 32) == 0x7FFFFFFF, -1, index))


def argmax(logits: Tensor, out: Tensor, refuse: bool = True, block: int = 4096) -> None:
    """Write each row's largest index of logits f32[m, vocab] into out i64[m], the lowest on ties.

    Rows may be strided, columns not. A row with NaN gets -1. With `refuse` it raises `InputError`,
    which makes the host wait for the result. `block` changes no result.
    """
    m, n = logits.shape
    parts = triton.cdiv(n, block)
    best = torch.empty(m, parts, dtype=torch.int64, device=logits.device)
    launch(_part_argmax, (m, parts), logits, best, n, logits.stride(0), parts, BLOCK=block)
    launch(_merge_parts, (m,), best, out, parts, BLOCK=triton.next_power_of_2(parts))
    if refuse:
        refuse_nan(out)
