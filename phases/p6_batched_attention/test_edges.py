"""P6's kernels where no case of the contract goes off a device: long, many, apart and unaligned."""

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
from phases.p6_batched_attention.harness import CONTRACT, Attention, Layout
from phases.p6_batched_attention.increment import path

emulated = pytest.mark.usefixtures("emulated")


def made(falsifier: str, tier: str, **given: Any) -> tuple[Case, Subject, Judge]:
    """Return the arguments of an attack, with another case than the contract has."""
    case = next(c for c in load_contract(CONTRACT).expand()
                if c.falsifier == falsifier and c.tier == tier)
    case = case.model_copy(update={"given": given})
    return case, Subject("in-tree", models=lambda name: None, path=path()), Judge(case)


@pytest.mark.emulated
@emulated
@pytest.mark.parametrize(("lengths", "counts", "flavour"), [
    ([16384, 3], [1, 1], "plain"),  # 257 splits: shares of 256 are found at once
    ([16384], [1], "rising"),  # and the last one has the largest score
    ([*range(257), 7], [1] * 257 + [2], "plain")])  # rows that a block counts in two turns
def test_many_splits_and_many_rows(lengths: list[int], counts: list[int], flavour: str) -> None:
    test_falsifier.test_attention_is_true(*made(
        "attention_is_true", "cpu", heads=[1, 1], lengths=lengths, counts=counts, flavour=flavour))


@pytest.mark.emulated
@emulated
@pytest.mark.parametrize("group", [5, 7])
def test_groups_that_fill_no_whole_load(group: int) -> None:
    test_falsifier.test_attention_is_true(
        *made("attention_is_true", "cpu", heads=[group, 1], lengths=[3, 64]))


@pytest.mark.emulated
@emulated
def test_as_many_tokens_as_rows_may_be_a_chunk_and_a_pad() -> None:
    case, subject, judge = made("pads_do_nothing", "cpu", heads=[2, 1], lengths=[5, 0, 64],
                                counts=[2, 0, 1])
    attend, rows = Attention(case, subject, judge), attacks.rows_of(case)
    for row, got in zip(rows, attend(rows), strict=True):
        if row.count:
            attend.hold_true(got, row, length=row.length)
    assert judge.compared > 0


@pytest.mark.tier("interpret")
def test_second_launch_finds_its_own_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "MAX_TOKENS", 2)
    test_falsifier.test_attention_is_true(
        *made("attention_is_true", "interpret", heads=[2, 1], lengths=[2, 66, 0], counts=[1, 1, 2]))


@pytest.mark.emulated
@emulated
@pytest.mark.parametrize("skew", [0, 1])
@pytest.mark.parametrize("gap", [0, 4, 1])
def test_operands_need_no_alignment(skew: int, gap: int) -> None:
    case, subject, judge = made("attention_is_true", "cpu", heads=[4, 2], lengths=[3, 64])
    attend, rows = Attention(case, subject, judge), attacks.rows_of(case)
    want, step = attend(rows), attend.laid_out(rows, Layout())
    for name in "qkv":
        setattr(step, name, apart(getattr(step, name), skew, gap))
    held = [getattr(step, name).clone() for name in "qkv"]
    attend.run(step)
    assert torch.equal(step.out.inside, torch.cat(want))
    for name, before in zip("qkv", held, strict=True):
        assert torch.equal(getattr(step, name), before)


def apart(x: Tensor, skew: int, gap: int) -> Tensor:
    """Return a copy whose heads stand `gap` values apart, `skew` values behind a buffer's start."""
    *shape, width = x.shape
    room = torch.full((skew + x.numel() // width * (width + gap),), torch.nan)
    return room[skew:].view(*shape, width + gap)[..., :width].copy_(x)
