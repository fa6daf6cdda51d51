"""What P5 changes: convolution, gates and delta rule of a GDN layer take all rows at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.op_table import op_table
from engine.path import Path
from phases.p4_batched_matmul import increment as before
from phases.p5_batched_gdn import reference

op = op_table(__name__)
NORM, quantising_kernels = before.NORM, before.quantising_kernels
OPS: dict[str, Any] = {
    "conv_step": op(reference.conv_step, triton="kernel_conv.conv_step",
                    cuda="kernel_gdn_cuda.conv_step"),
    "gates": op(reference.gates, triton="kernel_gates.gates", cuda="kernel_gdn_cuda.gates"),
    "delta_step": op(reference.delta_step, triton="kernel_delta.delta_step",
                     cuda="kernel_gdn_cuda.delta_step")}
"""Which function runs an op."""


def path() -> Path:
    """Return the predecessor's path with the recurrent ops over slot pointers."""
    return replace(before.path(), name="p5", **OPS)
