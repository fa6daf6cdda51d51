"""One engine thread over a scheduler, and a stream of events for each caller.

Callers never wait for a step: `submit` and `cancel` only take the scheduler's short lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import Self

from phases.p0_scheduler.protocol import Ended, Event, FromOutside, Request
from phases.p0_scheduler.request_state import Counts
from phases.p0_scheduler.scheduler import Scheduler

log = logging.getLogger("rowtwin.scheduler")
EventSink = Callable[[Event], None]


class RequestStream:
    """The events of one request in order, `Ended` last; read by one thread."""

    def __init__(self, id: str, driver: EngineLoop) -> None:
        self.id = id
        self._engine_loop = driver
        self._queue: SimpleQueue[Event] = SimpleQueue()

    def put(self, event: Event) -> None:
        """Append an event; called on the engine thread."""
        self._queue.put(event)

    def get(self, timeout: float | None = None) -> Event:
        """Return the next event; raise `queue.Empty` after `timeout` seconds without one."""
        return self._queue.get(timeout=timeout)

    def cancel(self, reason: FromOutside = "cancel") -> bool:
        """End the request from outside; return False if it had already ended."""
        return self._engine_loop.cancel(self.id, reason)

    def __iter__(self) -> Iterator[Event]:
        while True:
            event = self.get()
            yield event
            if isinstance(event, Ended):
                return


class EngineLoop:
    """Steps a scheduler on its own thread while there is work."""

    def __init__(self, scheduler: Scheduler,
                 observe: Callable[[Counts], None] | None = None) -> None:
        """Start the thread; `observe` gets the counts after every step, on that thread."""
        self.scheduler = scheduler
        self.error: BaseException | None = None
        self._on_step = observe
        self._sinks_lock = threading.Lock()  # guards _sinks; never locked during a step
        self._sinks: dict[str, EventSink] = {}
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run_loop, name="rowtwin-engine", daemon=True)
        self._thread.start()

    def send(self, request: Request, deliver: EventSink) -> None:
        """Accept a request or raise like `Scheduler.submit`; the engine thread calls `deliver`."""
        with self._sinks_lock:  # its first event must find the sink
            self.scheduler.submit(request)
            self._sinks[request.id] = deliver
        self._wake.set()

    def submit(self, request: Request) -> RequestStream:
        """Accept a request and return its stream, or raise like `Scheduler.submit`."""
        stream = RequestStream(request.id, self)
        self.send(request, stream.put)
        return stream

    def cancel(self, id: str, reason: FromOutside = "cancel") -> bool:
        """End a request from outside within one step; return False if it had already ended."""
        return self.scheduler.cancel(id, reason)

    def close(self, grace: float | None = None) -> None:
        """Serve the accepted requests for at most `grace` seconds, cancel the rest, clean up."""
        self.scheduler.close()
        self._closing = True
        self._wake.set()
        self._thread.join(grace)
        if self._thread.is_alive():
            self.scheduler.abort()
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run_loop(self) -> None:
        try:
            while not (self._closing and self.scheduler.idle):
                self._step_once()
            self._dispatch(self.scheduler.drain())
        except BaseException as error:  # no caller may wait for ever
            log.exception("the engine thread died")
            self._fail_all(error)

    def _step_once(self) -> None:
        if self.scheduler.idle:
            self._wake.wait()
            self._wake.clear()
        events = self.scheduler.step()
        if self._on_step is not None:  # before delivery, so that a delivered end is counted
            self._on_step(self.scheduler.counts)
        self._dispatch(events)

    def _dispatch(self, events: Iterable[Event]) -> None:
        for event in events:
            with self._sinks_lock:
                deliver = (self._sinks.pop if isinstance(event, Ended) else self._sinks.get)(
                    event.id, None)
            if deliver is not None:
                self._deliver_event(deliver, event)

    def _deliver_event(self, deliver: EventSink, event: Event) -> None:
        """Deliver an event; if the sink raises, cancel its request as a disconnect."""
        try:
            deliver(event)
        except Exception:
            log.exception("request %r: its sink failed", event.id)
            with self._sinks_lock:
                self._sinks.pop(event.id, None)
            self.cancel(event.id, "disconnect")

    def _fail_all(self, error: BaseException) -> None:
        self.error = error
        why = f"the engine thread died ({type(error).__name__}: {error})"
        self.scheduler.close(why)
        with self._sinks_lock:
            sinks, self._sinks = self._sinks, {}
        for id, deliver in sinks.items():
            self._deliver_event(deliver, Ended(id, "error", detail=why))
