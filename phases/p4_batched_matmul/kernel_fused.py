"""Residual sum + norm, SiLU * up and gated norm in CUDA C++, each fused with quantisation.

`fused.cu`, compiled by NVRTC. Same bits as `kernel_add_norm`, `kernel_silu_mul` and
`kernel_gated_norm`. The next product reuses the quantised result instead of quantising it again.
"""

# mypy: ignore-errors

from __future__ import annotations

from ctypes import c_float, c_longlong
from functools import cache
from math import ceil
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import InputError
from engine.kernels.nvrtc import Kernel, compile_source
from engine.quantised import QuantisedActivations
from phases.p3_row_twin import increment as before

SOURCE = Path(__file__).with_name("fused.cu")
NORM_WARPS = 20
"""Warps per block of `add_norm`: four values per thread for a row of a 4B model."""
OPTIONS = (f"-DWARPS={NORM_WARPS}",)
"""NVRTC options of `fused.cu`."""
HEAD_DIM = 128
"""Values per head of a gated norm."""


def source(path: Path = SOURCE) -> str:
    """Return a source that also quantises its result, with its headers."""
    return before.quantising_kernels().source(path)


@cache
def _function(name: str) -> Kernel:
    return Kernel(compile_source(source(), OPTIONS), name, pdl=True)


def room(rows: int, width: int, device: torch.device) -> tuple:
    """Allocate quantised activations for rows; return them and the kernel argument."""
    quantised = before.quantising_kernels().QuantisedRows.empty(rows, width, device)
    return quantised, quantised.argument



def add_norm(x: Tensor, y: Tensor, weight: Tensor, eps: float, total: Tensor,
             out: Tensor) -> QuantisedActivations:
    """Write x + y of f32[t, n] into `total` and its weighted RMS norm into `out`, all contiguous.

    `total` may be x or y.
    """
    rows, n = x.shape
    quantised, argument = room(rows, n, x.device)
    _function("add_norm")((rows, 1), 32 * NORM_WARPS, ceil(n / 128) * 512, x, y, weight, n,
                          c_float(eps), total, out, argument)
    return QuantisedActivations.of(out, quantised)


def silu_mul(gate: Tensor, up: Tensor, out: Tensor) -> QuantisedActivations:
    """Write SILU(gate) * up of f32[t, n] into contiguous `out`; rows may be strided."""
    gate, up, flat = (x.flatten(0, -2) for x in (gate, up, out))
    rows, n = gate.shape
    quantised, argument = room(rows, n, out.device)
    _function("silu_mul")((ceil(n / 256), rows), 32, 0, gate, c_longlong(gate.stride(0)), up,
                          c_longlong(up.stride(0)), n, flat, argument)
    return QuantisedActivations.of(out, quantised)


def gated_norm(x: Tensor, z: Tensor, weight: Tensor, eps: float,
               out: Tensor) -> QuantisedActivations:
    """Write the RMS norm of each head of x f32[t, V, 128] times SILU(z) into `out`, contiguous."""
    rows, heads, width = x.shape
    if width != HEAD_DIM:
        raise InputError(f"a gated norm on a device takes heads of {HEAD_DIM} values, not {width}")
    quantised, argument = room(rows, heads * width, out.device)
    _function("gated_norm")((ceil(heads / 2), rows), 32, 0, x, z, weight, heads * width,
                            c_float(eps), out, argument)
    return QuantisedActivations.of(out, quantised)
