"""What P4's cases are judged on: engines, rows alone, and what a candidate must bring to a case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from contracts.schema import Case
from engine.candidate import Engine, PathEngine, engine_of, is_whole
from engine.op_table import on_tier
from engine.path import Path, Rows
from engine.weights import EXACT
from falsifiers.judging.batch_driver import SoloStream, make_prompt, run_solo
from falsifiers.judging.errors import Declined
from falsifiers.judging.subject import Subject
from falsifiers.vectors import step_rows
from phases.p4_batched_matmul import increment

CAPACITY = 96


def select_kernel(case: Case, op: Callable[..., None]) -> Callable[..., None]:
    """Return what an op runs on a device, under the interpreter too; a candidate's op is its own.

    On the CPU it is the op as it is.
    """
    return on_tier(op, "interpret") if case.tier == "interpret" else op


def build_engine(case: Case, subject: Subject) -> tuple[Engine, Any]:
    """Return the engine that a case judges, and its model, both on the case's device."""
    model = subject.models(case["model"])
    if subject.device != "cpu":
        model = model.to(subject.device)
    candidate = subject.candidate if is_whole(subject.candidate) else None
    return engine_of(subject.path, candidate, model), model


def draw_step(case: Case, model: Any) -> step_rows.BatchedStep:
    """Return a step from states that no answer has a part in."""
    return step_rows.draw_step(PathEngine(increment.path(), model), Rows, model.config.vocab,
                           case["counts"], case["capacity"], case.given.get("tenant"))


def require_tree_step(subject: Subject) -> Path:
    """Return the path when its step is the tree's, so that its ops can be seen."""
    if is_whole(subject.candidate):
        raise Declined("the ops of a foreign step cannot be traced")
    path: Path = subject.path
    return path


def require_op(op: str, subject: Subject) -> None:
    """Decline an op that a foreign step comes without."""
    if is_whole(subject.candidate) and subject.candidate.op(op) is None:
        raise Declined(f"the candidate's step is its own and it offers no {op}, so the tree's "
                       f"would be judged")


def expected_arithmetic(subject: Subject) -> str:
    """Return the arithmetic that products must equal in bits."""
    candidate = subject.candidate
    return candidate.arithmetic if candidate is not None and candidate.bitwise else EXACT


def require_bitwise(subject: Subject) -> None:
    """Decline a comparison with the engine for a candidate of its own arithmetic."""
    if subject.candidate is not None and not subject.candidate.bitwise:
        raise Declined("own arithmetic: the candidate is compared with itself, not with the engine")


def solo_stream(engine: Engine, model: Any, seed: int, length: int, decode: int,
         capacity: int = CAPACITY) -> SoloStream:
    """Return what a drawn prompt and its greedy tokens get alone."""
    return run_solo(engine, Rows, make_prompt(seed, length, model.config.vocab), decode, capacity,
                 right=increment.path())
