"""P8's cases for programs in other languages: repeated decode steps of the same widths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from torch import Tensor

from contracts.schema import Case
from engine.candidate import PathEngine
from engine.path import Rows
from engine.testmodels import load
from engine.weights import EXACT
from falsifiers.vectors.calls import Call
from falsifiers.vectors.step_rows import OWN_STEP_BUDGET
from falsifiers.vectors.steps import StepOps, answer_step
from phases.p8_decode_graph import increment


class ReplayedSteps(StepOps):
    """Steps that one process must answer, so that a step can replay the graph of another."""

    no_program_reason: ClassVar[str] = (
        "a program started for each call replays no graph, and files cannot show a replay"
    )


ARITHMETIC = EXACT
"""The engine's arithmetic."""
OFFER, OWN_BUDGET = ReplayedSteps, OWN_STEP_BUDGET


def cases() -> Iterator[Case]:
    """Yield cases of one decode step, two of each width that differ in slots and lengths."""
    for seed in (0, 1):
        for m in (3, 1, 2, 4):
            yield Case(phase="p8", falsifier="graph_equals_single", tier="cpu", quick=True,
                       must_claim=True, name=f"vectors-step-m{m}-seed{seed}",
                       given={"model": "nano", "counts": [1] * m, "capacity": 16, "seed": seed})


def answer_call(call: Call) -> dict[str, Tensor]:
    """Return what the engine computes for a call, without a graph."""
    model = load(call.facts["model"].rpartition("-")[0])  # what follows is a digest
    return answer_step(PathEngine(increment.path(graphs=False), model), Rows, call)
