"""Compile kernels for sm_90 without a GPU and list what their machine code must not contain.

Each phase has `python -m phases.pN_*.compile_check [NAME ...]`, to be run without TRITON_INTERPRET.
It prints one line a kernel and exits with 1 when a kernel contains a contracted, approximate or
flushing f32 operation, or spills registers. CUDA C++ needs NVRTC and fails without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Check = Callable[[], list[str]]
"""Compiles one kernel and returns its faults; empty when there are none."""
ROOT = Path(__file__).parents[1]


def triton_faults(function: Any, arguments: Mapping[str, str], constants: Mapping[str, Any], *,
                  may_spill: bool = False, contract: bool = False, **options: Any) -> list[str]:
    """Compile a Triton kernel and return its faults; `contract` turns contraction on.

    `arguments` maps names to Triton's types, `constants` names to values of `tl.constexpr`.
    """
    import triton  # imported here: tests of this module's callers start without Triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from engine.kernels import machine_code
    from engine.kernels.compile import found_in

    signature = {**arguments, **dict.fromkeys(constants, "constexpr")}
    source = ASTSource(fn=function, signature=signature, constexprs=dict(constants))
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32),
                              options={"enable_fp_fusion": contract, **options})
    spilled = [] if may_spill else machine_code.spilled(compiled.asm["cubin"])
    return found_in(compiled.asm["ptx"]) + spilled


def main(checks: Mapping[str, Check], controls: Mapping[str, Check]) -> int:
    """Run the checks named on the command line, or all; return 1 if one finds a fault.

    `controls` are kernels with a fault; a control without a finding also returns 1.
    """
    names = sys.argv[1:]
    if unknown := set(names) - set(checks):
        print(f"unknown kernel {min(unknown)!r}: choose from {', '.join(checks)}")
        return 1
    failed = False
    for name in names or checks:
        faults = checks[name]()
        failed |= bool(faults)
        print(f"{name}: {', '.join(faults) or 'clean'}", flush=True)
    for name, check in controls.items():
        if not check():
            print(f"negative control failed: the check finds no fault in {name}")
            failed = True
    return int(failed)


def clean_kernels(package: str, *names: str) -> list[str]:
    """Run a phase's check in a process without the interpreter; return the kernels it finds clean.

    Raises `AssertionError` with the process's output when the check fails.
    """
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    process = subprocess.run(
        [sys.executable, "-m", f"phases.{package}.compile_check", *names], cwd=ROOT, text=True,
        capture_output=True, env=environment, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    return [line.removesuffix(": clean") for line in process.stdout.splitlines()]
