"""P6's kernels, compiled for sm_90 without a GPU (see `phases.compile_check`)."""

# mypy: ignore-errors

from __future__ import annotations

import sys
from functools import partial

import triton.language as tl

from engine.kernels import machine_code
from engine.kernels.nvrtc import source_of
from engine.state import KV_TYPES
from phases.compile_check import main, triton_faults
from phases.p6_batched_attention import (
    kernel_attend,
    kernel_attend_cuda,
    kernel_norm_rotate,
    kernel_rotate,
)

GROUPS = (1, 2, 3, 4, 6, 8)
"""Query heads for each KV head, in the CUDA kernels that are compiled."""
PLAIN_SUM = "__fadd_rn(acc[h][l], __fmul_rn(weight[h], value))"
FUSED_SUM = "__fmaf_rn(weight[h], value, acc[h][l])"
"""A sum of the source, and its contracted form for the negative control."""
ROW_TYPES = {"starts": "*i32", "lengths": "*i32", "m": "i32"}
CACHE_TYPES = {"keys": "*u64", "values": "*u64"}


def _stride_types(*names: str) -> dict[str, str]:
    return {f"{name}_{axis}": "i32" for name in names for axis in
            (("row", "head") if name in ("key", "value") else ("token", "head"))}


KERNELS = {
    "append": (kernel_attend._append,
               {"k": "*fp32", "v": "*fp32", **CACHE_TYPES, **ROW_TYPES,
                **_stride_types("k", "v", "key", "value")},
               {"DIM": 256, "KV": tl.float32}),
    "attend_split": (kernel_attend._attend_split,
                     {"q": "*fp32", **CACHE_TYPES, **ROW_TYPES, "first": "i32", "stats": "*fp32",
                      "partials": "*fp32", "splits": "i32", **_stride_types("q", "key", "value")},
                     {"Q_PER_KV": 4, "HEADS": 4, "SPLIT": 64, "DIM": 256, "SCALE": 0.0625,
                      "KV": tl.float32}),
    "attend_merge": (kernel_attend._attend_merge,
                     {"gate": "*fp32", **ROW_TYPES, "first": "i32", "stats": "*fp32",
                      "partials": "*fp32", "splits": "i32", "out": "*fp32",
                      **_stride_types("gate", "out")},
                     {"Q_PER_KV": 4, "HEADS": 4, "SPLIT": 64, "DIM": 256}),
    "rotate": (kernel_rotate._rotate,
               {"x": "*fp32", "table": "*fp32", "positions": "*i64", "out": "*fp32",
                **_stride_types("x", "out")},
               {"PAIRS": 32, "DIM": 256}),
}
KERNELS |= {f"{name}-{kv}": (function, arguments, {**constants, "KV": kind})
            for name, (function, arguments, constants) in KERNELS.items() if "KV" in constants
            for kv, kind in (("f16", tl.float16), ("bf16", tl.bfloat16))}


def faults_of_cuda(group: int, source: str, kv: str = "f32") -> list[str]:
    """Compile the CUDA source for a group and a type of cache; return its faults."""
    return machine_code.faults_of(source, kernel_attend_cuda.options(group, KV_TYPES[kv]))


if __name__ == "__main__":
    SOURCE = kernel_attend_cuda.source()
    sys.exit(main(
        {**{name: partial(triton_faults, *kernel) for name, kernel in KERNELS.items()},
         **{f"attend.cu-{group}" + (f"-{kv}" if kv != "f32" else ""):
            partial(faults_of_cuda, group, SOURCE, kv) for kv in KV_TYPES for group in GROUPS},
         "norm_rotate.cu": lambda: machine_code.faults_of(source_of(kernel_norm_rotate.SOURCE))},
        {"rotate compiled with contraction":
         lambda: triton_faults(*KERNELS["rotate"], contract=True),
         "attend.cu with a fused sum":
         lambda: faults_of_cuda(4, SOURCE.replace(PLAIN_SUM, FUSED_SUM))}))
