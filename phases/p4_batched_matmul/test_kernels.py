"""The kernels as machine code: compiled for sm_90 in a process without the interpreter."""

from __future__ import annotations

from phases.compile_check import clean_kernels

KERNEL_NAMES = ["largest_of_part", "largest", "gated_norm", "silu_mul", "exp", "log1p", "sigmoid",
                "silu", "softplus", "fused.cu"]


def test_kernels_compile_without_contraction_or_approximation() -> None:
    assert clean_kernels("p4_batched_matmul") == KERNEL_NAMES
