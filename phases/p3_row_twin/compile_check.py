"""The variants of P3's kernels, compiled for sm_90 without a GPU (see `phases.compile_check`)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import ceil
from pathlib import Path
from typing import Any

from engine.kernels import machine_code
from engine.kernels.decode import CODES
from phases.compile_check import main, triton_faults
from phases.p3_row_twin import kernel_exact, kernel_exact_mma, kernel_ordered, packing

SHAPES = (256, 512, 768, 1024, 2560, 4096, 9216)
"""Columns of the matrices of the test models, the contract and a 4B file."""
TILES = (kernel_exact_mma.ONE_TEAM_TILES, kernel_exact_mma.ONE_TEAM_TILES + 1)
"""Tiles of 16 weight rows on both sides of the change from one team to two."""
WIDTHS = (1, 2, 3, 8, 16, 17, 32, 33, 64)
"""Numbers of rows on both sides of each change of a launch's layout."""
ALLOWED_STACK = {
    "cuda-Q4_K-k256-m33-128": 16,
    "cuda-Q4_K-k512-m33-128": 16,
    "cuda-Q4_K-k768-m33-128": 16,
    "cuda-Q4_K-k1024-m33-128": 16,
    "cuda-Q4_K-k2560-m1-129": 24,
    "cuda-Q5_K-k256-m33-128": 16,
    "cuda-Q5_K-k512-m33-128": 16,
    "cuda-Q5_K-k768-m33-128": 16,
    "cuda-Q5_K-k1024-m33-128": 16,
    "cuda-Q5_K-k9216-m3-129": 8,
    "cuda-Q6_K-k256-m33-128": 16,
    "cuda-Q6_K-k512-m33-128": 16,
    "cuda-Q6_K-k768-m1-128": 8,
    "cuda-Q6_K-k768-m33-128": 16,
    "cuda-Q6_K-k1024-m3-129": 8,
    "cuda-Q6_K-k1024-m33-128": 16,
    "cuda-Q6_K-k9216-m3-129": 16,
    "cuda-Q8_0-k256-m17-128": 8,
    "cuda-Q8_0-k512-m17-128": 8,
    "cuda-Q8_0-k768-m17-128": 8,
    "cuda-Q8_0-k1024-m17-128": 8,
    "cuda-Q8_0-k2560-m17-128": 8,
    "cuda-Q8_0-k4096-m1-128": 8,
    "cuda-Q8_0-k9216-m3-129": 24,
    "cuda-Q5_K+Q4_K+Q8_0-k2560-m33": 16,
    "cuda-Q4_K+Q6_K-k2560-m33": 16,
}
"""Variants that keep something on the stack: the most bytes of it (NVRTC 13.5).

That costs time and no bit; every other variant keeps all of its values in registers.
"""
SHARED_LAUNCHES = (("Q5_K", "Q4_K", "Q8_0"), ("Q4_K", "Q6_K"))
"""Types that read the same activations in a file of the usual mixture, in a GDN layer and an
attention layer."""
POINTER_TYPES = {"F32": "*fp32", "F16": "*fp16", "BF16": "*u16"}
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
    may_spill: bool = False
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
                          {"KIND": code, "BYTES": size, "N": 16, "M": tile}, 4, may_spill=True)


def cuda_variants() -> dict[str, tuple[Path, tuple[str, ...]]]:
    """Return source and compiler options of the CUDA C++ variants that SHAPES take, by name.

    Shapes and numbers of rows that take one variant give it the name of the first.
    """
    names: dict[tuple[Path, tuple[str, ...]], str] = {
        (kernel_exact_mma.QUANTIZE_SOURCE, ()): "cuda-quantize"}
    for kind, k, m, tiles in product(packing.CODE, SHAPES, WIDTHS, TILES):
        plan = kernel_exact_mma.plan_for(ceil(k / 256), m, tiles)
        names.setdefault((plan.file, plan.options([kind])), f"cuda-{kind}-k{k}-m{m}-{tiles}")
    for kinds, m in product(SHARED_LAUNCHES, WIDTHS):
        plan = kernel_exact_mma.plan_for(10, m, kernel_exact_mma.ONE_TEAM_TILES + 1)
        names.setdefault((plan.file, plan.options(kinds)), f"cuda-{'+'.join(kinds)}-k2560-m{m}")
    return {name: variant for variant, name in names.items()}


def faults_of_cuda(name: str) -> list[str]:
    """Compile a CUDA C++ variant and return its faults."""
    path, options = cuda_variants()[name]
    faults = machine_code.faults_of(kernel_exact_mma.source(path), options, kernel_exact_mma.ARCH)
    allowed = {f"{size} bytes of stack" for size in range(1, ALLOWED_STACK.get(name, 0) + 1)}
    return [fault for fault in faults if fault not in allowed]


def faults_of(variant: Variant) -> list[str]:
    """Compile a Triton variant and return its faults."""
    names = ("n", "k", "m", "x_stride", "out_stride", "row_bytes")
    arguments = {"weight": POINTER_TYPES.get(variant.kind, "*u8"), "x": "*fp32", "out": "*fp32",
                 **dict.fromkeys(names, "i32")}
    stages: dict[str, Any] = {"num_stages": 1} if variant.may_spill else {}
    return triton_faults(variant.function, arguments, variant.constants,
                         may_spill=variant.may_spill, num_warps=variant.warps, **stages)


if __name__ == "__main__":
    sys.exit(main({**{variant.name: partial(faults_of, variant) for variant in variants()},
                   **{name: partial(faults_of_cuda, name) for name in cuda_variants()}}, {}))
