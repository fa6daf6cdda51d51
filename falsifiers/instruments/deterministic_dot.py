"""Triton's interpreter made steady: in a float dot every row and column is worked in one way.

It multiplies by BLAS, whose kernels differ from row to row of a tile, so that an honest `tl.dot`
would part from itself there as no device makes it; and it takes bfloat16 for its bit patterns.
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
    """Make float dots of kernels launched in the block one f32 sum an element, in order of k.

    Integer dots are exact as they are. Without the interpreter nothing is changed.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        yield
        return
    builder = interpreter_builder()
    real = builder.create_dot

    def steady(self: Any, a: Any, b: Any, d: Any, *rest: Any, **named: Any) -> Any:
        left, right = _float_values(a), _float_values(b)
        if left is None or right is None or d.data.dtype.kind != "f":
            return real(self, a, b, d, *rest, **named)
        total = d.data
        for k in range(left.shape[-1]):
            term = left[..., k:k + 1].astype(total.dtype) * right[..., k:k + 1, :]
            total = total + term.astype(total.dtype)
        return type(d)(total, d.dtype.scalar)

    builder.create_dot = steady
    try:
        yield
    finally:
        builder.create_dot = real


def _float_values(x: Any) -> Any:
    """Return a handle's values as floats, or None where the interpreter must convert them."""
    if x.dtype.scalar.is_bf16():
        return (x.data.astype(np.uint32) << 16).view(np.float32)
    return x.data if x.data.dtype.kind == "f" else None
