"""Compile this phase's kernels for sm_90 without a GPU and read what the compilers made of them.

Run as `python -m phases.p5_batched_gdn.compile_check [NAME ...]` without TRITON_INTERPRET; prints
a line a kernel (the Triton kernels without names) and exits with 1 when one holds a contracted,
approximate or flushing f32 operation, or spills. `cuda` names the CUDA C++, which needs NVRTC.
"""

# mypy: ignore-errors

from __future__ import annotations

import sys
from itertools import product

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from engine.kernels import machine_code
from engine.kernels.compile import found_in
from engine.kernels.nvrtc import source_of
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


def faults_of(name: str, fused: bool = False) -> list[str]:
    """Compile a Triton kernel and return what must not be in it; `fused` allows contraction."""
    function, arguments, constants = KERNELS[name]
    signature = {**arguments, **dict.fromkeys(constants, "constexpr")}
    made = triton.compile(ASTSource(fn=function, signature=signature, constexprs=constants),
                          target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": fused})
    return found_in(made.asm["ptx"]) + machine_code.spilled(made.asm["cubin"])


def faults_of_cuda() -> list[str]:
    """Compile the CUDA C++ in each of its block widths and return what must not be in it."""
    faults = []
    for warps, multi_token in product((1, 2, 4), (False, True)):
        faults += machine_code.faults_of(source_of(kernel_gdn_cuda.SOURCE),
                                         kernel_gdn_cuda.options(warps, multi_token))
    return faults


def main(names: list[str]) -> int:
    """Compile and check the kernels of these names, or all that need no NVRTC."""
    bad = 0
    for name in names or KERNELS:
        faults = faults_of_cuda() if name == "cuda" else faults_of(name)
        bad += bool(faults)
        print(f"{name}: {', '.join(faults) or 'clean'}", flush=True)
    if not names and not faults_of("delta_step", fused=True):
        print("the check is blind: delta_step compiled with contraction passes it")
        bad += 1
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
