"""Compile P3's kernels for sm_90 without a GPU and read what the compilers made of them.

Run as `python -m phases.p3_row_twin.compile [NAME ...]` without TRITON_INTERPRET; prints a line a
variant (all of them without names) and exits with 1 when one holds a contracted, approximate or
flushing f32 operation, or spills.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends import nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine.kernels.compile import found_in
from engine.kernels.decode import CODES
from phases.p3_row_twin import kernel_exact, kernel_ordered

POINTERS = {"F32": "*fp32", "F16": "*fp16", "BF16": "*u16"}
"""What a kernel loads of a type; of all others it loads bytes."""


@dataclass(frozen=True)
class Variant:
    """One kernel with its compile-time constants."""

    name: str
    """`ordered-Q4_K-16`: the arithmetic, the type and the row tile."""
    function: Any
    kind: str
    constants: dict[str, int]
    warps: int
    spills: bool = False
    """Whether it may keep values in memory: tensor cores make the exact product on a device."""


def variants() -> Iterator[Variant]:
    """Yield every variant that a launch of the phase's Triton kernels can take."""
    for kind, code in CODES.items():
        for tile, (rows, warps) in kernel_ordered.TILES.items():
            yield Variant(f"ordered-{kind}-{tile}", kernel_ordered._gemv_rows, kind,
                          {"KIND": code, "N": rows, "M": tile}, warps)
    for kind, (code, size) in kernel_exact.KINDS.items():
        for tile in (16, 32, 64):
            yield Variant(f"exact-{kind}-{tile}", kernel_exact._gemv_rows, kind,
                          {"KIND": code, "BYTES": size, "N": 16, "M": tile}, 4, spills=True)


def faults_of(variant: Variant) -> list[str]:
    """Compile a variant for sm_90 and return what must not be in it."""
    names = ("n", "k", "m", "x_stride", "out_stride", "row_bytes")
    signature = {"weight": POINTERS.get(variant.kind, "*u8"), "x": "*fp32", "out": "*fp32",
                 **dict.fromkeys(names, "i32"), **dict.fromkeys(variant.constants, "constexpr")}
    source = ASTSource(fn=variant.function, signature=signature, constexprs=variant.constants)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32),
                          options={"enable_fp_fusion": False, "num_warps": variant.warps,
                                   **({"num_stages": 1} if variant.spills else {})})
    return found_in(made.asm["ptx"]) + ([] if variant.spills else spilled(made.asm["cubin"]))


def spilled(cubin: bytes) -> list[str]:
    """Return the kinds of memory outside registers that machine code keeps values in."""
    tool = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = subprocess.run([str(tool), "-res-usage", file.name], capture_output=True, text=True,
                               check=True).stdout
    found = re.findall(r"(STACK|LOCAL):(\d+)", usage)
    if not found:
        return ["no resource usage told"]
    return [f"{size} bytes of {name.lower()}" for name, size in found if size != "0"]


def main(names: list[str]) -> int:
    """Compile and check the variants of these names, or all."""
    known = {variant.name: variant for variant in variants()}
    bad = 0
    for name in names or known:
        faults = faults_of(known[name])
        bad += bool(faults)
        print(f"{name}: {', '.join(faults) or 'clean'}", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
