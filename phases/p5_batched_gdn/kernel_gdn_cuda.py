"""Recurrent ops of a GDN layer in CUDA C++ (`gdn.cu`), compiled by NVRTC; one launch per op.

The state is loaded and stored once per call and stays in registers between tokens. Same bits as the
Triton kernels and the reference.
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
CONV_CHANNELS, CONV_SPAN = 256, 64
"""Channels, and tokens of a row, per block of `conv_step`; the same constants as in `gdn.cu`."""
HEAD_WARPS = 8
"""Warps per value head; twice as many if a row has more than one token."""
BUSY_BLOCKS = 128
"""Number of blocks that occupies all multiprocessors."""


@cache
def _function(name: str, warps: int = 4, multi_token: bool = False) -> Kernel:
    return Kernel(compile_source(source_of(SOURCE), options(warps, multi_token)), name, pdl=True)


def options(warps: int, multi_token: bool = False) -> tuple[str, ...]:
    """Return the NVRTC options for `warps` warps per block of the delta rule.

    `multi_token` selects the variant for rows of more than one token.
    """
    return f"-DWARPS={warps}", f"-DMULTI_TOKEN={int(multi_token)}"


def warps_of(work: int) -> int:
    """Return the warps per block: fewer if there are few warps in all, so that more blocks run.

    It affects speed, never bits.
    """
    return next((w for w in (4, 2) if work >= w * BUSY_BLOCKS), 1)


def _aligned(x: Tensor) -> Tensor:
    """Return x, or a copy if tokens are not contiguous or not aligned to 16 bytes."""
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
    blocks = ceil(channels / CONV_CHANNELS) * ceil(max(counts) / CONV_SPAN)
    _function("conv_step")((blocks, len(counts)), CONV_CHANNELS, 0, x, c_longlong(x.stride(0)),
                           _aligned(taps), windows.pointers, starts, channels, out,
                           c_longlong(out.stride(0)))


def gates(a: Tensor, b: Tensor, neg_exp_a: Tensor, dt_bias: Tensor, alpha: Tensor,
          beta: Tensor) -> None:
    """Write EXP(neg_exp_a * SOFTPLUS(a + dt_bias)) into alpha[t, V], SIGMOID(b) into beta[t, V].

    neg_exp_a is GGUF `ssm_a`, which stores -exp(A_log).
    """
    tokens, heads = a.shape
    count = tokens * heads
    _function("gates")(((count + 127) // 128, 1), 128, 0, a, c_longlong(a.stride(0)), b,
                       c_longlong(b.stride(0)), neg_exp_a, dt_bias, heads, count, alpha, beta)


def delta_step(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, states: Refs,
               counts: tuple[int, ...], out: Tensor) -> None:
    """Advance the gated delta rule for each row's tokens in order; write reads into out[t, V, 128].

    q and k are [t, key_heads, 128] and v is [t, V, 128], with any stride from token to token;
    value head h uses key head h mod key_heads.
    """
    if v.shape[2] != STATE_SIZE:
        raise InputError(f"heads of width {v.shape[2]} are not supported, only {STATE_SIZE}")
    q, k, v = _aligned(q), _aligned(k), _aligned(v)
    heads, multi_token = v.shape[1], max(counts) > 1
    work = heads * HEAD_WARPS * (1 + multi_token)
    warps = warps_of(len(counts) * work)
    _function("delta_step", warps, multi_token)(
        (work // warps, len(counts)), warps * 32, 0, q, c_longlong(q.stride(0)), k,
        c_longlong(k.stride(0)), v, c_longlong(v.stride(0)), alpha, beta, states.pointers,
        _starts(counts, q), k.shape[1], heads, c_float(scale_of(q)), out)


def _starts(counts: tuple[int, ...], like: Tensor) -> Tensor:
    counts = counts if isinstance(counts, Ints) else Ints(counts)
    return counts.starts.on(like.device)
