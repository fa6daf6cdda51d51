"""Counts the bytes of a tensor that kernels load in Triton's interpreter.

Every Triton load calls the interpreter's masked load, so addresses are counted there. Masked
lanes load nothing.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from falsifiers.judging.errors import Unmeasurable


@dataclass
class LoadCount:
    """The loads from one tensor's memory."""

    start: int
    """Address of the first byte."""
    size: int
    """Bytes of the tensor."""
    total: int = 0
    """Bytes loaded, repeated loads included."""
    loads: int = 0
    """Load operations that touched it."""
    seen: Any = field(default=None, repr=False)
    """bool [size], True where a byte was loaded."""

    def __post_init__(self) -> None:
        self.seen = np.zeros(self.size, dtype=bool)

    @property
    def unique(self) -> int:
        """Bytes loaded at least once."""
        return int(self.seen.sum())

    @property
    def times(self) -> float:
        """Bytes loaded per byte of the tensor: 1.0 is each byte once."""
        return self.total / self.size if self.size else 0.0

    def take(self, addresses: Any, width: int) -> None:
        """Count one load of `width` bytes at each address."""
        offsets = addresses.astype(np.int64) - self.start
        inside = offsets[(offsets > -width) & (offsets < self.size)]
        if not len(inside):
            return
        self.loads += 1
        for byte in range(width):
            at = inside + byte
            at = at[(at >= 0) & (at < self.size)]
            self.total += len(at)
            self.seen[at] = True


@contextmanager
def count_loads(**tensors: Tensor) -> Iterator[dict[str, LoadCount]]:
    """Count what kernels launched in the block load from each named tensor.

    The tensors must be contiguous and on the CPU. Raises `Unmeasurable` without the interpreter.
    """
    builder = interpreter_builder()
    regions = {name: LoadCount(x.data_ptr(), x.numel() * x.element_size())
               for name, x in tensors.items()}
    real = builder.create_masked_load

    def counted(self: Any, ptrs: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        on = np.broadcast_to(mask.data, ptrs.data.shape)
        addresses = ptrs.data[on].ravel()
        width = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
        for region in regions.values():
            region.take(addresses, width)
        return real(self, ptrs, mask, *rest, **named)

    builder.create_masked_load = counted
    try:
        yield regions
    finally:
        builder.create_masked_load = real


def interpreter_builder() -> Any:
    """Return the class whose methods run operations in the interpreter, or raise `Unmeasurable`."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise Unmeasurable("loads and stores are observed only in Triton's interpreter: set "
                           "TRITON_INTERPRET=1")
    try:
        return importlib.import_module("triton.runtime.interpreter").InterpreterBuilder
    except ImportError as error:
        raise Unmeasurable(f"triton's interpreter cannot be loaded: {error}") from None
