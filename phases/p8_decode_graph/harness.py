"""What P8's cases are judged on: engines, models and a single step from states of the engine."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from contracts.schema import Case
from engine.candidate import Engine, PathEngine, engine_of, is_whole
from engine.path import Path, Rows
from engine.rope import RopeTable
from falsifiers.judging.errors import Declined
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from falsifiers.vectors import step_rows
from phases.p8_decode_graph import increment, kernel_graphs


def check_one_step(case: Case, subject: Subject, judge: Judge, engine: Engine, model: Any) -> None:
    """Hold a step from states of the engine to its rows alone, and to the engine."""
    right = PathEngine(increment.path(graphs=False), model)
    step = step_rows.draw_step(right, Rows, model.config.vocab, case["counts"], case["capacity"],
                           seed=case["seed"])
    step_rows.compare_with_solo(judge, engine, step)
    candidate = subject.candidate
    own = candidate is not None and not candidate.bitwise
    oracle = model.with_arithmetic(candidate.arithmetic) if candidate and not own else model
    step_rows.compare_with_engine(
        judge,
        engine,
        PathEngine(increment.path(graphs=False), oracle),
        step,
        step_rows.OWN_STEP_BUDGET if own else None,
    )


def halved_silu_mul(path: Path) -> Any:
    """Return an op `silu_mul` whose outputs are not the path's."""
    def run(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor) -> None:
        path.silu_mul(gate, up, out)
        out.mul_(0.5)
    return run


def use_short_buckets() -> AbstractContextManager[Any]:
    """Let graphs have room for 2, 4, 8, ... tokens, so that short runs outgrow a bucket."""
    return patch.object(kernel_graphs, "reach_of",
                        lambda tokens: max(2, 1 << (tokens - 1).bit_length()))


def distinct_models(case: Case, subject: Subject) -> tuple[list[Any], list[Any]]:
    """Return models that may not share a graph, on the CPU and on the case's device.

    The last one has the weights of the first, turned by another table.
    """
    single = [subject.models(name) for name in case["models"]]
    if case["ordered"]:
        single.append(single[0].with_arithmetic("ordered"))
    models = [m.to(subject.device) if subject.device != "cpu" else m for m in single]
    for some in (single, models):
        first = some[0]
        table = RopeTable(first.config.rope_dim, first.config.rope_base * 4, first.device)
        some.append(replace(first, rope=table))
    return single, models


def rng_state(subject: Subject) -> torch.Tensor:
    """Return the state of the random generator of the case's device."""
    return torch.cuda.get_rng_state() if subject.device == "cuda" else torch.get_rng_state()


def load_model(case: Case, subject: Subject) -> Any:
    """Return a case's model on the case's device."""
    model = subject.models(case["model"])
    return model.to(subject.device) if subject.device != "cpu" else model


def load_cpu_model(case: Case, subject: Subject) -> Any:
    """Return a case's model on the CPU, where its oracle runs."""
    return subject.models(case["model"])


def require_graphs(subject: Subject) -> Subject:
    """Return the subject, whose step is the tree's, so that its graphs can be seen."""
    if is_whole(subject.candidate):
        raise Declined("the graphs of a foreign step cannot be seen")
    return subject


def build_engine(case: Case, subject: Subject) -> tuple[Engine, Any]:
    """Return the engine that a case judges, and its model, both on the case's device."""
    model = load_model(case, subject)
    candidate = subject.candidate if is_whole(subject.candidate) else None
    return engine_of(subject.path, candidate, model), model
