"""A candidate that fails P3: a product with `tl.dot` that splits K into more parts for more rows.

    pytest -m phase3 --candidate file:docs/examples/split_by_width.py

A split fills a large device when m is small, and its sums are as accurate as others. But the sums
at m = 2 differ from those at m = 1, so a row's bits depend on the number of concurrent requests.
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
def _dot_rows(weight, x, out, n, k, m, x_stride, out_stride, part, PARTS: tl.constexpr,
              M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    row = tl.arange(0, M).to(tl.int64)
    column = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    whole = tl.zeros([M, N], tl.float32)
    for number in tl.static_range(PARTS):
        total = tl.zeros([M, N], tl.float32)
        for start in range(number * part, number * part + part, K):
            inner = start + tl.arange(0, K)
            a = tl.load(x + row[:, None] * x_stride + inner[None, :],
                        mask=(row < m)[:, None] & (inner < k)[None, :], other=0.0)
            b = tl.load(weight + column[None, :] * k + inner[:, None],
                        mask=(column < n)[None, :] & (inner < k)[:, None], other=0.0)
            total = tl.dot(a, b, total)
        whole = whole + total
    tl.store(out + row[:, None] * out_stride + column[None, :], whole,
             mask=(row < m)[:, None] & (column < n)[None, :])


def prepare(weight: Any) -> Tensor:
    """Return the matrix in the kernel's layout, computed once: dequantised, f32[N, K]."""
    return weight.rows(list(range(weight.n))).to(DEVICE)


def gemv_rows(weight: Tensor, x: Tensor, out: Tensor) -> None:
    """Write W x for every row of x f32[m, K], m up to 64, into out f32[m, N]."""
    (n, k), m = weight.shape, len(x)
    parts = 1 if m == 1 else 2 if m <= 8 else 4
    part = triton.cdiv(triton.cdiv(k, parts), 32) * 32
    _dot_rows[(triton.cdiv(n, 32),)](weight, x, out, n, k, m, x.stride(0), out.stride(0), part,
                                     PARTS=parts, M=ROWS, N=32, K=32)
