"""The kernels as machine code, how attention is cut into launches, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.load import load_contract
from contracts.schema import Case
from engine import testmodels
from engine.errors import InputError
from engine.state import Ints, Refs
from falsifiers.judging.errors import Unmeasurable
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from phases.p6_batched_attention import attacks, increment, test_falsifier
from phases.p6_batched_attention.harness import CONTRACT, Harness, Layout
from phases.p6_batched_attention.launches import (
    MAX_SCRATCH,
    MAX_TOKENS,
    check_operands,
    plan_launches,
)

ROOT = Path(__file__).parents[2]
KERNEL_NAMES = [
    "append",
    "attend_split",
    "attend_merge",
    "rotate",
    "append-f16",
    "attend_split-bf16",
    "attend.cu-4",
    "attend.cu-4-f16",
    "attend.cu-4-bf16",
    "norm_rotate.cu",
]


def test_kernels_compile_without_contraction_approximation_or_spills() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "phases.p6_batched_attention.compile_check", *KERNEL_NAMES],
        cwd=ROOT,
        text=True,
        capture_output=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [f"{name}: clean" for name in KERNEL_NAMES]


@pytest.mark.parametrize(("lengths", "counts", "heads"), [
    ((0,), (1,), 2), ((4095,) * 64, (1,) * 64, 16), ((0, 9), (5000, 0), 2),
    ((5, 200_000, 7), (1, 1, 1), 16), ((40_000,), (300,), 16), ((3,), (0,), 4)])
def test_launches_take_every_token_once_in_bounded_room(
        lengths: tuple[int, ...], counts: tuple[int, ...], heads: int) -> None:
    reach = [n + i + 1 for n, count in zip(lengths, counts, strict=True) for i in range(count)]
    at = 0
    for one in plan_launches(Ints(lengths), Ints(counts), heads):
        own = reach[one.first:one.first + one.tokens]
        assert one.first == at
        assert (one.splits - 1) * 64 < max(own) <= one.splits * 64
        assert one.tokens == 1 or one.tokens * one.splits * heads * 256 <= MAX_SCRATCH
        assert one.tokens <= MAX_TOKENS
        at += one.tokens
    assert at == len(reach)


def test_a_full_batch_at_usual_length_is_one_launch() -> None:
    assert len(list(plan_launches((4095,) * 64, (1,) * 64, 16))) == 1


def far_offset_case(stride: int) -> tuple[Case, Subject, Judge]:
    """Return the arguments of the attack on far offsets, with rows as near as a CPU can bear."""
    case = next(c for c in load_contract(CONTRACT).expand() if c.falsifier == "offsets_do_not_wrap")
    case = case.model_copy(update={"tier": "cpu", "given": {**case.given, "stride": stride}})
    return case, Subject("in-tree", models=testmodels.load, path=increment.path()), Judge(case)


def test_rows_far_apart_share_memory_and_not_a_value() -> None:
    case, subject, judge = far_offset_case(1024)
    test_falsifier.test_offsets_do_not_wrap(case, subject, judge)
    assert judge.compared > 0


def test_want_of_memory_says_nothing_about_the_subject(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*size: int, **asked: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    case, subject, judge = far_offset_case(1 << 24)
    attend, (row,) = Harness(case, subject, judge), attacks.build_rows(case)
    step = attend.lay_out([row], Layout(capacity=row.reach + 1))
    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(Unmeasurable, match=r"need 8\.2 GiB of device memory"):
        attacks.spread_cache(step, case["stride"])


def make_operands(**changed: Any) -> list[Any]:
    given: dict[str, Any] = {"q": torch.zeros(2, 4, 256), "k": torch.zeros(2, 2, 256),
                             "v": torch.zeros(2, 2, 256), "gate": torch.zeros(2, 4, 256),
                             "keys": torch.zeros(1, 8, 2, 256), "values": torch.zeros(1, 8, 2, 256),
                             "out": torch.zeros(2, 4, 256), **changed}
    return [Refs(x, (0,)) if name in ("keys", "values") else x for name, x in given.items()]


@pytest.mark.parametrize(("changed", "sentence"), [
    ({"q": torch.zeros(2, 4, 128)}, r"q of attention must be f32 with heads of 256"),
    ({"gate": torch.zeros(2, 4, 256).double()}, r"gate of attention must be f32.*float64"),
    ({"keys": torch.zeros(1, 8, 256, 2).mT}, r"the key cache of attention must be f32"),
    ({"keys": torch.zeros(1, 8, 2, 256).half()}, r"keys are cached in torch.float16, but values"),
    ({"values": torch.zeros(1, 8, 2, 256).int()}, r"the value cache of attention must be f32 or"),
    ({"out": torch.zeros(3, 4, 256)}, r"shapes of attention do not fit"),
    ({"k": torch.zeros(1, 2, 256), "v": torch.zeros(1, 2, 256)}, r"shapes of attention do not"),
    ({"k": torch.zeros(2, 3, 256), "v": torch.zeros(2, 3, 256)}, r"4 query heads cannot share 3"),
    ({"v": torch.zeros(2, 2, 256, device="meta")}, r"v is on meta, but out is on cpu")])
def test_operands_that_do_not_fit_are_refused(changed: dict[str, Any], sentence: str) -> None:
    check_operands(*make_operands())
    narrow = torch.zeros(1, 8, 2, 256).bfloat16()
    check_operands(*make_operands(keys=narrow, values=narrow))
    with pytest.raises(InputError, match=sentence):
        check_operands(*make_operands(**changed))
