"""What P5 changes: convolution, gates and delta rule of a GDN layer take all rows at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from engine.path import Path
from phases.p4_batched_matmul import increment as before
from phases.p5_batched_gdn import reference

OnDevice = before.OnDevice
NORM, integer_kernels = before.NORM, before.integer_kernels


@dataclass(frozen=True)
class Recurrent(OnDevice):
    """An op with state: reference on the CPU, CUDA C++ on a device, and a portable kernel."""

    portable: before.Op
    """The same op in Triton, for its interpreter and for devices without NVRTC."""


def path() -> Path:
    """Return the predecessor's path with the recurrent ops over slot pointers."""
    return replace(
        before.path(), name="p5",
        conv_step=Recurrent(reference.conv_step, _conv_step, _conv_step_portable),
        gates=Recurrent(reference.gates, _gates, _gates_portable),
        delta_step=Recurrent(reference.delta_step, _delta_step, _delta_step_portable))


def _conv_step(*args: Any) -> None:  # a kernel is compiled, or Triton imported, when it first runs
    from phases.p5_batched_gdn.kernel_gdn_cuda import conv_step
    if any(args[3]):  # without a token a launch has no block
        conv_step(*args)


def _gates(*args: Any) -> None:
    from phases.p5_batched_gdn.kernel_gdn_cuda import gates
    gates(*args)


def _delta_step(*args: Any) -> None:
    from phases.p5_batched_gdn.kernel_gdn_cuda import delta_step
    delta_step(*args)


def _conv_step_portable(*args: Any) -> None:
    from phases.p5_batched_gdn.kernel_conv import conv_step
    conv_step(*args)


def _gates_portable(*args: Any) -> None:
    from phases.p5_batched_gdn.kernel_gates import gates
    gates(*args)


def _delta_step_portable(*args: Any) -> None:
    from phases.p5_batched_gdn.kernel_delta import delta_step
    delta_step(*args)
