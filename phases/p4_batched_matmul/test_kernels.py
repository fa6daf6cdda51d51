"""The kernels as machine code: compiled for sm_90 in a process without the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
KERNEL_NAMES = (
    "largest_of_part",
    "largest",
    "gated_norm",
    "silu_mul",
    "exp",
    "log1p",
    "sigmoid",
    "silu",
    "softplus",
    "fused.cu",
)


def test_kernels_compile_without_contraction_or_approximation() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "phases.p4_batched_matmul.compile_check"],
        cwd=ROOT,
        text=True,
        capture_output=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [f"{name}: clean" for name in KERNEL_NAMES]
