"""The kernels as machine code: compiled for sm_90 in a process without the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from engine import kernels

ROOT = Path(__file__).parent.parent


def test_kernels_compile_without_contraction_or_approximation() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-m", "engine.kernels.compile"], cwd=ROOT, text=True,
                          capture_output=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == ["rms_norm: clean", "gemv_q4_k: clean"]


def test_a_launch_forbids_contraction_whatever_the_caller_says() -> None:
    passed: dict[str, object] = {}

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> object:
            return lambda *args, **options: passed.update(options)

    kernels.launch(Kernel(), (1,), LANES=4)
    assert passed == {"LANES": 4, "enable_fp_fusion": False}
