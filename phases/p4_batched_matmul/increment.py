"""What P4 changes: a step goes layer by layer, and its ops have kernels for all rows at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from engine import ops
from engine.emulate import on_device
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

    def __call__(self, *args: Any, **options: Any) -> None:
        """Run the op where its output, the last argument, is."""
        (self.kernel if on_device(args[-1]) else self.reference)(*args, **options)


def path() -> Path:
    """Return the predecessor's path with the batched step."""
    return replace(
        before.path(), name="p4", step_rows=reference.step_rows,
        project=PROJECT, project_all=_project_all, norm=NORM,
        add_norm=Joined(reference.add_norm, _add_norm, NORM),
        gated_norm=OnDevice(reference.gated_norm, _gated_norm),
        silu_mul=OnDevice(reference.silu_mul, _silu_mul),
        argmax=OnDevice(reference.argmax, _argmax))


def integer_kernels() -> Any:
    """Return the module that gives kernels room for integers, and their text what it includes."""
    from phases.p4_batched_matmul import kernel_fused
    return kernel_fused


def _project(weight: Weight, x: Tensor, out: Tensor) -> None:
    if on_device(x):
        before.gemv_rows_all([weight], x, [out])
    else:
        before.kernel(weight.arithmetic)(weight, x, out)


def _project_all(project: Op, weights: Sequence[Weight], x: Tensor,
                 outs: Sequence[Tensor]) -> None:
    if project is PROJECT and on_device(x):  # what else stands for it takes one matrix at a time
        before.gemv_rows_all(weights, x, outs)
    else:
        ops.project_all(project, weights, x, outs)


@dataclass(frozen=True)
class Joined(OnDevice):
    """An op that is given another, and has a kernel for both when that one is the path's own."""

    own: Op

    def __call__(self, given: Op, *args: Any, **options: Any) -> None:
        """Run the op where its output is; what stands for the other op is run as it is."""
        if given is self.own and on_device(args[-1]):
            self.kernel(*args, **options)
        else:
            self.reference(given, *args, **options)


def _add_norm(*args: Any) -> None:
    if on_device(args[-1]):
        from phases.p4_batched_matmul.kernel_fused import add_norm
    else:
        from phases.p4_batched_matmul.kernel_add_norm import add_norm
    add_norm(*args)


def _norm(*args: Any) -> None:  # Triton is imported when a kernel first runs
    from phases.p4_batched_matmul.kernel_norm import norm
    norm(*args)


def _gated_norm(*args: Any) -> None:
    if on_device(args[-1]):
        from phases.p4_batched_matmul.kernel_fused import gated_norm
    else:
        from phases.p4_batched_matmul.kernel_gated_norm import gated_norm
    gated_norm(*args)


def _silu_mul(*args: Any) -> None:
    if on_device(args[-1]):
        from phases.p4_batched_matmul.kernel_fused import silu_mul
    else:
        from phases.p4_batched_matmul.kernel_silu_mul import silu_mul
    silu_mul(*args)


def _argmax(*args: Any, **options: Any) -> None:
    from phases.p4_batched_matmul.kernel_argmax import argmax
    argmax(*args, **options)


PROJECT, NORM = OnDevice(ops.project, _project), OnDevice(reference.norm, _norm)
