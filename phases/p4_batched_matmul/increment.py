"""What P4 changes: a step goes layer by layer, and its ops have kernels for all rows at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from engine import ops
from engine.path import Path
from engine.weights import Weight
from phases.p3_row_twin import increment as before
from phases.p4_batched_matmul import reference

Op = Callable[..., None]


@dataclass(frozen=True)
class OnDevice:
    """An op that is the reference on the CPU and a kernel for tensors on a device."""

    reference: Op
    kernel: Op

    def __call__(self, *args: Any) -> None:
        """Run the op where its output, the last argument, is."""
        (self.kernel if args[-1].is_cuda else self.reference)(*args)


def path() -> Path:
    """Return the predecessor's path with the batched step."""
    return replace(
        before.path(), name="p4", step_rows=reference.step_rows,
        project=OnDevice(ops.project, _project), norm=OnDevice(reference.norm, _norm),
        gated_norm=OnDevice(reference.gated_norm, _gated_norm),
        silu_mul=OnDevice(reference.silu_mul, _silu_mul),
        argmax=OnDevice(reference.argmax, _argmax))


def _project(weight: Weight, x: Tensor, out: Tensor) -> None:
    product = before.gemv_rows if x.is_cuda else before.kernel(weight.arithmetic)
    product(weight, x, out)


def _norm(*args: Any) -> None:  # Triton is imported when a kernel first runs
    from phases.p4_batched_matmul.kernel_norm import norm
    norm(*args)


def _gated_norm(*args: Any) -> None:
    from phases.p4_batched_matmul.kernel_gated_norm import gated_norm
    gated_norm(*args)


def _silu_mul(*args: Any) -> None:
    from phases.p4_batched_matmul.kernel_silu_mul import silu_mul
    silu_mul(*args)


def _argmax(*args: Any) -> None:
    from phases.p4_batched_matmul.kernel_argmax import argmax
    argmax(*args)
