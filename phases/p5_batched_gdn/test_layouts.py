"""P5's kernels where no case of the contract goes.

Three key heads, which no mask of bits finds, and rows of which none has a token.
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
    """Hold the delta rule of a tier to the engine's, over three key heads."""
    case = next(c for c in load_contract(CONTRACT).expand()
                if (c.falsifier, c.tier, c.given["op"]) == ("rows_are_true", tier, "delta_step"))
    case = case.model_copy(update={"given": {**case.given, "heads": [3, 6], "m": 2, "longest": 2}})
    judge = Judge(case)
    test_falsifier.test_rows_are_true(
        case, Subject("in-tree", models=lambda name: None, path=path()), judge)
    assert judge.compared > 0


@pytest.mark.tier("interpret")
def test_three_key_heads_are_shared_by_the_portable_kernel() -> None:
    check_three_key_heads("interpret")


@pytest.mark.emulated
@pytest.mark.usefixtures("emulated")
def test_three_key_heads_are_shared_by_the_fast_kernel() -> None:
    check_three_key_heads("cuda")


@pytest.mark.emulated
@pytest.mark.usefixtures("emulated")
def test_rows_of_which_none_has_a_token_keep_their_states() -> None:
    none, one = Ints((0, 0)), path()
    windows, states = (Refs(torch.full((2, *shape), 7.0), (1, 0))
                       for shape in ((384, 3), (1, 128, 128)))
    x, heads, gate = torch.empty(0, 384), torch.empty(0, 1, 128), torch.empty(0, 1)
    one.conv_step(x, torch.ones(384, 4), windows, none, torch.empty(0, 384))
    one.delta_step(heads, heads, heads, gate, gate, states, none, torch.empty(0, 1, 128))
    assert all(bool((refs.whole == 7.0).all()) for refs in (windows, states))
