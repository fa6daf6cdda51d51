"""What P4 changes: a step goes layer by layer, and its ops have kernels for all rows at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine import ops
from engine.op_table import fused, op_table
from engine.path import Path
from phases.p3_row_twin import increment as before
from phases.p4_batched_matmul import reference
from phases.p4_batched_matmul.batched_step import step_rows

op = op_table(__name__)
PROJECT = op(ops.project, triton=before.PRODUCTS, cuda=before.gemv_rows_on_device, quantised=True)
NORM = op(reference.norm, triton="kernel_norm.norm")
OPS: dict[str, Any] = {
    "project": PROJECT,
    "project_all": fused(op, ops.project_all, PROJECT, cuda=before.gemv_rows_all,
                         quantised=True),
    "norm": NORM,
    "add_norm": fused(op, reference.add_norm, NORM, triton="kernel_add_norm.add_norm",
                      cuda="kernel_fused.add_norm"),
    "gated_norm": op(reference.gated_norm, triton="kernel_gated_norm.gated_norm",
                     cuda="kernel_fused.gated_norm"),
    "silu_mul": op(reference.silu_mul, triton="kernel_silu_mul.silu_mul",
                   cuda="kernel_fused.silu_mul"),
    "argmax": op(reference.argmax, triton="kernel_argmax.argmax")}
"""Which function runs an op."""


def path() -> Path:
    """Return the predecessor's path with the batched step."""
    return replace(before.path(), name="p4", step_rows=step_rows, **OPS)


def quantising_kernels() -> Any:
    """Return the module that gives kernels room for quantised results, and their source."""
    from phases.p4_batched_matmul import kernel_fused
    return kernel_fused
