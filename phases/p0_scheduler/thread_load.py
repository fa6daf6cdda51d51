"""Load from real threads: clients that submit, wait, read, and sometimes leave."""

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
from phases.p0_scheduler.engine_loop import Driver, Stream
from phases.p0_scheduler.harness import Run, request
from phases.p0_scheduler.mock_engine import Call
from phases.p0_scheduler.protocol import Ended, Event, FromOutside, QueueFullError, Request

HANG = 10.0
"""Seconds without an event after which a client counts as forgotten; a step takes microseconds."""


class Load:
    """Clients on threads of their own against one driver over the mock."""

    def __init__(self, subject: Subject, judge: Judge, *, clients: int, slots: int,
                 seed: int) -> None:
        self.run = Run(subject, judge, slots=slots, queue=clients // 2)
        self.clients, self.seed = clients, seed
        self.heard: dict[str, list[Event]] = {}
        self.cut: list[str] = []
        """Requests whose client left, or asked for them to be ended."""
        self.failures: list[str] = []
        """What went wrong for some client; all of them stop at the first."""
        self.refused = 0
        self._lock = threading.Lock()
        self._enough = threading.Event()
        self._first = True

    def serve(self) -> None:
        """Let every client come and go, drain, and hold what they heard to the laws."""
        self.run.engine.during = self._during
        with quick_switches():
            driver = self.run.stack.driver(self.run.scheduler)
            crowd = [threading.Thread(target=self._client, args=(driver, number), daemon=True)
                     for number in range(self.clients)]
            for thread in crowd:
                thread.start()
            for thread in crowd:
                thread.join(4 * HANG)
            driver.close()
        self.run.same("clients' failures", self.failures[:1], [])
        self.run.same("thread's error", driver.error, None)
        for events in self.heard.values():
            self.run.hear(events)
        self.run.same("m_formed", self.run.scheduler.counts.formed, self.run.settings.slots)

    def _during(self, call: Call) -> None:
        """Hold the engine's first call until enough clients are in for a full batch."""
        if self._first:
            self._first = False
            self._enough.wait(HANG)
        time.sleep(0.0002)  # or the engine is done before a client has read a token

    def _client(self, driver: Driver, number: int) -> None:
        try:
            self._visits(driver, random.Random(f"{self.seed}/{number}"), f"client{number}")
        except Exception as error:  # a thread has nobody above it to tell
            self.failures.append(f"{type(error).__name__}: {error}")

    def _visits(self, driver: Driver, draw: random.Random, name: str) -> None:
        for turn in range(5):
            one = request(f"{name}-{turn}", draw.randint(1, 20), draw.randint(5, 12))
            stays = turn == 0 or draw.random() < 0.7
            leaves_after = one.limit + 1 if stays else draw.randrange(one.limit)
            stream = self._submit(driver, one)
            if stream is not None:
                self._read(stream, leaves_after, draw.choice(["cancel", "disconnect"]))

    def _submit(self, driver: Driver, one: Request) -> Stream | None:
        """Submit, again and again while the queue is full and nothing is wrong."""
        while not self.failures:
            try:
                stream: Stream = driver.submit(one)
            except QueueFullError:
                self.refused += 1
                time.sleep(0.0005)
                continue
            with self._lock:
                self.run.requests[one.id], self.run.streams[one.id] = one, []
                self.heard[one.id] = []
                if len(self.heard) == self.run.settings.slots:
                    self._enough.set()
            return stream
        return None

    def _read(self, stream: Stream, leaves_after: int, reason: FromOutside) -> None:
        events = self.heard[stream.id]
        while not (events and isinstance(events[-1], Ended)) and not self.failures:
            if len(events) == leaves_after:
                self.cut.append(stream.id)
                stream.cancel(reason)
            events.append(self._next(stream))

    def _next(self, stream: Stream) -> Event:
        patience = time.monotonic() + HANG
        while not self.failures and time.monotonic() < patience:
            try:
                event = stream.get(0.1)
            except queue.Empty:
                continue
            if event.id != stream.id:
                raise SuiteError(f"{stream.id} heard an event of {event.id}")
            return event
        raise SuiteError(f"{stream.id} has heard nothing for {HANG:.0f} s")


@contextmanager
def quick_switches() -> Iterator[None]:
    """Let the interpreter change threads often, so that few steps meet many interleavings."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
