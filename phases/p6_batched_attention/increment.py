"""What P6 changes: attention of all rows through pointers, rotation at once, also with the norm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine import ops
from engine.op_table import fused, op_table
from engine.path import Path
from phases.p5_batched_gdn import increment as before
from phases.p6_batched_attention import reference

op = op_table(__name__)
ROTATE = op(reference.rotate, triton="kernel_rotate.rotate")
OPS: dict[str, Any] = {
    "rotate": ROTATE,
    "norm_rotate": fused(op, ops.norm_rotate, before.NORM, ROTATE,
                         cuda="kernel_norm_rotate.norm_rotate"),
    "attend": op(reference.attend, triton="kernel_attend.attend",
                 cuda="kernel_attend_cuda.attend")}
"""Which function runs an op."""


def path() -> Path:
    """Return the predecessor's path with batched attention and rotation."""
    return replace(before.path(), name="p6", **OPS)
