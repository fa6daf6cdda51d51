"""Compile this phase's kernels for sm_90 without a GPU and read their PTX, as the engine does.

Run as `python -m phases.p4_batched_matmul.compile_check` without TRITON_INTERPRET; prints a line a
kernel and exits with 1 when one holds a contracted, approximate or flushing f32 operation, or the
CUDA source keeps values in memory. That needs NVRTC; without it nothing passes.
"""

# mypy: ignore-errors

from __future__ import annotations

import sys

from engine.kernels import compile as check
from engine.kernels import machine_code, pointwise
from phases.p4_batched_matmul import (
    kernel_argmax,
    kernel_fused,
    kernel_gated_norm,
    kernel_silu_mul,
)

KERNELS = {
    "largest_of_part": (kernel_argmax._part_argmax,
                        {"logits": "*fp32", "best": "*i64", "n": "i32", "stride": "i32",
                         "parts": "i32"}, {"BLOCK": 4096}),
    "largest": (kernel_argmax._merge_parts, {"best": "*i64", "out": "*i64", "parts": "i32"},
                {"BLOCK": 64}),
    "gated_norm": (kernel_gated_norm._gated_norm,
                   {"x": "*fp32", "z": "*fp32", "weight": "*fp32", "out": "*fp32", "eps": "fp32"},
                   {"LANES": 128, "STEPS": 7}),
    "silu_mul": (kernel_silu_mul._silu_mul,
                 {"gate": "*fp32", "up": "*fp32", "out": "*fp32", "n": "i32", "gate_stride": "i32",
                  "up_stride": "i32", "out_stride": "i32"}, {"BLOCK": 1024}),
    **{name: (pointwise._pointwise, {"x": "*fp32", "out": "*fp32", "n": "i32"},
              {"FUNCTION": number, "BLOCK": 1024})
       for number, name in enumerate(pointwise.FUNCTIONS)},
}


def main() -> int:
    """Compile and check every kernel."""
    check.KERNELS.update(KERNELS)
    bad = 0
    checks = {name: lambda name=name: check.found_in(check.ptx_of(name)) for name in KERNELS}
    checks["fused.cu"] = lambda: machine_code.faults_of(kernel_fused.source(),
                                                        kernel_fused.OPTIONS)
    for name, faults_of in checks.items():
        faults = faults_of()
        bad += bool(faults)
        print(f"{name}: {', '.join(faults) or 'clean'}")
    if not check.found_in(check.ptx_of("silu_mul", fused=True)):
        print("the check is blind: silu_mul compiled with contraction passes it")
        bad += 1
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
