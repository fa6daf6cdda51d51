"""Events of one run of a case, noted by several threads and put in an order that is no race."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from contracts.schema import Case
from falsifiers.judging.judge import Judge


@dataclass(frozen=True)
class Event:
    """One event."""

    run: int
    """Which of the case's schedulers, in the order in which they were made; 0 is before any."""
    step: int | None
    """The step of that scheduler it belongs to, of those that did something; 0 is before them.

    None for what no scheduler is asked.
    """
    request: str
    """`request 3` for the third that came; empty for an event of the engine as a whole."""
    slot: int | None
    what: str


@dataclass(frozen=True)
class TimedEvent:
    """An event and its place among others."""

    tick: int
    """How many steps of any scheduler had done something."""
    event: Event
    caller_order: int = 0
    """Where it stands among what callers did in that tick; 0 if it was the engine."""


ENGINE_CHANNEL = 0
"""The channel of the engine's thread; others are of HTTP requests, by their number."""
Channels = dict[int, list[TimedEvent]]


@dataclass
class EventLog:
    """Events by channel: each channel has an order of its own."""

    events: Channels = field(default_factory=lambda: defaultdict(list))
    runs: int = 0
    tick: int = 0
    asked: int = 0
    """HTTP requests that came."""
    closed: bool = False
    """Whether the case broke: what is cleared away behind that is nobody's doing."""
    watchers: dict[str, Any] = field(default_factory=dict)
    """Who watches the scheduler that a request was handed to, by the request's id."""
    _local: threading.local = field(default_factory=threading.local)

    def note(self, event: Event, channel: int = ENGINE_CHANNEL, *, tick: int | None = None,
             outside: int = 0) -> None:
        """Keep an event, unless the case is over."""
        if not self.closed:
            at = self.tick if tick is None else tick
            self.events[channel].append(TimedEvent(at, event, outside))

    def channels(self) -> Channels:
        """Return each channel in order: what callers do in a tick stands behind its step."""
        return {number: sorted(noted, key=lambda one: (one.tick, one.caller_order))
                for number, noted in self.events.items()}

    @property
    def watch(self) -> Any:
        """Who watches what this thread is inside of, or None."""
        return getattr(self._local, "watch", None)

    @property
    def is_nested(self) -> bool:
        """Whether this thread is inside a call that is noted."""
        return getattr(self._local, "depth", 0) > 0

    @contextmanager
    def nested_call(self, watch: Any = None) -> Iterator[None]:
        """Mark a call that is noted: those that it makes are its own business."""
        before, depth = self.watch, getattr(self._local, "depth", 0)
        self._local.watch, self._local.depth = watch or before, depth + 1
        try:
            yield
        finally:
            self._local.watch, self._local.depth = before, depth


class LogClosingJudge(Judge):
    """A judge that closes the log when a claim is broken."""

    def __init__(self, case: Case, log: EventLog) -> None:
        super().__init__(case)
        self.log = log

    def _fail(self, *args: Any, **options: Any) -> None:
        self.log.closed = True
        super()._fail(*args, **options)


def override_methods(part: type, **methods: Callable[..., Any]) -> type:
    """Return a part with some methods replaced; it is still one of its kind."""
    return type(part.__name__, (part,), {**methods, "__module__": part.__module__})
