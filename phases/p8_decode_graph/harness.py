"""Subjects of P8's falsifiers: models, graphs and a single step from states of the engine."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from contracts.schema import Case
from engine.candidate import Engine, PathEngine, is_whole
from engine.path import Path, Rows
from engine.rope import RopeTable
from falsifiers.judging.errors import Declined
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from falsifiers.vectors import step_rows
from phases.case_setup import has_own_arithmetic
from phases.p8_decode_graph import increment, kernel_graphs


def check_one_step(case: Case, subject: Subject, judge: Judge, engine: Engine, model: Any) -> None:
    """Compare a step from states of the engine with each row by itself and with the engine."""
    right = PathEngine(increment.path(graphs=False), model)
    step = step_rows.draw_step(right, Rows, model.config.vocab, case["counts"], case["capacity"],
                               seed=case["seed"])
    step_rows.compare_with_solo(judge, engine, step)
    own, candidate = has_own_arithmetic(subject), subject.candidate
    oracle = model.with_arithmetic(candidate.arithmetic) if candidate and not own else model
    step_rows.compare_with_engine(
        judge, engine, PathEngine(increment.path(graphs=False), oracle), step,
        step_rows.OWN_STEP_BUDGET if own else None)


def halved_silu_mul(path: Path) -> Any:
    """Return an op `silu_mul` whose outputs are half of the path's."""
    def run(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor) -> None:
        path.silu_mul(gate, up, out)
        out.mul_(0.5)
    return run


def use_short_buckets() -> AbstractContextManager[Any]:
    """Use buckets of 2, 4, 8, ... tokens in this block, so that short runs outgrow one."""
    return patch.object(kernel_graphs, "reach_of",
                        lambda tokens: max(2, 1 << (tokens - 1).bit_length()))


def distinct_models(case: Case, subject: Subject) -> tuple[list[Any], list[Any]]:
    """Return models that may not share a graph, on the CPU and on the case's device.

    The last one has the weights of the first and another rotary table.
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


def require_graphs(subject: Subject) -> Subject:
    """Return the subject; decline a candidate with its own step, whose graphs are not visible."""
    if is_whole(subject.candidate):
        raise Declined("the candidate has its own step, whose graphs are not visible")
    return subject
