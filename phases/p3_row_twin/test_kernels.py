"""P3's kernels as machine code, and how few of them there are."""

from __future__ import annotations

import pytest

from phases.compile_check import clean_kernels

TRITON_VARIANTS = ["ordered-Q4_K-1", "ordered-Q5_K-4", "ordered-Q6_K-16", "ordered-Q8_0-64",
                   "ordered-F32-4", "ordered-F16-16", "ordered-BF16-1", "exact-Q6_K-16"]
CUDA_VARIANTS = ["cuda-quantize", "cuda-Q4_K-k2560-m1-129", "cuda-Q5_K-k2560-m3-129",
        "cuda-Q6_K-k9216-m3-129", "cuda-Q4_K-k1024-m33-128", "cuda-Q8_0-k1024-m17-128"]
"""Of each type one: limbs side by side, tiles of eight, several slices, warpgroups."""


def test_kernels_compile_without_contraction_or_spills() -> None:
    assert clean_kernels("p3_row_twin", *TRITON_VARIANTS) == TRITON_VARIANTS


def test_cuda_kernels_compile_without_contraction_or_spills(request: pytest.FixtureRequest) -> None:
    from phases.p3_row_twin.compile_check import ALLOWED_STACK, cuda_variants
    known = list(cuda_variants())
    names = known if request.config.getoption("--thorough") else CUDA_VARIANTS
    assert clean_kernels("p3_row_twin", *names) == names
    assert set(CUDA_VARIANTS) | set(ALLOWED_STACK) <= set(known)


def test_only_the_stack_that_is_allowed_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.kernels import machine_code
    from phases.p3_row_twin import compile_check as check
    monkeypatch.setattr(machine_code, "faults_of", lambda *given: [
        "8 bytes of stack", "9 bytes of local"])
    assert check.faults_of_cuda("cuda-Q4_K-k2560-m1-129") == ["9 bytes of local"]
    assert check.faults_of_cuda("cuda-quantize") == ["8 bytes of stack", "9 bytes of local"]


@pytest.mark.tier("interpret")
def test_variants_are_few_and_each_has_a_name_of_its_own() -> None:
    from phases.p3_row_twin.compile_check import variants
    names = [variant.name for variant in variants()]
    assert set(TRITON_VARIANTS) <= set(names)
    assert len(names) == len(set(names)) <= 60
