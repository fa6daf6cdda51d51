"""SILU(gate) * up for t rows: two loads and one store per value."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import launch
from engine.kernels.functions import silu


@triton.jit
def _silu_mul(gate, up, out, n, gate_stride, up_stride, out_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < n
    gate_value = tl.load(gate + row * gate_stride + column, mask=mask, other=0.0)
    up_value = tl.load(up + row * up_stride + column, mask=mask, other=0.0)
    tl.store(out + row * out_stride + column, silu(gate_value) * up_value, mask=mask)


def silu_mul(gate: Tensor, up: Tensor, out: Tensor, block: int = 1024) -> None:
    """Write SILU(gate) * up into `out`, all f32[t, n] whose rows may be strided."""
    t, n = gate.shape
    launch(_silu_mul, (t, triton.cdiv(n, block)), gate, up, out, n, gate.stride(0), up.stride(0),
           out.stride(0), BLOCK=block)
