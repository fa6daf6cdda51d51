"""The recurrent ops of a GDN layer in CUDA C++ (`gdn.cu`), compiled by NVRTC: one launch an op.

State is read once and written once a call, however many tokens a row has, and stays in registers
between them. The bits are those of the Triton kernels and of the reference.
"""

# mypy: ignore-errors

from __future__ import annotations

from ctypes import c_float, c_longlong
from functools import cache
from math import ceil
from pathlib import Path

from torch import Tensor, contiguous_format

from engine.config import STATE_SIZE
from engine.errors import InputError
from engine.kernels.nvrtc import Kernel, compile_source, source_of
from engine.state import Ints, Refs
from phases.p5_batched_gdn.reference import scale_of

ARITHMETIC = "ordered"
SOURCE = Path(__file__).with_name("gdn.cu")
CHANNELS, SPAN = 256, 64
"""Channels and tokens of a row that a block of the convolution takes."""
HEAD_WARPS = 8
"""Warps that share a value head; twice as many where a row has many tokens."""
BUSY = 128
"""Blocks that keep a device's multiprocessors at work."""


@cache
def _function(name: str, warps: int = 4, run: bool = False) -> Kernel:
    return Kernel(compile_source(source_of(SOURCE), options(warps, run)), name, early=True)


def options(warps: int, run: bool = False) -> tuple[str, ...]:
    """Return the compiler options for blocks of the delta rule of this many warps.

    `run` is for rows of more than one token.
    """
    return f"-DWARPS={warps}", f"-DRUN={int(run)}"


def warps_of(work: int) -> int:
    """Return the warps of a block: fewer when `work` warps are few, so that more blocks share it.

    It decides speed and no bit.
    """
    return next((w for w in (4, 2) if work >= w * BUSY), 1)


def _aligned(x: Tensor) -> Tensor:
    """Return a tensor whose last axes are dense and whose tokens begin at 16 bytes, as x if so."""
    dense = x[0].is_contiguous() if len(x) else True
    if dense and x.data_ptr() % 16 == 0 and x.stride(0) % 4 == 0:
        return x
    return x.clone(memory_format=contiguous_format)


def conv_step(x: Tensor, taps: Tensor, windows: Refs, counts: tuple[int, ...],
              out: Tensor) -> None:
    """Write the SiLU of the causal convolution of x[t, C] into out[t, C]; shift the windows."""
    if not any(counts):  # without a token a launch has no block
        return
    starts, channels = _starts(counts, x), x.shape[1]
    blocks = ceil(channels / CHANNELS) * ceil(max(counts) / SPAN)
    _function("conv_step")((blocks, len(counts)), CHANNELS, 0, x, c_longlong(x.stride(0)),
                           _aligned(taps), windows.pointers, starts, channels, out,
                           c_longlong(out.stride(0)))


def gates(a: Tensor, b: Tensor, decay: Tensor, dt_bias: Tensor, alpha: Tensor,
          beta: Tensor) -> None:
    """Write EXP(decay * SOFTPLUS(a + dt_bias)) into alpha[t, V], SIGMOID(b) into beta[t, V]."""
    tokens, heads = a.shape
    count = tokens * heads
    _function("gates")(((count + 127) // 128, 1), 128, 0, a, c_longlong(a.stride(0)), b,
                       c_longlong(b.stride(0)), decay, dt_bias, heads, count, alpha, beta)


def delta_step(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, states: Refs,
               counts: tuple[int, ...], out: Tensor) -> None:
    """Advance the gated delta rule for each row's tokens in order; write reads into out[t, V, 128].

    q and k are [t, key_heads, 128] and v is [t, V, 128], with any stride from token to token;
    value head h uses key head h mod key_heads.
    """
    if v.shape[2] != STATE_SIZE:
        raise InputError(f"heads of width {v.shape[2]} are not supported, only {STATE_SIZE}")
    q, k, v = _aligned(q), _aligned(k), _aligned(v)
    heads, run = v.shape[1], max(counts) > 1
    work = heads * HEAD_WARPS * (1 + run)
    warps = warps_of(len(counts) * work)
    _function("delta_step", warps, run)(
        (work // warps, len(counts)), warps * 32, 0, q, c_longlong(q.stride(0)), k,
        c_longlong(k.stride(0)), v, c_longlong(v.stride(0)), alpha, beta, states.pointers,
        _starts(counts, q), k.shape[1], heads, c_float(scale_of(q)), out)


def _starts(counts: tuple[int, ...], like: Tensor) -> Tensor:
    counts = counts if isinstance(counts, Ints) else Ints(counts)
    return counts.starts.on(like.device)
