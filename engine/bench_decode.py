"""Benchmarks of the reference engine: tokens a second of one sequence, and loading a file."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine import testmodels
from engine.model import Model

MODELS = ("nano", "tiny")
TOKENS = 32


@pytest.mark.parametrize("name", MODELS)
def test_decode_of_one_sequence(name: str, benchmark: Any) -> None:
    torch.set_num_threads(1)
    model = testmodels.load(name)

    def decode() -> None:
        state = model.new_state(TOKENS)
        for position in range(TOKENS):
            model.forward_single(position, state, position)

    benchmark.pedantic(decode, rounds=7, warmup_rounds=1)
    benchmark.extra_info["tokens_per_second"] = round(TOKENS / benchmark.stats.stats.median, 1)


@pytest.mark.parametrize("name", MODELS)
def test_load(name: str, benchmark: Any) -> None:
    path = testmodels.model_path(name)
    benchmark.pedantic(lambda: Model.load(path), rounds=5, warmup_rounds=1)
