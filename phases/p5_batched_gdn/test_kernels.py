"""P5's kernels as machine code, and the mutants' kernels without a fault."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contracts.load import load_contract
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from phases.compile_check import clean_kernels
from phases.p5_batched_gdn import test_falsifier
from phases.p5_batched_gdn.harness import CONTRACT
from phases.p5_batched_gdn.increment import path


def test_kernels_compile_without_contraction_or_spills() -> None:
    names = ["conv_step", "gates", "delta_step"]
    assert clean_kernels("p5_batched_gdn", *names) == names


@pytest.mark.tier("interpret")
@pytest.mark.parametrize("op", ["conv_step", "delta_step"])
def test_mutant_kernel_without_its_fault_is_right(op: str) -> None:
    from phases.p5_batched_gdn import wrong_kernels

    kernels = {"conv_step": wrong_kernels.faulty_conv_step,
               "delta_step": wrong_kernels.faulty_delta_step}
    subject = Subject("sound", models=lambda name: None,
                      path=replace(path(), **{op: kernels[op](wrong_kernels.NONE)}))
    for case in load_contract(CONTRACT).expand():
        if case.tier == "interpret" and case.quick and case.given.get("op") == op and \
                (case.falsifier == "loads_and_stores_stay_inside" or case.name.endswith("-plain")):
            getattr(test_falsifier, f"test_{case.falsifier}")(case, subject, Judge(case))


def test_each_cuda_fault_changes_the_source() -> None:
    from phases.p5_batched_gdn import kernel_gdn_cuda, wrong_cuda
    right = kernel_gdn_cuda.SOURCE.read_text()
    for _, old, new in wrong_cuda.FAULTS.values():
        assert wrong_cuda.faulty_source(old, new) != right
    with pytest.raises(ValueError, match="does not contain 'head % 3'"):
        wrong_cuda.faulty_source("head % 3", "head")


@pytest.mark.parametrize(("work", "warps"), [
    (32, 1), (128, 1), (255, 1), (256, 2), (511, 2), (512, 4), (4096, 4)])
def test_few_programs_run_in_smaller_blocks(work: int, warps: int) -> None:
    from phases.p5_batched_gdn.kernel_gdn_cuda import warps_of
    assert warps_of(work) == warps
