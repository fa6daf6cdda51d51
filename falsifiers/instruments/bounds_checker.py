"""Checks every load and store of a kernel in Triton's interpreter against memory bounds.

A masked lane accesses nothing. A device detects an access outside an allocation, or one that is
not aligned to its width, only by chance; the interpreter detects each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from falsifiers.instruments.load_counter import interpreter_builder


@dataclass(frozen=True)
class Span:
    """The memory from a tensor's first to its last value."""

    name: str
    start: int
    end: int

    @staticmethod
    def from_tensor(name: str, x: Tensor) -> Span:
        """Return the span of a tensor of any strides, which must not be empty."""
        last = sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
        return Span(name, x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size())


@dataclass
class BoundsChecker:
    """Counts accesses and lists those out of bounds or not aligned."""

    may_read: tuple[Span, ...]
    may_write: tuple[Span, ...]
    around: tuple[Span, ...] = ()
    """If not empty, only accesses in this memory are checked, not a callee's allocations."""
    accesses: int = 0
    """The number of loads and stores checked."""
    violations: list[str] = field(default_factory=list)
    """One sentence for each operation out of bounds or not aligned, with its first address."""

    def watch(self, what: str, addresses: Any, width: int) -> None:
        """Check one operation of `width` bytes at each address."""
        at = addresses.astype(np.int64)
        if self.around:
            at = at[_inside(at, width, self.around, partly=True)]
        if not len(at):
            return
        self.accesses += 1
        spans = self.may_read if what == "load" else self.may_write
        inside = _inside(at, width, spans)
        if not inside.all():
            self.violations.append(
                f"a {what} of {width} bytes {_describe_address(spans, int(at[~inside][0]))}"
            )
        skewed = at[at % width != 0]
        if len(skewed):
            self.violations.append(f"a {what} of {width} bytes at an address that is "
                               f"{int(skewed[0]) % width} past a multiple of {width}")


def _inside(at: Any, width: int, spans: tuple[Span, ...], partly: bool = False) -> Any:
    """Return which accesses are in a span: all of their bytes, or with `partly` any."""
    room = width - 1 if partly else 0
    inside = np.zeros(len(at), dtype=bool)
    for span in spans:
        inside |= (at + room >= span.start) & (at + width - room <= span.end)
    return inside


def _describe_address(spans: tuple[Span, ...], address: int) -> str:
    """Return an address relative to the nearest span."""
    near = min(spans, key=lambda s: min(abs(address - s.start), abs(address - s.end)))
    if address < near.start:
        return f"{near.start - address} bytes before {near.name}"
    return f"{address - near.start} bytes into {near.name}, which ends at {near.end - near.start}"


@contextmanager
def check_bounds(may_read: Mapping[str, Tensor], may_write: Mapping[str, Tensor],
                 around: Mapping[str, Tensor] | None = None) -> Iterator[BoundsChecker]:
    """Check the accesses of kernels launched in the block; tensors are on the CPU, any strides.

    Memory in `may_write` may also be read. With `around`, accesses outside of it are not checked.
    Raises `Unmeasurable` without the interpreter.
    """
    writable = tuple(Span.from_tensor(name, x) for name, x in may_write.items())
    readable = tuple(Span.from_tensor(name, x) for name, x in may_read.items())
    outer = tuple(Span.from_tensor(name, x) for name, x in (around or {}).items())
    checker = BoundsChecker((*readable, *writable), writable, outer)
    builder = interpreter_builder()
    load, store = builder.create_masked_load, builder.create_masked_store

    def watched_load(self: Any, ptrs: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
        checker.watch("load", _active_addresses(ptrs, mask), _width(ptrs))
        return load(self, ptrs, mask, *args, **kwargs)

    def watched_store(self: Any, ptrs: Any, value: Any, mask: Any, *args: Any,
                      **kwargs: Any) -> Any:
        checker.watch("store", _active_addresses(ptrs, mask), _width(ptrs))
        return store(self, ptrs, value, mask, *args, **kwargs)

    builder.create_masked_load, builder.create_masked_store = watched_load, watched_store
    try:
        yield checker
    finally:
        builder.create_masked_load, builder.create_masked_store = load, store


def _active_addresses(ptrs: Any, mask: Any) -> Any:
    return ptrs.data[np.broadcast_to(mask.data, ptrs.data.shape)].ravel()


def _width(ptrs: Any) -> int:
    return int(max(1, ptrs.get_element_ty().primitive_bitwidth // 8))
