"""The kernels as machine code, the split of attention into launches, and refused operands."""

from __future__ import annotations

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
from phases.compile_check import clean_kernels
from phases.p6_batched_attention import attacks, increment, test_falsifier
from phases.p6_batched_attention.harness import CONTRACT, Harness, Layout
from phases.p6_batched_attention.launches import (
    MAX_SCRATCH,
    MAX_TOKENS,
    check_operands,
    plan_launches,
)

KERNEL_NAMES = ["append", "attend_split", "attend_merge", "rotate", "append-f16",
                "attend_split-bf16", "attend.cu-4", "attend.cu-4-f16", "attend.cu-4-bf16",
                "norm_rotate.cu"]


def test_kernels_compile_without_contraction_approximation_or_spills() -> None:
    assert clean_kernels("p6_batched_attention", *KERNEL_NAMES) == KERNEL_NAMES


@pytest.mark.parametrize(("lengths", "counts", "heads"), [
    ((0,), (1,), 2), ((4095,) * 64, (1,) * 64, 16), ((0, 9), (5000, 0), 2),
    ((5, 200_000, 7), (1, 1, 1), 16), ((40_000,), (300,), 16), ((3,), (0,), 4)])
def test_launches_take_every_token_once_in_bounded_scratch(
        lengths: tuple[int, ...], counts: tuple[int, ...], heads: int) -> None:
    reach = [n + i + 1 for n, count in zip(lengths, counts, strict=True) for i in range(count)]
    at = 0
    for launch in plan_launches(Ints(lengths), Ints(counts), heads):
        assert launch.first == at
        longest = max(reach[launch.first:launch.first + launch.tokens])
        assert (launch.splits - 1) * 64 < longest <= launch.splits * 64
        scratch = launch.tokens * launch.splits * heads * 256
        assert launch.tokens == 1 or scratch <= MAX_SCRATCH
        assert launch.tokens <= MAX_TOKENS
        at += launch.tokens
    assert at == len(reach)


def test_a_full_batch_at_usual_length_is_one_launch() -> None:
    assert len(list(plan_launches((4095,) * 64, (1,) * 64, 16))) == 1


def far_offset_case(stride: int) -> tuple[Case, Subject, Judge]:
    """Return the arguments of `offsets_do_not_wrap`, with a stride that fits into host memory."""
    case = next(c for c in load_contract(CONTRACT).expand() if c.falsifier == "offsets_do_not_wrap")
    case = case.model_copy(update={"tier": "cpu", "given": {**case.given, "stride": stride}})
    return case, Subject("in-tree", models=testmodels.load, path=increment.path()), Judge(case)


def test_rows_far_apart_share_memory_but_no_value() -> None:
    case, subject, judge = far_offset_case(1024)
    test_falsifier.test_offsets_do_not_wrap(case, subject, judge)
    assert judge.compared > 0


def test_lack_of_memory_is_unmeasurable(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*size: int, **options: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    case, subject, judge = far_offset_case(1 << 24)
    attend, (row,) = Harness(case, subject, judge), attacks.build_rows(case)
    step = attend.lay_out([row], Layout(capacity=row.reach + 1))
    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(Unmeasurable, match=r"need 8\.2 GiB of contiguous device memory"):
        attacks.spread_cache(step, case["stride"])


def make_operands(**changed: Any) -> list[Any]:
    operands: dict[str, Any] = {
        **dict.fromkeys(("q", "k", "v", "gate", "keys", "values", "out")),  # the kernel's order
        **{name: torch.zeros(2, 4, 256) for name in ("q", "gate", "out")},
        **{name: torch.zeros(2, 2, 256) for name in "kv"},
        **{name: torch.zeros(1, 8, 2, 256) for name in ("keys", "values")}, **changed}
    return [Refs(x, (0,)) if name in ("keys", "values") else x for name, x in operands.items()]


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
