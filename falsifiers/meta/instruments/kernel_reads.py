"""Two kernels for tests of the load counter: one loads a weight once, one for each row."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 64


@triton.jit
def _scale_rows(weight, x, out, n, rows, AGAIN: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    w = tl.load(weight + at, mask=at < n, other=0.0)
    for row in range(rows):
        if AGAIN:
            if row > 0:
                w = tl.load(weight + at, mask=at < n, other=0.0)
        value = tl.load(x + row * n + at, mask=at < n, other=0.0)
        tl.store(out + row * n + at, value * w, mask=at < n)


def scale_rows(weight: Tensor, x: Tensor, out: Tensor) -> None:
    """Write x[rows, n] * weight[n] into out, loading the weight once."""
    _launch(weight, x, out, again=False)


def scale_rows_rereading(weight: Tensor, x: Tensor, out: Tensor) -> None:
    """Write the same, loading the weight again for each row."""
    _launch(weight, x, out, again=True)


def _launch(weight: Tensor, x: Tensor, out: Tensor, again: bool) -> None:
    rows, n = x.shape
    _scale_rows[(triton.cdiv(n, BLOCK),)](weight, x, out, n, rows, AGAIN=again, BLOCK=BLOCK,
                                          enable_fp_fusion=False)
