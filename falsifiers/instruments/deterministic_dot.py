"""Makes float dots in Triton's interpreter independent of the position in the tile.

The interpreter multiplies with BLAS, which uses different kernels for different rows of a tile.
A correct `tl.dot` then differs between rows, unlike on a device. The interpreter also multiplies
the bit patterns of bfloat16 values instead of the values.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from falsifiers.instruments.load_counter import interpreter_builder


@contextmanager
def deterministic_dots() -> Iterator[None]:
    """Compute each element of a float dot in the block as one f32 sum in order of k.

    Integer dots are exact already. Without the interpreter nothing changes.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        yield
        return
    builder = interpreter_builder()
    real = builder.create_dot

    def ordered_dot(self: Any, a: Any, b: Any, d: Any, *args: Any, **kwargs: Any) -> Any:
        left, right = _float_values(a), _float_values(b)
        if left is None or right is None or d.data.dtype.kind != "f":
            return real(self, a, b, d, *args, **kwargs)
        total = d.data
        for k in range(left.shape[-1]):
            term = left[..., k:k + 1].astype(total.dtype) * right[..., k:k + 1, :]
            total = total + term.astype(total.dtype)
        return type(d)(total, d.dtype.scalar)

    builder.create_dot = ordered_dot
    try:
        yield
    finally:
        builder.create_dot = real


def _float_values(x: Any) -> Any:
    """Return a handle's values as floats, or None for other types."""
    if x.dtype.scalar.is_bf16():
        return (x.data.astype(np.uint32) << 16).view(np.float32)
    return x.data if x.data.dtype.kind == "f" else None
