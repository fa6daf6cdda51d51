"""Blocks an engine thread between steps, so that tests choose which requests share a step."""

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

WAIT_SECONDS = 6.0
"""Seconds to wait for an expected event before a test fails."""


class StepBarrier:
    """Allows an engine thread a number of steps, and counts submits and cancels."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._inner = scheduler.step, scheduler.submit, scheduler.cancel
        self._close = scheduler.close
        self._condition = threading.Condition()
        self._steps_left: int | None = None  # steps that may begin; None for any number
        self._busy = False
        self.accepted, self.cancelled = 0, 0
        scheduler.step = self._step  # type: ignore[method-assign]
        scheduler.submit = self._submit  # type: ignore[method-assign]
        scheduler.cancel = self._cancel  # type: ignore[method-assign]
        scheduler.close = self._close_and_notify  # type: ignore[method-assign]

    def hold(self) -> None:
        """Block further steps and wait for the running one."""
        with self._condition:
            self._steps_left = 0
            self.accepted = self.cancelled = 0
            self._condition.wait_for(lambda: not self._busy, WAIT_SECONDS)

    def allow_steps(self, steps: int) -> bool:
        """Allow a number of steps; return False if they do not run."""
        with self._condition:
            self._steps_left = steps
            self._condition.notify_all()
            return self._condition.wait_for(lambda: not self._steps_left and not self._busy,
                                            WAIT_SECONDS)

    def release(self) -> None:
        """Allow any number of steps."""
        with self._condition:
            self._steps_left = None
            self._condition.notify_all()

    def wait_for(self, holds: Callable[[], bool]) -> bool:
        """Wait for a condition; it is evaluated after every step, submit and cancel."""
        with self._condition:
            return self._condition.wait_for(holds, WAIT_SECONDS)

    def _step(self) -> list[Event]:
        with self._condition:
            self._condition.wait_for(lambda: self._steps_left is None or self._steps_left > 0)
            self._busy = True
            self._steps_left = None if self._steps_left is None else self._steps_left - 1
        try:
            return self._inner[0]()
        finally:
            with self._condition:
                self._busy = False
                self._condition.notify_all()

    def _submit(self, request: Request) -> None:
        self._inner[1](request)
        with self._condition:
            self.accepted += 1
            self._condition.notify_all()

    def _cancel(self, id: str, reason: FromOutside = "cancel") -> bool:
        cancelled = self._inner[2](id, reason)
        with self._condition:
            self.cancelled += cancelled
            self._condition.notify_all()
        return cancelled

    def _close_and_notify(self, why: str = "the server is shutting down") -> None:
        self._close(why)
        with self._condition:
            self._condition.notify_all()


class WatchedStep:
    """A path's step that records its row counts, can be paused, and can fail."""

    def __init__(self, inner: Step) -> None:
        self._inner = inner
        self.widths: list[int] = []
        self.entered, self.resume = threading.Event(), threading.Event()
        self.resume.set()
        self.fail_step: Callable[[Sequence[int]], bool] = lambda tokens: False
        """Called with each row's tokens; may raise, or return True to make its logits NaN."""

    def __call__(self, path: Any, model: Any, pool: Any, tokens: Sequence[int], rows: Rows,
                 sink: Any) -> Tensor:
        """Run the step; wait inside it until `resume` is set."""
        self.entered.set()
        self.resume.wait()
        is_nan = [self.fail_step(row_tokens) for _, _, row_tokens in rows.spans(tokens)]
        self.widths.append(len(rows.slots))
        logits = self._inner(path, model, pool, tokens, rows, sink)
        logits[torch.tensor(is_nan)] = torch.nan
        return logits


@contextmanager
def capture_batch_log() -> Iterator[list[str]]:
    """Collect the messages of the logger `rowtwin.scheduler` at level INFO and above."""
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
