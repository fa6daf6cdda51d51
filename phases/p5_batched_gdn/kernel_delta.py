"""The gated delta rule of m rows, each on the state behind its own pointer.

A program takes one row, one value head and a block of its columns, and the row's tokens in order;
state is loaded once and stored once, whatever their number. The tile is [columns, keys], so that
the sum over keys runs along its last axis. A row without tokens is left before its pointer is read.
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
def _over_keys(x, COLUMNS: tl.constexpr, KEYS: tl.constexpr, STEPS: tl.constexpr):
    """Return SUM over the keys of x[columns, keys]; a lane begins at +0, which may come last."""
    for step in tl.static_range(STEPS):
        left, right = tl.split(tl.reshape(x, [COLUMNS, KEYS >> (step + 1), 2]))
        x = left + right
    return tl.reshape(x, [COLUMNS]) + 0.0


@triton.jit
def _unit(x, KEYS: tl.constexpr, STEPS: tl.constexpr):
    """Return x times RSQRT of its sum of squares; squares are never -0."""
    return x * tl.div_rn(1.0, tl.sqrt_rn(pair_sum(x * x, KEYS, STEPS) + 1e-6))


@triton.jit
def _delta_step(q, k, v, g, beta, states, starts, out, q_stride, k_stride, v_stride, key_heads,
                heads, scale, KEYS: tl.constexpr, STEPS: tl.constexpr, COLUMNS: tl.constexpr):
    head, row = tl.program_id(1), tl.program_id(2)
    first, end = tl.load(starts + row), tl.load(starts + row + 1)
    if first < end:
        key = tl.arange(0, KEYS)
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        shared = (head % key_heads) * KEYS + key
        own = head * KEYS + column
        place = tl.load(states + row).to(tl.pointer_type(tl.float32)) \
            + head.to(tl.int64) * KEYS * KEYS + key[None, :] * KEYS + column[:, None]
        state = tl.load(place)
        for token in range(end - first):
            at = first.to(tl.int64) + token
            unit_k = _unit(tl.load(k + at * k_stride + shared), KEYS, STEPS)
            unit_q = _unit(tl.load(q + at * q_stride + shared), KEYS, STEPS) * scale
            state = state * tl.load(g + at * heads + head)
            read = _over_keys(state * unit_k[None, :], COLUMNS, KEYS, STEPS)
            change = tl.load(beta + at * heads + head) * (tl.load(v + at * v_stride + own) - read)
            state = state + unit_k[None, :] * change[:, None]
            result = _over_keys(state * unit_q[None, :], COLUMNS, KEYS, STEPS)
            tl.store(out + at * heads * KEYS + own, result)
        tl.store(place, state)


def delta_step(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, states: Refs,
               counts: tuple[int, ...], out: Tensor, columns: int | None = None) -> None:
    """Advance the gated delta rule for each row's tokens in order; write reads into out[t, V, 128].

    Tokens of q, k and v may be strided, their heads are dense; alpha, beta and out are dense. The
    width of a head may be any power of two up to 128. `columns` of a program change no result.
    """
    counts = counts if isinstance(counts, Ints) else Ints(counts)
    heads, width = v.shape[1:]
    columns = columns or min(width, 32 if q.is_cuda else width)
    launch(_delta_step, (width // columns, heads, len(counts)), q, k, v, alpha, beta,
           states.pointers, counts.starts.on(q.device), out, q.stride(0), k.stride(0),
           v.stride(0), k.shape[1], heads, scale_of(q), KEYS=width, STEPS=width.bit_length() - 1,
           COLUMNS=columns)
