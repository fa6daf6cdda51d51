"""P6's kernels without a device outside the contract's cases: many splits, gaps, no alignment."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from contracts.load import load_contract
from contracts.schema import Case
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from phases.p6_batched_attention import attacks, launches, test_falsifier
from phases.p6_batched_attention.harness import CONTRACT, Harness, Layout
from phases.p6_batched_attention.increment import path

use_emulator = pytest.mark.usefixtures("emulated")


def build_case(falsifier: str, tier: str, **given: Any) -> tuple[Case, Subject, Judge]:
    """Return the arguments of a falsifier, with a case that the contract does not have."""
    case = next(c for c in load_contract(CONTRACT).expand()
                if c.falsifier == falsifier and c.tier == tier)
    case = case.model_copy(update={"given": given})
    return case, Subject("in-tree", models=lambda name: None, path=path()), Judge(case)


@pytest.mark.emulated
@use_emulator
@pytest.mark.parametrize(("lengths", "counts", "flavour"), [
    ([16384, 3], [1, 1], "plain"),  # 257 splits: the merge takes 256 at once
    ([16384], [1], "rising"),  # the last split has the largest score
    ([*range(257), 7], [1] * 257 + [2], "plain")])  # more rows than a block counts at once
def test_many_splits_and_many_rows(lengths: list[int], counts: list[int], flavour: str) -> None:
    test_falsifier.test_attention_is_true(*build_case(
        "attention_is_true", "cpu", heads=[1, 1], lengths=lengths, counts=counts, flavour=flavour))


@pytest.mark.emulated
@use_emulator
@pytest.mark.parametrize("group", [5, 7])
def test_groups_that_do_not_fill_a_load(group: int) -> None:
    test_falsifier.test_attention_is_true(
        *build_case("attention_is_true", "cpu", heads=[group, 1], lengths=[3, 64]))


@pytest.mark.emulated
@use_emulator
def test_chunk_and_pad_with_as_many_tokens_as_rows() -> None:
    case, subject, judge = build_case("pads_do_nothing", "cpu", heads=[2, 1], lengths=[5, 0, 64],
                                      counts=[2, 0, 1])
    attend, rows = Harness(case, subject, judge), attacks.build_rows(case)
    for row, got in zip(rows, attend(rows), strict=True):
        if row.count:
            attend.check_truth(got, row, length=row.length)
    assert judge.compared > 0


@pytest.mark.tier("interpret")
def test_second_launch_uses_its_own_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "MAX_TOKENS", 2)
    test_falsifier.test_attention_is_true(*build_case(
        "attention_is_true", "interpret", heads=[2, 1], lengths=[2, 66, 0], counts=[1, 1, 2]))


@pytest.mark.emulated
@use_emulator
@pytest.mark.parametrize("skew", [0, 1])
@pytest.mark.parametrize("gap", [0, 4, 1])
def test_operands_need_no_alignment(skew: int, gap: int) -> None:
    case, subject, judge = build_case("attention_is_true", "cpu", heads=[4, 2], lengths=[3, 64])
    attend, rows = Harness(case, subject, judge), attacks.build_rows(case)
    want, step = attend(rows), attend.lay_out(rows, Layout())
    for name in "qkv":
        setattr(step, name, with_gaps(getattr(step, name), skew, gap))
    copies = [getattr(step, name).clone() for name in "qkv"]
    attend.run(step)
    assert torch.equal(step.out.inside, torch.cat(want))
    for name, copy in zip("qkv", copies, strict=True):
        assert torch.equal(getattr(step, name), copy)


def with_gaps(x: Tensor, skew: int, gap: int) -> Tensor:
    """Return a copy with `gap` values of NaN after each head, `skew` values into its buffer."""
    *shape, width = x.shape
    buffer = torch.full((skew + x.numel() // width * (width + gap),), torch.nan)
    return buffer[skew:].view(*shape, width + gap)[..., :width].copy_(x)
