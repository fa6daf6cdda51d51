"""P5's kernels, compiled for sm_90 without a GPU (see `phases.compile_check`).

`cuda` names the CUDA C++ source in each of its block widths.
"""

# mypy: ignore-errors

from __future__ import annotations

import sys
from functools import partial
from itertools import product

from engine.kernels import machine_code
from engine.kernels.nvrtc import source_of
from phases.compile_check import main, triton_faults
from phases.p5_batched_gdn import kernel_conv, kernel_delta, kernel_gates, kernel_gdn_cuda

STRIDE_TYPES = dict.fromkeys(("q_stride", "k_stride", "v_stride", "key_heads", "heads"), "i32")
KERNELS = {
    "conv_step": (kernel_conv._conv_step,
                  {"x": "*fp32", "taps": "*fp32", "windows": "*u64", "starts": "*i32",
                   "out": "*fp32", "channels": "i32", "x_stride": "i32", "out_stride": "i32"},
                  {"BLOCK": 256}),
    "gates": (kernel_gates._gates,
              {**dict.fromkeys(("a", "b", "neg_exp_a", "dt_bias", "alpha", "beta"), "*fp32"),
               **dict.fromkeys(("heads", "total", "a_stride", "b_stride"), "i32")},
              {"BLOCK": 128}),
    "delta_step": (kernel_delta._delta_step,
                   {**dict.fromkeys(("q", "k", "v", "alpha", "beta"), "*fp32"), "states": "*u64",
                    "starts": "*i32", "out": "*fp32", **STRIDE_TYPES, "scale": "fp32"},
                   {"KEYS": 128, "STEPS": 7, "COLUMNS": 32}),
}


def faults_of_cuda() -> list[str]:
    """Compile the CUDA C++ source in each of its block widths and return its faults."""
    faults = []
    for warps, multi_token in product((1, 2, 4), (False, True)):
        faults += machine_code.faults_of(source_of(kernel_gdn_cuda.SOURCE),
                                         kernel_gdn_cuda.options(warps, multi_token))
    return faults


if __name__ == "__main__":
    sys.exit(main({**{name: partial(triton_faults, *kernel) for name, kernel in KERNELS.items()},
                   "cuda": faults_of_cuda},
                  {"delta_step compiled with contraction":
                   lambda: triton_faults(*KERNELS["delta_step"], contract=True)}))
