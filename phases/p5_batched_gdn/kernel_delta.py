"""Gated delta rule of m rows; each row's state is at its own pointer.

A program processes one row, one value head and a block of its columns. It loads the state once,
loops over the row's tokens in order, and stores the state once. The tile is [columns, keys], so the
sum over keys runs along the last axis. For a row without tokens it returns before it reads the
pointer.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import launch, pair_sum
from engine.state import Ints, Refs
from phases.p5_batched_gdn.reference import scale_of

ARITHMETIC = "ordered"


@triton.jit
def _sum_over_keys(x, COLUMNS: tl.constexpr, KEYS: tl.constexpr, STEPS: tl.constexpr):
    """Return SUM over the keys of x[columns, keys]. SUM starts at +0, which may be added last."""
    for step in tl.static_range(STEPS):
        left, right = tl.split(tl.reshape(x, [COLUMNS, KEYS >> (step + 1), 2]))
        x = left + right
    return tl.reshape(x, [COLUMNS]) + 0.0


@triton.jit
def _l2_normalised(x, KEYS: tl.constexpr, STEPS: tl.constexpr):
    """Return x / sqrt(sum of squares + 1e-6); squares are never -0, so no +0 is added."""
    return x * tl.div_rn(1.0, tl.sqrt_rn(pair_sum(x * x, KEYS, STEPS) + 1e-6))


@triton.jit
def _delta_step(q, k, v, alpha, beta, states, starts, out, q_stride, k_stride, v_stride, key_heads,
                heads, scale, KEYS: tl.constexpr, STEPS: tl.constexpr, COLUMNS: tl.constexpr):
    head, row = tl.program_id(1), tl.program_id(2)
    first, end = tl.load(starts + row), tl.load(starts + row + 1)
    if first < end:
        key = tl.arange(0, KEYS)
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        key_offset = (head % key_heads) * KEYS + key
        value_offset = head * KEYS + column
        state_ptr = tl.load(states + row).to(tl.pointer_type(tl.float32)) \
            + head.to(tl.int64) * KEYS * KEYS + key[None, :] * KEYS + column[:, None]
        state = tl.load(state_ptr)
        for token in range(end - first):
            at = first.to(tl.int64) + token
            k_unit = _l2_normalised(tl.load(k + at * k_stride + key_offset), KEYS, STEPS)
            q_unit = _l2_normalised(tl.load(q + at * q_stride + key_offset), KEYS, STEPS) * scale
            state = state * tl.load(alpha + at * heads + head)
            read = _sum_over_keys(state * k_unit[None, :], COLUMNS, KEYS, STEPS)
            v_new = tl.load(beta + at * heads + head) * (
                tl.load(v + at * v_stride + value_offset) - read)
            state = state + k_unit[None, :] * v_new[:, None]
            result = _sum_over_keys(state * q_unit[None, :], COLUMNS, KEYS, STEPS)
            tl.store(out + at * heads * KEYS + value_offset, result)
        tl.store(state_ptr, state)


def delta_step(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, states: Refs,
               counts: tuple[int, ...], out: Tensor, columns: int | None = None) -> None:
    """Advance the gated delta rule for each row's tokens in order; write reads into out[t, V, 128].

    Tokens of q, k and v may be strided, their heads are contiguous; alpha, beta and out are
    contiguous. The head width may be any power of two up to 128. `columns` (per program) changes no
    result.
    """
    counts = counts if isinstance(counts, Ints) else Ints(counts)
    heads, width = v.shape[1:]
    columns = columns or min(width, 32 if q.is_cuda else width)
    launch(_delta_step, (width // columns, heads, len(counts)), q, k, v, alpha, beta,
           states.pointers, counts.starts.on(q.device), out, q.stride(0), k.stride(0), v.stride(0),
           k.shape[1], heads, scale_of(q), KEYS=width, STEPS=width.bit_length() - 1,
           COLUMNS=columns)
