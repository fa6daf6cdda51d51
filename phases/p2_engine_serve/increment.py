"""P2's increment: the scheduler gets an engine of the model's own, and its peer the oracle."""

from __future__ import annotations

from dataclasses import dataclass

from phases.p0_scheduler import increment as before
from phases.p2_engine_serve import reference
from phases.p2_engine_serve.hybrid import HybridEngine, Limits, NoPrefixes, Prefixes
from phases.p2_engine_serve.sampling import Sampling

__all__ = ["HybridEngine", "Limits", "NoPrefixes", "Prefixes", "Sampling", "Stack", "stack"]


@dataclass(frozen=True)
class Stack(before.Stack):
    """P0's parts, the serial peer over the oracle, and the engine."""

    engine: type[HybridEngine]
    """Called with a model, a path and `Limits`."""


def stack() -> Stack:
    """Return the stack of this phase."""
    parts = before.stack()
    return Stack(scheduler=parts.scheduler, driver=parts.driver, serial=reference.serve,
                 engine=HybridEngine)
