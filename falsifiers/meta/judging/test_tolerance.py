"""Each kind of closeness is distinguished from the next."""

from __future__ import annotations

import pytest
import torch

from falsifiers.judging.tolerance import classify, cosine_and_norm_ratio, flip_margin
from falsifiers.meta.judging.factories import BUDGET

WANT = torch.tensor([3.0, 2.9995, 1.0, -2.0])


@pytest.mark.parametrize(("got", "kind"), [
    ([3.0, 2.9995, 1.0, -2.0], "bit-equal"),
    ([3.0001, 2.9995, 1.0, -2.0], "within budget"),
    ([2.9995, 3.0, 1.0, -2.0], "near-tie"),
    ([2.9, 2.9, 3.1, -2.0], "diverged"),
    ([6.0, 5.999, 2.0, -4.0], "diverged"),
    ([3.0, float("nan"), 1.0, -2.0], "diverged"),
])
def test_kind_of_closeness(got: list[float], kind: str) -> None:
    assert classify(torch.tensor(got), WANT, BUDGET).kind == kind


def test_flip_of_a_decided_row_is_no_near_tie() -> None:
    want = torch.tensor([10.0, 9.0] + [0.0] * 30)
    loose = BUDGET.model_copy(update={"cosine": 0.9, "norm": 0.5})
    assert classify(want[[1, 0, *range(2, 32)]], want, loose).kind == "diverged"


def test_rows_of_nan_are_never_bit_equal() -> None:
    nan = torch.full((4,), float("nan"))
    assert classify(nan, nan, BUDGET).kind == "diverged"


def test_rows_of_zeros_are_equal_and_differ_from_other_rows() -> None:
    cosine, ratio = cosine_and_norm_ratio(torch.zeros(1, 4), torch.zeros(1, 4))
    assert (float(cosine), float(ratio)) == (1.0, 1.0)
    assert classify(torch.zeros(4), WANT, BUDGET).kind == "diverged"


def test_margin_is_in_standard_deviations_of_the_expected_row() -> None:
    want = torch.tensor([3.0, 1.0, -1.0, -3.0])
    assert flip_margin(want[[1, 0, 2, 3]], want) == pytest.approx(2 / 5 ** 0.5)
    assert flip_margin(want, want) == float("inf")


@pytest.mark.parametrize(("name", "closer"), [("cosine", 1e-9), ("norm", -1e-9)])
def test_budget_includes_its_bound(name: str, closer: float) -> None:
    got = WANT * 1.01 + torch.tensor([0.0, 0.0, 0.02, 0.0])
    cosine, ratio = (float(x) for x in cosine_and_norm_ratio(got[None], WANT[None]))
    at = {"cosine": cosine, "norm": abs(ratio - 1)}
    assert classify(got, WANT, BUDGET.model_copy(update=at)).kind == "within budget"
    tight = BUDGET.model_copy(update={**at, name: at[name] + closer})
    assert classify(got, WANT, tight).kind == "diverged"


def test_near_tie_includes_its_bound() -> None:
    got = WANT[[1, 0, 2, 3]]
    margin = flip_margin(got, WANT)
    for bound, kind in ((margin, "near-tie"), (margin - 1e-9, "diverged")):
        assert classify(got, WANT, BUDGET.model_copy(update={"near_tie": bound})).kind == kind
