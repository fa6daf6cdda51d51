"""CUDA C++ kernels on the CPU: the switches that `emulator.emulated` sets."""

from __future__ import annotations

from torch import Tensor

active = False
"""Whether device kernels take CPU tensors."""
backwards = False
"""Whether blocks and threads run in reverse order."""


def on_device(x: Tensor) -> bool:
    """Return whether device kernels take x: it is on a device, or a device is emulated."""
    return x.is_cuda or active
