"""RMS norm and rotary embedding of queries and keys in one PDL launch, in CUDA C++.

`norm_rotate.cu`, compiled by NVRTC. Same bits as the engine's norm followed by `kernel_rotate`. The
normed values are also an output, so a step that reports them runs the same kernel.
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


class _HeadSet(Structure):
    """Queries or keys and their outputs (`norm_rotate.cu`)."""

    _fields_ = (("x", c_void_p), ("token_stride", c_longlong), ("head_stride", c_longlong),
                ("weight", c_void_p), ("normed", c_void_p), ("out", c_void_p), ("n_heads", c_int))


@cache
def _function() -> Kernel:
    return Kernel(compile_source(source_of(SOURCE), ()), "norm_rotate", pdl=True)


def norm_rotate(xs: Sequence[Tensor], weights: Sequence[Tensor], eps: float, table: Tensor,
                positions: Tensor | list[int], normed: Sequence[Tensor],
                outs: Sequence[Tensor]) -> None:
    """Norm queries and keys f32[t, heads, 256] into `normed`, and rotate these into `outs`.

    Tokens and heads may be strided, `normed` and `outs` are contiguous; table is
    f32[positions, 2, pairs].
    """
    for x, *results in zip(xs, normed, outs, strict=True):
        if x.shape[2] != DIM or x.stride(2) != 1:
            raise InputError(f"norm_rotate needs heads of {DIM} contiguous values, but x is "
                             f"{list(x.shape)} with strides {list(x.stride())}")
        if not all(out.shape == x.shape and out.is_contiguous() for out in results):
            raise InputError("outputs of norm_rotate must be contiguous and have the input's shape")
    if not len(xs[0]):
        return
    sets = [_HeadSet(x.data_ptr(), x.stride(0), x.stride(1), weight.data_ptr(),
                     normed_out.data_ptr(), out.data_ptr(), x.shape[1])
            for x, weight, normed_out, out in zip(xs, weights, normed, outs, strict=True)]
    positions = to_device(torch.as_tensor(positions, dtype=torch.int64), table.device)
    _function()((len(xs[0]), sum(x.shape[1] for x in xs)), 32, 0, *sets, c_float(eps), table,
                table.shape[2], positions)
