"""Every relation passes for a right batch and fails for a wrong one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from falsifiers.judging import relations
from falsifiers.judging.judge import Judge
from falsifiers.meta.judging.factories import broken_finding, make_case

ROWS = [torch.arange(4.0) + 4 * i for i in range(5)]
Run = Callable[[Sequence[Tensor]], Tensor]


def right(rows: Sequence[Tensor]) -> Tensor:
    return torch.stack([row * 2 + 1 for row in rows])


def mean_leaks(rows: Sequence[Tensor]) -> Tensor:
    return torch.stack([row + torch.stack(list(rows)).mean() * 1e-3 for row in rows])


def wide_is_rounded(rows: Sequence[Tensor]) -> Tensor:
    return torch.stack([row / 3 if len(rows) < 4 else (row / 3).bfloat16().float()
                        for row in rows])


def index_added(rows: Sequence[Tensor]) -> Tensor:
    return torch.stack([row + i for i, row in enumerate(rows)])


BUFFER = torch.zeros(8, 4)


def one_buffer(rows: Sequence[Tensor]) -> Tensor:
    BUFFER.mul_(0.5)
    BUFFER[:len(rows)] += torch.stack(list(rows))
    return BUFFER[:len(rows)]


ATTACKS: dict[str, Callable[[Judge, Run], None]] = {
    "single": lambda j, run: relations.alone_equals_in_batch(j, run, ROWS),
    "permuted": lambda j, run: relations.permuted_rows_permute(j, run, ROWS, [3, 1, 4, 0, 2]),
    "neighbours": lambda j, run: relations.neighbours_cannot_reach(
        j, run, ROWS[0], [ROWS[1:3], ROWS[3:5], ROWS[1:5]]),
    "split": lambda j, run: relations.split_batch_equals_batch(j, run, ROWS, 2),
    "repeats": lambda j, run: relations.repeats_are_equal(j, run, ROWS),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_right_batch_passes(attack: str) -> None:
    judge = Judge(make_case())
    ATTACKS[attack](judge, right)
    assert judge.compared > 0


@pytest.mark.parametrize(("attack", "wrong"), [
    ("single", mean_leaks), ("single", wide_is_rounded), ("permuted", index_added),
    ("neighbours", mean_leaks), ("neighbours", wide_is_rounded), ("split", mean_leaks),
    ("split", index_added), ("repeats", one_buffer)])
def test_wrong_batch_fails(attack: str, wrong: Run) -> None:
    assert broken_finding(lambda: ATTACKS[attack](Judge(make_case()), wrong)).rung == "bits"


def test_frame_allows_writes_only_to_named_groups() -> None:
    slots = {f"slot {i}": {"k": torch.zeros(3)} for i in range(3)}
    judge = Judge(make_case())
    with relations.unchanged_outside(judge, lambda: slots, ["slot 1"]):
        slots["slot 1"]["k"][2] = 1.0

    def write_elsewhere() -> None:
        with relations.unchanged_outside(judge, lambda: slots, ["slot 1"]):
            slots["slot 2"]["k"][0] = -0.0

    assert "slot 2" in broken_finding(write_elsewhere).sentence


def test_digest_sees_a_shape_and_the_sign_of_zero() -> None:
    zeros = relations.tensors_digest({"k": torch.zeros(4)})
    assert zeros == relations.tensors_digest({"k": torch.zeros(4)})
    assert zeros != relations.tensors_digest({"k": torch.zeros(2, 2)})
    assert zeros != relations.tensors_digest({"k": -torch.zeros(4)})
