"""A solo stream is cached for the repository's path, and run again for any other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from engine import testmodels
from engine.candidate import PathEngine
from engine.path import Path, Rows
from falsifiers.judging.batch_driver import SoloStream, run_solo
from phases.p1_looped_step.increment import path


def run(over: Path, **changes: Any) -> SoloStream:
    """Run a prompt of two tokens on a path over `nano` with changed fields."""
    engine = PathEngine(over, replace(testmodels.load("nano"), **changes))
    return run_solo(engine, Rows, [1, 2], 1, 8, right=path())


def test_right_path_runs_a_stream_once() -> None:
    assert run(path()) is run(path())
    engine = PathEngine(path(), testmodels.load("nano"))
    assert run_solo(engine, Rows, [1, 2], 1, 8) is not run(path())
    assert run_solo(engine, Rows, [1, 3], 1, 8, right=path()) is not run(path())


def test_changed_path_or_model_never_gets_a_cached_stream() -> None:
    cached = run(path())

    def shifted(*args: Any) -> torch.Tensor:
        return path().step_rows(*args) + 1

    wrong = run(replace(path(), step_rows=shifted))
    assert torch.equal(wrong.logits[0], cached.logits[0] + 1)
    assert wrong is not run(replace(path(), step_rows=shifted))
    other = testmodels.load("nano").ops
    narrow = run(path(), kv="f16")
    assert narrow is not cached
    assert run(path(), ops=replace(other, name="changed")) is not cached
