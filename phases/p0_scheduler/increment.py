"""P0's increment: the serving stack's scheduler, its driver thread and its serial peer.

It also names what a successor needs of this phase, which imports nothing else of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from phases.p0_scheduler import reference
from phases.p0_scheduler.engine_loop import EngineLoop
from phases.p0_scheduler.protocol import (
    BatchEngine,
    ClosedError,
    Emitted,
    Ended,
    Ending,
    Event,
    FromOutside,
    QueueFullError,
    Request,
    Row,
    RowError,
    Seat,
    Token,
)
from phases.p0_scheduler.reference import Served
from phases.p0_scheduler.request_state import Counts, RequestState, Settings
from phases.p0_scheduler.scheduler import Scheduler

__all__ = [
    "BatchEngine",
    "ClosedError",
    "Counts",
    "Emitted",
    "Ended",
    "Ending",
    "EngineLoop",
    "Event",
    "FromOutside",
    "QueueFullError",
    "Request",
    "RequestState",
    "Row",
    "RowError",
    "Scheduler",
    "Seat",
    "Served",
    "Settings",
    "Stack",
    "Token",
    "stack",
]


@dataclass(frozen=True)
class Stack:
    """The parts of a serving stack; a later phase replaces some and adds its own."""

    scheduler: type[Scheduler]
    """Called with an engine and `Settings`."""
    driver: type[EngineLoop]
    """Called with a scheduler; starts its thread."""
    serial: Callable[..., list[Served]]
    """Serves requests one after another: `serial(engine, requests, eos)`."""


def stack() -> Stack:
    """Return the stack of this phase."""
    return Stack(scheduler=Scheduler, driver=EngineLoop, serial=reference.serve)
