"""Single-row Triton kernels, one op per file, with the same bits as the CPU reference.

`launch` disables contraction (`enable_fp_fusion=False`). It also disables NumPy's floating-point
errors, because the interpreter would raise one when a kernel casts NaN to an integer.
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl


def launch(kernel, grid: tuple[int, ...], *args, **constants) -> None:
    """Launch a kernel over `grid` without floating-point contraction."""
    with np.errstate(all="ignore"):
        kernel[grid](*args, **constants, enable_fp_fusion=False)


@triton.jit
def pair_sum(x, WIDTH: tl.constexpr, STEPS: tl.constexpr):
    """Add adjacent pairs of x[WIDTH], a power of two, until one is left (arithmetic.md, sums)."""
    for step in tl.static_range(STEPS):
        left, right = tl.split(tl.reshape(x, [WIDTH >> (step + 1), 2]))
        x = left + right
    return tl.sum(x)  # one element, so the order does not matter


__all__ = ["launch", "pair_sum"]
