"""The product of m rows as a loop: every row by itself through the matrix's own product."""

from __future__ import annotations

from torch import Tensor

from engine.weights import Weight

ARITHMETIC = "exact-23"
"""Of Q4_K, Q5_K, Q6_K and Q8_0 unless the matrix says `ordered`; other types are `ordered`."""


def gemv_rows(weight: Weight, x: Tensor, out: Tensor) -> None:
    """Write W x for every row of x f32[m, K] into out f32[m, N]; rows may have any stride."""
    for row, into in zip(x.split(1), out.split(1), strict=True):
        into.copy_(weight.product(row))
