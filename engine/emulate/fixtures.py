"""Helpers of the emulator's tests: compile and launch a kernel named `k`."""

from __future__ import annotations

from typing import Any

import torch

from engine.kernels.nvrtc import Kernel, compile_source

HEAD = 'extern "C" __global__ void __launch_bounds__(32 * (2), 1) k('


def launch(source: str, *args: Any, grid: tuple[int, int] = (1, 1), block: int = 32,
           shared: int = 0, options: tuple[str, ...] = ()) -> None:
    """Compile a source and launch its kernel `k`."""
    Kernel(compile_source(source, options), "k")(grid, block, shared, *args)


def lane_results(body: str, type_name: str = "int") -> list[float]:
    """Run `body` in each lane of a warp and return the values of y; l is the lane."""
    out = torch.full((32,), -7.0)
    launch(f"""{HEAD}float* out) {{
        const int l = threadIdx.x;
        {type_name} y = -7;
        {body}
        out[l] = y;
    }}""", out)
    return out.tolist()
