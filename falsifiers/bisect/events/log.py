"""The events of one run of a case, from several threads, in an order that repeats."""

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
    """The number of the scheduler, in the order of creation; 0 before the first."""
    step: int | None
    """The step of that scheduler, counting steps with events; 0 before the first.

    None for an event outside any scheduler.
    """
    request: str
    """`request 3` for the third that came; empty for an event of the engine."""
    slot: int | None
    what: str


@dataclass(frozen=True)
class TimedEvent:
    """An event with its sort key."""

    tick: int
    """Number of steps with events so far, over all schedulers."""
    event: Event
    caller_order: int = 0
    """The order among events of callers in that tick; 0 for events of the engine."""


ENGINE_CHANNEL = 0
"""The channel of the engine's thread; the others are HTTP requests, by number."""
Channels = dict[int, list[TimedEvent]]


@dataclass
class EventLog:
    """Events by channel; each channel has its own order."""

    events: Channels = field(default_factory=lambda: defaultdict(list))
    runs: int = 0
    tick: int = 0
    http_requests: int = 0
    """HTTP requests so far."""
    closed: bool = False
    """Whether the case failed; events of the cleanup after a failure are ignored."""
    watchers: dict[str, Any] = field(default_factory=dict)
    """The watcher of the scheduler that got a request, by the request's id."""
    _local: threading.local = field(default_factory=threading.local)

    def note(self, event: Event, channel: int = ENGINE_CHANNEL, *, tick: int | None = None,
             caller_order: int = 0) -> None:
        """Append an event, unless the log is closed."""
        if not self.closed:
            at = self.tick if tick is None else tick
            self.events[channel].append(TimedEvent(at, event, caller_order))

    def channels(self) -> Channels:
        """Return each channel in order; a caller's events come after those of the same step."""
        return {number: sorted(events, key=lambda event: (event.tick, event.caller_order))
                for number, events in self.events.items()}

    @property
    def watch(self) -> Any:
        """The watcher whose call this thread is in, or None."""
        return getattr(self._local, "watch", None)

    @property
    def is_nested(self) -> bool:
        """Whether this thread is inside a recorded call."""
        return getattr(self._local, "depth", 0) > 0

    @contextmanager
    def nested_call(self, watch: Any = None) -> Iterator[None]:
        """Mark a recorded call, so that the calls it makes itself are not recorded."""
        before, depth = self.watch, getattr(self._local, "depth", 0)
        self._local.watch, self._local.depth = watch or before, depth + 1
        try:
            yield
        finally:
            self._local.watch, self._local.depth = before, depth


class LogClosingJudge(Judge):
    """A judge that closes the log when a check fails."""

    def __init__(self, case: Case, log: EventLog) -> None:
        super().__init__(case)
        self.log = log

    def _fail(self, *args: Any, **options: Any) -> None:
        self.log.closed = True
        super()._fail(*args, **options)


def override_methods(base: type, **methods: Callable[..., Any]) -> type:
    """Return a subclass with the same name and some methods replaced."""
    return type(base.__name__, (base,), {**methods, "__module__": base.__module__})
