"""Norm and rotation of queries and keys in one launch that may start early, in CUDA C++.

The bits of the engine's norm and of `kernel_rotate` (`norm_rotate.cu`, compiled by NVRTC); what
was normed is written too, so that a step which reports it runs as any other.
"""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, c_float, c_int, c_longlong, c_void_p
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import InputError
from engine.kernels.nvrtc import Kernel, compile_source, source_of
from engine.state import to_device
from phases.p6_batched_attention.launches import DIM

SOURCE = Path(__file__).with_name("norm_rotate.cu")


class _Part(Structure):
    """Queries or keys, and where they go."""

    _fields_ = (("x", c_void_p), ("token", c_longlong), ("head", c_longlong),
                ("weight", c_void_p), ("normed", c_void_p), ("out", c_void_p), ("heads", c_int))


@cache
def _function() -> Kernel:
    return Kernel(compile_source(source_of(SOURCE), ()), "norm_rotate", early=True)


def norm_rotate(xs: Sequence[Tensor], weights: Sequence[Tensor], eps: float, table: Tensor,
                positions: Tensor | list[int], normed: Sequence[Tensor],
                outs: Sequence[Tensor]) -> None:
    """Norm queries and keys f32[t, heads, 256] into `normed`, and turn those into `outs`.

    Tokens and heads may be strided, `normed` and `outs` are contiguous; table is
    f32[positions, 2, pairs].
    """
    for x, *made in zip(xs, normed, outs, strict=True):
        if x.shape[2] != DIM or x.stride(2) != 1:
            raise InputError(f"heads to be normed and turned on a device must be {DIM} "
                             f"neighbouring values, but are {list(x.shape)} with strides "
                             f"{list(x.stride())}")
        if not all(out.shape == x.shape and out.is_contiguous() for out in made):
            raise InputError("what is normed and turned must go to contiguous tensors of its shape")
    if not len(xs[0]):
        return
    parts = [_Part(x.data_ptr(), x.stride(0), x.stride(1), weight.data_ptr(), middle.data_ptr(),
                   out.data_ptr(), x.shape[1])
             for x, weight, middle, out in zip(xs, weights, normed, outs, strict=True)]
    positions = to_device(torch.as_tensor(positions, dtype=torch.int64), table.device)
    _function()((len(xs[0]), sum(x.shape[1] for x in xs)), 32, 0, *parts, c_float(eps), table,
                table.shape[2], positions)
