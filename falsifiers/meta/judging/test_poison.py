"""Poison is NaN or a sentinel, and guards detect a write of one byte."""

from __future__ import annotations

import pytest
import torch

from falsifiers.judging.judge import Judge
from falsifiers.judging.poison import GUARD_BYTES, new_guarded, new_poison, poison
from falsifiers.meta.judging.factories import broken_finding, make_case

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
OTHERS = (torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool)


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_are_nan(dtype: torch.dtype) -> None:
    assert bool(new_poison(3, 5, dtype=dtype).isnan().all())


@pytest.mark.parametrize("dtype", FLOATS + OTHERS)
def test_sentinel_is_neither_zero_nor_nan(dtype: torch.dtype) -> None:
    x = new_poison(3, 5, dtype=dtype, sentinel=True)
    assert bool((x != 0).all())
    assert not bool(x.isnan().any())


def test_only_the_view_is_poisoned() -> None:
    x = torch.zeros(4, 6)
    poison(x[1:3, ::2])
    assert int(x.isnan().sum()) == 6
    assert not bool(x[0].any())


@pytest.mark.parametrize("at", [0, GUARD_BYTES - 1, -GUARD_BYTES, -1])
def test_write_of_one_byte_out_of_bounds_is_detected(at: int) -> None:
    guarded = new_guarded(3, 5)
    guarded.memory[at] = 0
    assert broken_finding(lambda: guarded.hold(Judge(make_case()), "out")).rung == "frame"


def test_writes_in_bounds_are_allowed() -> None:
    guarded, judge = new_guarded(3, 5, dtype=torch.bfloat16), Judge(make_case())
    assert bool(guarded.inside.isnan().all())
    guarded.inside.zero_()
    guarded.hold(judge, "out")
    assert judge.compared == 2
    assert guarded.inside.shape == (3, 5)
