"""Compile the kernels for sm_90 without a GPU and search the PTX for forbidden operations.

Run as `python -m engine.kernels.compile` without TRITON_INTERPRET. It prints one line per kernel
and exits with 1 if a kernel has a contracted, approximate or flush-to-zero f32 operation.
"""

from __future__ import annotations

import re
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine.kernels import gemv_q4_k, rms_norm

FORBIDDEN = {"fused multiply-add": r"\b(fma|mad)\.\w+(\.\w+)*\.f32",
             "approximate division": r"\bdiv\.(full|approx)", "approximation": r"\.approx",
             "flush to zero": r"\.ftz"}
KERNELS = {
    "rms_norm": (rms_norm._rms_norm,
                 {"x": "*fp32", "weight": "*fp32", "out": "*fp32", "n": "i32", "eps": "fp32",
                  "stride": "i32"}, {"LANES": 128, "STEPS": 7}),
    "gemv_q4_k": (gemv_q4_k._gemv_q4_k,
                  {"weight": "*u8", "x": "*fp32", "out": "*fp32", "n": "i32", "groups": "i32"},
                  {"ROWS": 16}),
}


def found_in(ptx: str) -> list[str]:
    """Return the names of the forbidden operations in PTX."""
    return [name for name, pattern in FORBIDDEN.items() if re.search(pattern, ptx)]


def ptx_of(name: str, fused: bool = False) -> str:
    """Return a kernel's PTX for sm_90; `fused` enables contraction, as a negative control."""
    function, arguments, constants = KERNELS[name]
    signature = {**arguments, **dict.fromkeys(constants, "constexpr")}
    compiled = triton.compile(ASTSource(fn=function, signature=signature, constexprs=constants),
                              target=GPUTarget("cuda", 90, 32),
                              options={"enable_fp_fusion": fused})
    return compiled.asm["ptx"]


def main() -> int:
    """Compile and check every kernel, and a negative control with contraction enabled."""
    bad = 0
    for name in KERNELS:
        faults = found_in(ptx_of(name))
        bad += bool(faults)
        print(f"{name}: {', '.join(faults) or 'clean'}")
    if not found_in(ptx_of("rms_norm", fused=True)):
        print("the check is blind: rms_norm compiled with contraction passes it")
        bad += 1
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
