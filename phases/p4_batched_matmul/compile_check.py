"""P4's kernels, compiled for sm_90 without a GPU (see `phases.compile_check`)."""

# mypy: ignore-errors

from __future__ import annotations

import sys
from functools import partial

from engine.kernels import machine_code, pointwise
from phases.compile_check import main, triton_faults
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


if __name__ == "__main__":
    sys.exit(main({**{name: partial(triton_faults, *kernel) for name, kernel in KERNELS.items()},
                   "fused.cu": lambda: machine_code.faults_of(kernel_fused.source(),
                                                              kernel_fused.OPTIONS)},
                  {"silu_mul compiled with contraction":
                   lambda: triton_faults(*KERNELS["silu_mul"], contract=True)}))
