"""What tests of the emulator share: a kernel called `k`, compiled and launched where it is."""

from __future__ import annotations

from typing import Any

from engine.kernels.nvrtc import Kernel, compile_source

HEAD = 'extern "C" __global__ void __launch_bounds__(32 * (2), 1) k('


def launch(source: str, *args: Any, grid: tuple[int, int] = (1, 1), block: int = 32,
           shared: int = 0, options: tuple[str, ...] = ()) -> None:
    """Compile a source and launch its kernel `k`."""
    Kernel(compile_source(source, options), "k")(grid, block, shared, *args)
