"""The ops of a batched step in plain PyTorch: the engine's own, which take any number of rows.

The step that runs them is in `batched_step.py`.
"""

from __future__ import annotations

from engine.ops import add_norm, argmax, gated_norm, norm, silu_mul
from phases.p4_batched_matmul.batched_step import BatchedStep, step_rows

__all__ = ["BatchedStep", "add_norm", "argmax", "gated_norm", "norm", "silu_mul", "step_rows"]
