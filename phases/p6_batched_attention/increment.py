"""What P6 changes: attention of all rows through pointers, rotation at once, also with the norm."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine import ops
from engine.emulate import on_device
from engine.path import Path
from phases.p5_batched_gdn import increment as before
from phases.p6_batched_attention import reference

OnDevice = before.OnDevice


def path() -> Path:
    """Return the predecessor's path with batched attention and rotation."""
    return replace(before.path(), name="p6", rotate=ROTATE, norm_rotate=_norm_rotate,
                   attend=OnDevice(reference.attend, _attend))


def _rotate(*args: Any) -> None:  # Triton and NVRTC are imported when a kernel first runs
    from phases.p6_batched_attention.kernel_rotate import rotate
    rotate(*args)


def _norm_rotate(norm: Any, rotate: Any, *args: Any) -> None:
    """Run one kernel for both on a device; what stands for either of them is run as it is."""
    if norm is before.NORM and rotate is ROTATE and on_device(args[-1][0]):
        from phases.p6_batched_attention.kernel_norm_rotate import norm_rotate
        norm_rotate(*args)
    else:
        ops.norm_rotate(norm, rotate, *args)


def _attend(*args: Any) -> None:
    if on_device(args[-1]):
        from phases.p6_batched_attention.kernel_attend_cuda import attend
    else:
        from phases.p6_batched_attention.kernel_attend import attend
    attend(*args)


ROTATE = OnDevice(reference.rotate, _rotate)
