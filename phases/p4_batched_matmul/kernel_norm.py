"""The engine's RMS norm kernel over the last axis of t rows or heads, one per program.

Rows may be strided, as queries are, because attn_q interleaves them with their gates.
"""

# mypy: ignore-errors

from __future__ import annotations

from torch import Tensor

from engine.kernels.rms_norm import rms_norm


def norm(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """Write the weighted RMS norm of the last axis of x f32[t, ..., n] into contiguous `out`."""
    rms_norm(x.flatten(0, -2), weight, eps, out.view(-1, x.shape[-1]))
