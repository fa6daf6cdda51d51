"""A candidate for P3: an untuned product with `tl.dot`, in its own arithmetic.

    pytest -m phase3 --candidate file:docs/examples/dot_rows.py

It declares no arithmetic, so `truth` uses the contract's budget; `twin` is still bitwise. It passes
`twin` because its tile has 64 rows for every m: a row's sums use the same instructions in the same
order at m = 1 and in a batch.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
ROWS = 64


@triton.jit
def _dot_rows(weight, x, out, n, k, m, x_stride, out_stride, M: tl.constexpr, N: tl.constexpr,
              K: tl.constexpr):
    row = tl.arange(0, M).to(tl.int64)
    column = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    total = tl.zeros([M, N], tl.float32)
    for start in range(0, k, K):
        inner = start + tl.arange(0, K)
        a = tl.load(x + row[:, None] * x_stride + inner[None, :],
                    mask=(row < m)[:, None] & (inner < k)[None, :], other=0.0)
        b = tl.load(weight + column[None, :] * k + inner[:, None],
                    mask=(column < n)[None, :] & (inner < k)[:, None], other=0.0)
        total = tl.dot(a, b, total)
    tl.store(out + row[:, None] * out_stride + column[None, :], total,
             mask=(row < m)[:, None] & (column < n)[None, :])


def prepare(weight: Any) -> Tensor:
    """Return the matrix in the kernel's layout, computed once: dequantised, f32[N, K]."""
    return weight.rows(list(range(weight.n))).to(DEVICE)


def gemv_rows(weight: Tensor, x: Tensor, out: Tensor) -> None:
    """Write W x for every row of x f32[m, K] into out f32[m, N]."""
    n, k = weight.shape
    for first in range(0, len(x), ROWS):
        rows, into = x[first:first + ROWS], out[first:first + ROWS]
        _dot_rows[(triton.cdiv(n, 32),)](weight, rows, into, n, k, len(rows), rows.stride(0),
                                         into.stride(0), M=ROWS, N=32, K=32)
