"""Compile this phase's kernels for sm_90 without a GPU and read what the compilers made of them.

Run as `python -m phases.p6_batched_attention.compile_check [NAME ...]` without TRITON_INTERPRET;
prints a line a kernel (all without names) and exits with 1 when one holds a contracted,
approximate or flushing f32 operation, or keeps values in memory. The CUDA source needs NVRTC;
without it nothing passes.
"""

# mypy: ignore-errors

from __future__ import annotations

import sys

import triton.language as tl

from engine.kernels import compile as check
from engine.kernels import machine_code
from engine.kernels.nvrtc import source_of
from engine.state import KV_TYPES
from phases.p6_batched_attention import (
    kernel_attend,
    kernel_attend_cuda,
    kernel_norm_rotate,
    kernel_rotate,
)

GROUPS = (1, 2, 3, 4, 6, 8)
"""Query heads a KV head that the CUDA kernels are compiled for here."""
PLAIN_SUM = "__fadd_rn(acc[h][l], __fmul_rn(weight[h], value))"
FUSED_SUM = "__fmaf_rn(weight[h], value, acc[h][l])"
"""A sum of the source and what it must never become."""
ROW_TYPES = {"starts": "*i32", "lengths": "*i32", "m": "i32"}
CACHE_TYPES = {"keys": "*u64", "values": "*u64"}


def _stride_types(*names: str) -> dict[str, str]:
    return {f"{name}_{axis}": "i32" for name in names for axis in
            (("row", "head") if name in ("key", "value") else ("token", "head"))}


KERNELS = {
    "append": (kernel_attend._append,
               {"k": "*fp32", "v": "*fp32", **CACHE_TYPES, **ROW_TYPES, **_stride_types("k", "v", "key", "value")},
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
                **_stride_types("x", "out")}, {"PAIRS": 32, "DIM": 256}),
}


KERNELS |= {f"{name}-{kv}": (function, arguments, {**constants, "KV": kind})
            for name, (function, arguments, constants) in KERNELS.items() if "KV" in constants
            for kv, kind in (("f16", tl.float16), ("bf16", tl.bfloat16))}


def faults_of_cuda(group: int, source: str, kv: str = "f32") -> list[str]:
    """Compile the CUDA source for a group and a type of cache; return what must not be in it."""
    return machine_code.faults_of(source, kernel_attend_cuda.options(group, KV_TYPES[kv]))


def main(names: list[str]) -> int:
    """Compile and check the kernels of these names, or all."""
    check.KERNELS.update(KERNELS)
    source = kernel_attend_cuda.source()
    checks = {name: lambda name=name: check.found_in(check.ptx_of(name)) for name in KERNELS}
    checks |= {f"attend.cu-{g}" + (f"-{kv}" if kv != "f32" else ""):
               lambda g=g, kv=kv: faults_of_cuda(g, source, kv) for kv in KV_TYPES for g in GROUPS}
    checks["norm_rotate.cu"] = lambda: machine_code.faults_of(
        source_of(kernel_norm_rotate.SOURCE))
    bad = 0
    for name in names or checks:
        faults = checks[name]()
        bad += bool(faults)
        print(f"{name}: {', '.join(faults) or 'clean'}", flush=True)
    if not check.found_in(check.ptx_of("rotate", fused=True)):
        print("the check is blind: rotate compiled with contraction passes it")
        bad += 1
    if not faults_of_cuda(4, source.replace(PLAIN_SUM, FUSED_SUM)):
        print("the check is blind: attend.cu with a fused sum passes it")
        bad += 1
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
