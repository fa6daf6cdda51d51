"""P5's kernels on inputs outside the contract's cases: three key heads, and no token at all.

An index computed by a bit mask is wrong for three key heads only.
"""

from __future__ import annotations

import pytest
import torch

from contracts.load import load_contract
from engine.state import Ints, Refs
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from phases.p5_batched_gdn import test_falsifier
from phases.p5_batched_gdn.harness import CONTRACT
from phases.p5_batched_gdn.increment import path


def check_three_key_heads(tier: str) -> None:
    """Compare the delta rule of a tier with the engine's, over three key heads."""
    case = next(c for c in load_contract(CONTRACT).expand()
                if (c.falsifier, c.tier, c.given["op"]) == ("rows_are_true", tier, "delta_step"))
    case = case.model_copy(update={"given": {**case.given, "heads": [3, 6], "m": 2, "longest": 2}})
    judge = Judge(case)
    test_falsifier.test_rows_are_true(
        case, Subject("in-tree", models=lambda name: None, path=path()), judge)
    assert judge.compared > 0


@pytest.mark.tier("interpret")
def test_portable_kernel_shares_three_key_heads() -> None:
    check_three_key_heads("interpret")


@pytest.mark.emulated
@pytest.mark.usefixtures("emulated")
def test_cuda_kernel_shares_three_key_heads() -> None:
    check_three_key_heads("cuda")


@pytest.mark.emulated
@pytest.mark.usefixtures("emulated")
def test_rows_without_tokens_leave_their_states_unchanged() -> None:
    counts, ops = Ints((0, 0)), path()
    windows, states = (Refs(torch.full((2, *shape), 7.0), (1, 0))
                       for shape in ((384, 3), (1, 128, 128)))
    x, heads, gate = torch.empty(0, 384), torch.empty(0, 1, 128), torch.empty(0, 1)
    ops.conv_step(x, torch.ones(384, 4), windows, counts, torch.empty(0, 384))
    ops.delta_step(heads, heads, heads, gate, gate, states, counts, torch.empty(0, 1, 128))
    assert all(bool((refs.all_slots == 7.0).all()) for refs in (windows, states))
