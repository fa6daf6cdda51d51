"""Causal convolution of m rows; each row's window is at its own pointer.

A program processes one row and a block of channels, and loops over the row's tokens in order. For a
row without tokens it returns before it reads the pointer.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import launch
from engine.kernels.functions import silu
from engine.state import Ints, Refs

ARITHMETIC = "ordered"


@triton.jit
def _conv_step(x, taps, windows, starts, out, channels, x_stride, out_stride, BLOCK: tl.constexpr):
    row = tl.program_id(1)
    first, end = tl.load(starts + row), tl.load(starts + row + 1)
    if first < end:
        channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = channel < channels
        window = tl.load(windows + row).to(tl.pointer_type(tl.float32)) + channel * 3
        a = tl.load(window, mask=mask, other=0.0)
        b = tl.load(window + 1, mask=mask, other=0.0)
        c = tl.load(window + 2, mask=mask, other=0.0)
        w0 = tl.load(taps + channel * 4, mask=mask, other=0.0)
        w1 = tl.load(taps + channel * 4 + 1, mask=mask, other=0.0)
        w2 = tl.load(taps + channel * 4 + 2, mask=mask, other=0.0)
        w3 = tl.load(taps + channel * 4 + 3, mask=mask, other=0.0)
        for token in range(end - first):
            at = first.to(tl.int64) + token
            newest = tl.load(x + at * x_stride + channel, mask=mask, other=0.0)
            y = ((w0 * a + w1 * b) + w2 * c) + w3 * newest
            tl.store(out + at * out_stride + channel, silu(y), mask=mask)
            a, b, c = b, c, newest
        tl.store(window, a, mask=mask)
        tl.store(window + 1, b, mask=mask)
        tl.store(window + 2, c, mask=mask)


def conv_step(x: Tensor, taps: Tensor, windows: Refs, counts: tuple[int, ...], out: Tensor,
              block: int = 256) -> None:
    """Write the SiLU of the causal convolution of x[t, C] into out[t, C]; shift the windows.

    Tokens of x and out may be strided; taps f32[C, 4] are contiguous. `block` changes no result.
    """
    counts = counts if isinstance(counts, Ints) else Ints(counts)
    channels = x.shape[1]
    launch(_conv_step, (triton.cdiv(channels, block), len(counts)), x, taps, windows.pointers,
           counts.starts.on(x.device), out, channels, x.stride(0), out.stride(0), BLOCK=block)
