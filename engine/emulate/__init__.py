"""CUDA C++ kernels on the CPU, without a device: whether they run so now (`run.emulated`)."""

from __future__ import annotations

from torch import Tensor

active = False
"""Whether kernels for a device take tensors of the CPU."""
backwards = False
"""Whether blocks and the threads of a block take turns in reverse."""


def on_device(x: Tensor) -> bool:
    """Return whether kernels for a device take x: it is on one, or one is emulated."""
    return x.is_cuda or active
