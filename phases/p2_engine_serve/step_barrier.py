"""Holding an engine's thread still, so that what meets in a step is decided and not a race."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from engine.path import Rows, Step
from phases.p0_scheduler.increment import Event, FromOutside, Request, Scheduler

PATIENCE = 6.0
"""Seconds without what must come, after which it counts as never coming."""


class Gate:
    """Lets an engine's thread step as often as it is told, and counts what came meanwhile."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._inner = scheduler.step, scheduler.submit, scheduler.cancel
        self._close = scheduler.close
        self._changed = threading.Condition()
        self._left: int | None = None  # steps that may begin; None for any number
        self._busy = False
        self.accepted, self.cancelled = 0, 0
        scheduler.step = self._step  # type: ignore[method-assign]
        scheduler.submit = self._submit  # type: ignore[method-assign]
        scheduler.cancel = self._cancel  # type: ignore[method-assign]
        scheduler.close = self._closed  # type: ignore[method-assign]

    def hold(self) -> None:
        """Let no step begin; when this returns, none is running."""
        with self._changed:
            self._left = 0
            self.accepted = self.cancelled = 0
            self._changed.wait_for(lambda: not self._busy, PATIENCE)

    def let(self, steps: int) -> bool:
        """Let so many steps be done; False when they are not."""
        with self._changed:
            self._left = steps
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._left and not self._busy, PATIENCE)

    def release(self) -> None:
        """Let steps begin freely."""
        with self._changed:
            self._left = None
            self._changed.notify_all()

    def wait_for(self, holds: Callable[[], bool]) -> bool:
        """Wait until something holds that a step, an acceptance or a cancel brings about."""
        with self._changed:
            return self._changed.wait_for(holds, PATIENCE)

    def _step(self) -> list[Event]:
        with self._changed:
            self._changed.wait_for(lambda: self._left is None or self._left > 0)
            self._busy = True
            self._left = None if self._left is None else self._left - 1
        try:
            return self._inner[0]()
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _submit(self, request: Request) -> None:
        self._inner[1](request)
        with self._changed:
            self.accepted += 1
            self._changed.notify_all()

    def _cancel(self, id: str, reason: FromOutside = "cancel") -> bool:
        taken = self._inner[2](id, reason)
        with self._changed:
            self.cancelled += taken
            self._changed.notify_all()
        return taken

    def _closed(self, why: str = "the server is shutting down") -> None:
        self._close(why)
        with self._changed:
            self._changed.notify_all()


class Steps:
    """A path's step, watched from inside: how many rows each had, and trouble when wanted."""

    def __init__(self, inner: Step) -> None:
        self._inner = inner
        self.widths: list[int] = []
        self.inside, self.resume = threading.Event(), threading.Event()
        self.resume.set()
        self.trouble: Callable[[Sequence[int]], bool] = lambda tokens: False
        """Called with each row's tokens; may raise, or say that its logits come out as NaN."""

    def __call__(self, path: Any, model: Any, pool: Any, tokens: Sequence[int], rows: Rows,
                 sink: Any) -> Tensor:
        """Run the step; wait inside it while `resume` is not set."""
        self.inside.set()
        self.resume.wait()
        spoiled = [self.trouble(own) for _, _, own in rows.spans(tokens)]
        self.widths.append(len(rows.slots))
        logits = self._inner(path, model, pool, tokens, rows, sink)
        logits[torch.tensor(spoiled)] = torch.nan
        return logits


@contextmanager
def logged() -> Iterator[list[str]]:
    """Collect what the logger `rowtwin.scheduler` says at level INFO and above."""
    lines: list[str] = []
    logger = logging.getLogger("rowtwin.scheduler")
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
