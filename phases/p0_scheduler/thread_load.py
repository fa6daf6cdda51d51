"""Load from real threads: clients that submit, wait, read, and sometimes disconnect."""

from __future__ import annotations

import queue
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from falsifiers.judging.errors import SuiteError
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from phases.p0_scheduler.engine_loop import EngineLoop, RequestStream
from phases.p0_scheduler.harness import Harness, make_request
from phases.p0_scheduler.mock_engine import EngineCall
from phases.p0_scheduler.protocol import Ended, Event, FromOutside, QueueFullError, Request

HANG_SECONDS = 10.0
"""Seconds without an event after which a client fails; a step takes microseconds."""


class ThreadLoad:
    """Clients on their own threads, with one engine loop over the mock."""

    def __init__(self, subject: Subject, judge: Judge, *, clients: int, slots: int,
                 seed: int) -> None:
        self.harness = Harness(subject, judge, slots=slots, queue=clients // 2)
        self.clients, self.seed = clients, seed
        self.received: dict[str, list[Event]] = {}
        self.cancelled_ids: list[str] = []
        """Requests that their client cancelled."""
        self.failures: list[str] = []
        """Errors of clients; all clients stop at the first."""
        self.refusal_count = 0
        self._lock = threading.Lock()
        self._batch_ready = threading.Event()
        self._is_first_call = True

    def serve(self) -> None:
        """Run every client, drain, and check the events they received."""
        self.harness.engine.on_call = self._on_call
        with fast_thread_switching():
            driver = self.harness.stack.driver(self.harness.scheduler)
            crowd = [threading.Thread(target=self._client, args=(driver, number), daemon=True)
                     for number in range(self.clients)]
            for thread in crowd:
                thread.start()
            for thread in crowd:
                thread.join(4 * HANG_SECONDS)
            driver.close()
        self.harness.check_equal("clients' failures", self.failures[:1], [])
        self.harness.check_equal("thread's error", driver.error, None)
        for events in self.received.values():
            self.harness.check_events(events)
        self.harness.check_equal("m_formed", self.harness.scheduler.counts.formed,
                                 self.harness.settings.slots)

    def _on_call(self, call: EngineCall) -> None:
        """Delay the engine's first call until enough requests for a full batch were submitted."""
        if self._is_first_call:
            self._is_first_call = False
            self._batch_ready.wait(HANG_SECONDS)
        time.sleep(0.0002)  # otherwise the engine ends before a client reads a token

    def _client(self, driver: EngineLoop, number: int) -> None:
        try:
            self._run_client(driver, random.Random(f"{self.seed}/{number}"), f"client{number}")
        except Exception as error:  # nothing would report an exception of this thread
            self.failures.append(f"{type(error).__name__}: {error}")

    def _run_client(self, driver: EngineLoop, draw: random.Random, name: str) -> None:
        for turn in range(5):
            one = make_request(f"{name}-{turn}", draw.randint(1, 20), draw.randint(5, 12))
            stays = turn == 0 or draw.random() < 0.7
            leaves_after = one.limit + 1 if stays else draw.randrange(one.limit)
            stream = self._submit_retrying(driver, one)
            if stream is not None:
                self._read_stream(stream, leaves_after, draw.choice(["cancel", "disconnect"]))

    def _submit_retrying(self, driver: EngineLoop, one: Request) -> RequestStream | None:
        """Submit, and retry while the queue is full and no client failed."""
        while not self.failures:
            try:
                stream: RequestStream = driver.submit(one)
            except QueueFullError:
                self.refusal_count += 1
                time.sleep(0.0005)
                continue
            with self._lock:
                self.harness.requests[one.id], self.harness.streams[one.id] = one, []
                self.received[one.id] = []
                if len(self.received) == self.harness.settings.slots:
                    self._batch_ready.set()
            return stream
        return None

    def _read_stream(self, stream: RequestStream, leaves_after: int, reason: FromOutside) -> None:
        events = self.received[stream.id]
        while not (events and isinstance(events[-1], Ended)) and not self.failures:
            if len(events) == leaves_after:
                self.cancelled_ids.append(stream.id)
                stream.cancel(reason)
            events.append(self._next_event(stream))

    def _next_event(self, stream: RequestStream) -> Event:
        patience = time.monotonic() + HANG_SECONDS
        while not self.failures and time.monotonic() < patience:
            try:
                event = stream.get(0.1)
            except queue.Empty:
                continue
            if event.id != stream.id:
                raise SuiteError(f"{stream.id} got an event of {event.id}")
            return event
        raise SuiteError(f"{stream.id} got no event for {HANG_SECONDS:.0f} s")


@contextmanager
def fast_thread_switching() -> Iterator[None]:
    """Make the interpreter switch threads often, for many interleavings in few steps."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
