"""Fences: every load and store of a kernel under the interpreter, held to memory it may touch.

A masked lane touches nothing. A device tells of an access outside an allocation, or of one that
is not aligned to its width, by chance alone; here each is seen.
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
    """What was touched, and every kind of stray found."""

    may_read: tuple[Span, ...]
    may_write: tuple[Span, ...]
    around: tuple[Span, ...] = ()
    """Where accesses are held, when given; what a callee allocated itself lies outside."""
    accesses: int = 0
    """Loads and stores watched."""
    strays: list[str] = field(default_factory=list)
    """One sentence for each operation that strayed, the first address of each."""

    def watch(self, what: str, addresses: Any, width: int) -> None:
        """Look at one operation of `width` bytes at each address."""
        at = addresses.astype(np.int64)
        if self.around:
            at = at[_inside(at, width, self.around, partly=True)]
        if not len(at):
            return
        self.accesses += 1
        spans = self.may_read if what == "load" else self.may_write
        inside = _inside(at, width, spans)
        if not inside.all():
            self.strays.append(
                f"a {what} of {width} bytes {_describe_address(spans, int(at[~inside][0]))}"
            )
        skewed = at[at % width != 0]
        if len(skewed):
            self.strays.append(f"a {what} of {width} bytes at an address that is "
                               f"{int(skewed[0]) % width} past a multiple of {width}")


def _inside(at: Any, width: int, spans: tuple[Span, ...], partly: bool = False) -> Any:
    """Return which accesses lie in a span, all of their bytes or some."""
    room = width - 1 if partly else 0
    inside = np.zeros(len(at), dtype=bool)
    for span in spans:
        inside |= (at + room >= span.start) & (at + width - room <= span.end)
    return inside


def _describe_address(spans: tuple[Span, ...], address: int) -> str:
    """Say where an address lies, from the nearest span."""
    near = min(spans, key=lambda s: min(abs(address - s.start), abs(address - s.end)))
    if address < near.start:
        return f"{near.start - address} bytes before {near.name}"
    return f"{address - near.start} bytes into {near.name}, which ends at {near.end - near.start}"


@contextmanager
def check_bounds(may_read: Mapping[str, Tensor], may_write: Mapping[str, Tensor],
           around: Mapping[str, Tensor] | None = None) -> Iterator[BoundsChecker]:
    """Watch what kernels launched in the block touch; tensors are on the CPU, of any strides.

    What may be written may be read too. With `around`, memory outside of it is not judged.
    Raises `Unmeasurable` without the interpreter.
    """
    writable = tuple(Span.from_tensor(name, x) for name, x in may_write.items())
    readable = tuple(Span.from_tensor(name, x) for name, x in may_read.items())
    outer = tuple(Span.from_tensor(name, x) for name, x in (around or {}).items())
    fence = BoundsChecker((*readable, *writable), writable, outer)
    builder = interpreter_builder()
    load, store = builder.create_masked_load, builder.create_masked_store

    def watched_load(self: Any, ptrs: Any, mask: Any, *rest: Any, **named: Any) -> Any:
        fence.watch("load", _install(ptrs, mask), _width(ptrs))
        return load(self, ptrs, mask, *rest, **named)

    def watched_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any,
                      **named: Any) -> Any:
        fence.watch("store", _install(ptrs, mask), _width(ptrs))
        return store(self, ptrs, value, mask, *rest, **named)

    builder.create_masked_load, builder.create_masked_store = watched_load, watched_store
    try:
        yield fence
    finally:
        builder.create_masked_load, builder.create_masked_store = load, store


def _install(ptrs: Any, mask: Any) -> Any:
    return ptrs.data[np.broadcast_to(mask.data, ptrs.data.shape)].ravel()


def _width(ptrs: Any) -> int:
    return int(max(1, ptrs.get_element_ty().primitive_bitwidth // 8))
