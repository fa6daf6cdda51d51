"""The engine thread: which events callers get, and how it ends."""

from __future__ import annotations

import threading
from queue import Empty

import pytest

from engine.errors import InputError
from phases.p0_scheduler.engine_loop import EngineLoop, RequestStream
from phases.p0_scheduler.harness import make_request
from phases.p0_scheduler.mock_engine import EngineCall, MockEngine
from phases.p0_scheduler.protocol import ClosedError, Ended, Event, QueueFullError, Token
from phases.p0_scheduler.request_state import Counts, Settings
from phases.p0_scheduler.scheduler import Scheduler

UNREACHED_LIMIT = 10**9
"""A limit that no test reaches."""


def make_engine_loop(engine: MockEngine, queue: int = 8) -> EngineLoop:
    """Return a running engine loop over an engine."""
    return EngineLoop(Scheduler(engine, Settings(slots=engine.slots, queue=queue, chunk=4)))


def read_to_end(stream: RequestStream) -> list[Event]:
    """Read a stream to its end, with a timeout."""
    events = [stream.get(10)]
    while not isinstance(events[-1], Ended):
        events.append(stream.get(10))
    return events


def test_iterating_a_stream_ends_with_its_end() -> None:
    with make_engine_loop(MockEngine(1)) as driver:
        stream = driver.submit(make_request("a", 3, 4))
        assert [type(event) for event in stream] == [Token] * 4 + [Ended]


def test_stream_ends_with_its_end() -> None:
    engine = MockEngine(2)
    with make_engine_loop(engine) as driver:
        events = read_to_end(driver.submit(make_request("a", 3, 4)))
        again = read_to_end(driver.submit(make_request("a", 3, 4)))  # after a pause, same id
    assert [event.id for event in events] == ["a"] * 5
    assert events[-1] == Ended("a", "length")
    assert events == again
    assert engine.log[-1].name == "cleanup"
    assert driver.error is None


def test_refusals_reach_the_caller_and_do_not_affect_the_first_stream() -> None:
    with make_engine_loop(MockEngine(1), queue=0) as driver:
        first = driver.submit(make_request("a", 3, UNREACHED_LIMIT))
        with pytest.raises(InputError, match="already in the scheduler"):
            driver.submit(make_request("a", 3, 4))
        with pytest.raises(QueueFullError):
            driver.submit(make_request("b", 3, 4))
        assert first.cancel("disconnect")
        end = read_to_end(first)[-1]
        assert isinstance(end, Ended)
        assert end.reason == "disconnect"
        assert not first.cancel()


def test_a_failing_sink_cancels_only_its_own_request() -> None:
    seen: list[Event] = []

    def sink(event: Event) -> None:
        seen.append(event)
        raise ConnectionError("gone")

    engine = MockEngine(2)
    with make_engine_loop(engine) as driver:
        driver.send(make_request("gone", 3, UNREACHED_LIMIT), sink)
        events = read_to_end(driver.submit(make_request("b", 3, 4)))
    assert events[-1] == Ended("b", "length")
    assert len(seen) == 1
    assert driver.scheduler.counts.ended == {"disconnect": 1, "length": 1}
    assert sorted(engine.free_slots) == [0, 1]


def test_a_dying_thread_ends_every_stream_and_refuses_new_requests() -> None:
    class Broken(Scheduler):
        def _plan_step(self) -> list[object]:  # type: ignore[override]
            raise MemoryError("no room")

    driver = EngineLoop(Broken(MockEngine(1), Settings(slots=1, queue=8, chunk=4)))
    end = driver.submit(make_request("a", 3, 4)).get(10)
    assert isinstance(end, Ended)
    assert end.reason == "error"
    assert "MemoryError: no room" in end.detail
    with pytest.raises(ClosedError, match="no room"):
        driver.submit(make_request("b", 3, 4))
    driver.close()
    assert isinstance(driver.error, MemoryError)


def test_close_serves_accepted_requests() -> None:
    driver = make_engine_loop(MockEngine(1))
    streams = [driver.submit(make_request(f"r{number}", 3, 4)) for number in range(4)]
    driver.close()
    driver.close()
    for stream in streams:
        assert read_to_end(stream)[-1] == Ended(stream.id, "length")
    with pytest.raises(ClosedError):
        driver.submit(make_request("late", 3, 4))


def test_a_closing_engine_loop_refuses_requests_while_it_serves() -> None:
    engine, inside, go_on = MockEngine(1), threading.Event(), threading.Event()

    def during(call: EngineCall) -> None:
        inside.set()
        go_on.wait(10)

    engine.on_call = during
    driver = make_engine_loop(engine)
    stream = driver.submit(make_request("a", 3, 2))
    assert inside.wait(10)
    closer = threading.Thread(target=driver.close)
    closer.start()
    closer.join(0.05)
    with pytest.raises(ClosedError):
        driver.submit(make_request("late", 3, 2))
    go_on.set()
    assert read_to_end(stream)[-1] == Ended("a", "length")
    closer.join(10)
    assert engine.log[-1].name == "cleanup"


def test_close_with_a_grace_cancels_the_remaining_requests() -> None:
    engine = MockEngine(1)
    driver = make_engine_loop(engine)
    streams = [driver.submit(make_request(f"r{number}", 3, UNREACHED_LIMIT)) for number in range(2)]
    driver.close(grace=0.01)
    for stream in streams:
        assert read_to_end(stream)[-1] == Ended(stream.id, "cancel")
    assert engine.log[-1].name == "cleanup"


def test_cancel_takes_effect_within_the_running_step() -> None:
    engine, inside, go_on = MockEngine(1), threading.Event(), threading.Event()

    def during(call: EngineCall) -> None:
        if call.name == "decode_step":
            inside.set()
            go_on.wait(10)

    engine.on_call = during
    with make_engine_loop(engine) as driver:
        stream = driver.submit(make_request("a", 3, 4))
        assert inside.wait(10)
        assert stream.cancel()
        with pytest.raises(Empty):
            stream.get(0.01)
        go_on.set()
        assert read_to_end(stream) == [Ended("a", "cancel")]
    assert len(engine.steps()) == 1


def test_observer_sees_the_counts_of_every_step() -> None:
    seen: list[Counts] = []
    scheduler = Scheduler(MockEngine(2), Settings(slots=2, queue=8, chunk=4))
    with EngineLoop(scheduler, seen.append) as driver:
        read_to_end(driver.submit(make_request("a", 3, 4)))
    assert [counts.steps for counts in seen][:4] == [1, 2, 3, 4]
    assert seen[-1].ended == {"length": 1}
