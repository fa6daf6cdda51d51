"""What P6 changes: attention and rotation of all rows in one launch each, through pointers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.path import Path
from phases.p5_batched_gdn import increment as before
from phases.p6_batched_attention import reference

OnDevice = before.OnDevice


def path() -> Path:
    """Return the predecessor's path with batched attention and rotation."""
    return replace(before.path(), name="p6", rotate=OnDevice(reference.rotate, _rotate),
                   attend=OnDevice(reference.attend, _attend))


def _rotate(*args: Any) -> None:  # Triton and NVRTC are imported when a kernel first runs
    from phases.p6_batched_attention.kernel_rotate import rotate
    rotate(*args)


def _attend(*args: Any) -> None:
    if args[-1].is_cuda:
        from phases.p6_batched_attention.kernel_attend_cuda import attend
    else:
        from phases.p6_batched_attention.kernel_attend import attend
    attend(*args)
