"""Kernels with accesses out of bounds or not aligned, for tests of the bounds checker."""

# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _copy(x, out, n, LOAD: tl.constexpr, STORE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n + LOAD, other=0)
    tl.store(out + at, value, mask=at < n + STORE)


@triton.jit
def _pairs(x, out, n, SKIP: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load((x + SKIP).to(tl.pointer_type(tl.uint16)) + at, mask=at < n, other=0)
    tl.store(out + at, value, mask=at < n)


def copy(x: Tensor, out: Tensor, load: int = 0, store: int = 0) -> None:
    """Copy x[n] into out[n], loading `load` and storing `store` values past the end."""
    _copy[(1,)](x, out, len(x), LOAD=load, STORE=store, BLOCK=64, enable_fp_fusion=False)


def copy_pairs(x: Tensor, out: Tensor, skip: int) -> None:
    """Read x u8[2 n + 2] as 16-bit values from byte `skip`, into out i16[n]."""
    _pairs[(1,)](x, out, len(out), SKIP=skip, BLOCK=64, enable_fp_fusion=False)
