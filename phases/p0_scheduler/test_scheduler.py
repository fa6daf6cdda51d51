"""The scheduler beyond the contract: engines that break the protocol, and the counters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from engine.errors import InputError
from phases.p0_scheduler.harness import FailAfterTokens, make_request
from phases.p0_scheduler.mock_engine import EngineCall, MockEngine
from phases.p0_scheduler.protocol import Emitted, Ended, Event, Request, Row, RowError, Seat, Token
from phases.p0_scheduler.reference import serve
from phases.p0_scheduler.request_state import Settings
from phases.p0_scheduler.scheduler import Scheduler


def ends_by_request(events: Sequence[Event]) -> dict[str, Ended]:
    """Return the ends among events, by request."""
    return {event.id: event for event in events if isinstance(event, Ended)}


def tokens_of(events: Sequence[Event], id: str) -> list[int]:
    """Return a request's tokens among events."""
    return [event.emitted.token for event in events
            if isinstance(event, Token) and event.id == id]


def fail_next_call(name: str) -> Callable[[EngineCall], Exception | None]:
    """Return a `fail_call` that makes the next call of a name fail, once."""
    left = [RuntimeError("no")]
    return lambda call: left.pop() if left and call.name == name else None


def make_scheduler(engine: Any, slots: int = 3) -> Scheduler:
    """Return a scheduler with three requests in it, chunk 4."""
    scheduler = Scheduler(engine, Settings(slots=slots, queue=8, chunk=4))
    for number in range(3):
        scheduler.submit(make_request(f"r{number}", 3 + number, 4))
    return scheduler


class TamperedEngine(MockEngine):
    """A mock with a changed third answer, changed seats, or changed prompts after a reset."""

    change_answer: Callable[[list[Emitted]], list[Emitted]] = list
    change_seats: Callable[[list[Seat]], list[Seat]] = list
    change_prompt: Callable[[Request], Request] | None = None

    def decode_step(self, plan: Sequence[Row]) -> list[Emitted]:
        """Do a step; change the answer of the third."""
        answer = super().decode_step(plan)
        return self.change_answer(list(answer)) if len(self.steps()) == 3 else answer

    def start_batch(self, requests: Sequence[Request]) -> list[Seat]:
        """Start a batch and change the seats."""
        return self.change_seats(super().start_batch(requests))

    def _assign_slot(self, request: Request) -> Seat:
        if self.change_prompt is not None and any(call.name == "reset" for call in self.log):
            request = self.change_prompt(request)
        return super()._assign_slot(request)


@pytest.mark.parametrize("change", [
    lambda answer: answer[1:],
    lambda answer: [*answer, answer[0]],
    lambda answer: [*answer, Emitted(99, 1, 0.0)],
    lambda answer: [Emitted(99, 1, 0.0), *answer[1:]],
])
def test_answer_for_other_rows_is_an_engine_error_and_is_replayed(change: Any) -> None:
    engine = TamperedEngine(3)
    engine.change_answer = change
    events = make_scheduler(engine).drain()
    honest = make_scheduler(MockEngine(3)).drain()
    assert [call.name for call in engine.log].count("reset") == 1
    for id in ("r0", "r1", "r2"):
        assert tokens_of(events, id) == tokens_of(honest, id)
        assert ends_by_request(events)[id].reason == "length"


@pytest.mark.parametrize(("seats", "message"), [
    (lambda seats: seats[1:], "2 seats to 3 requests"),
    (lambda seats: [seats[0], seats[0], seats[2]], "to two requests"),
    (lambda seats: [Seat(seats[0].slot, 3), *seats[1:]], "reused 3 tokens of a prompt of 3"),
    (lambda seats: [Seat(seats[0].slot, -1), *seats[1:]], "reused -1 tokens"),
])
def test_impossible_seats_end_their_requests_with_an_error(seats: Any, message: str) -> None:
    engine = TamperedEngine(3)
    engine.change_seats = seats
    scheduler = make_scheduler(engine)
    ended = ends_by_request(scheduler.step())
    assert {end.reason for end in ended.values()} == {"error"}
    assert all(message in end.detail for end in ended.values())
    assert scheduler.counts.admitted == scheduler.counts.released
    assert sorted(engine.free_slots) == [0, 1, 2]


def test_impossible_seat_of_a_joining_request_ends_only_that_request() -> None:
    engine = MockEngine(4)
    scheduler = make_scheduler(engine, slots=4)
    events = scheduler.step()
    engine.reuse_length = lambda one: len(one.tokens) if one.id == "late" else 0
    scheduler.submit(make_request("late", 2, 2))
    events += scheduler.drain()
    assert "reused 2 tokens" in ends_by_request(events)["late"].detail
    assert [end.reason for end in ends_by_request(events).values()].count("length") == 3
    assert not engine.violations


def test_replay_that_differs_from_delivered_tokens_ends_with_an_error() -> None:
    engine = TamperedEngine(3)
    engine.change_prompt = lambda one: (replace(one, tokens=one.tokens[::-1]) if one.id == "r1"
                                        else one)
    engine.change_answer = lambda answer: answer[1:]
    scheduler = make_scheduler(engine)
    events = scheduler.drain()
    assert "token 0 is" in ends_by_request(events)["r1"].detail
    assert len(tokens_of(events, "r1")) in (1, 2)
    assert ends_by_request(events)["r0"].reason == ends_by_request(events)["r2"].reason == "length"


def test_suspects_run_alone_past_the_failure_and_then_together_again() -> None:
    engine = MockEngine(3)
    scheduler = make_scheduler(engine)
    scheduler.step()
    scheduler.step()
    engine.fail_call = fail_next_call("decode_step")
    scheduler.step()
    before = len(engine.steps())
    scheduler.drain()
    widths = [len(call.rows) for call in engine.steps()[before:]]
    assert widths == [1] * 9 + [3, 1]  # each past the third step, then all


@pytest.mark.parametrize(("named", "widths"), [(True, [2, 2]), (False, [1, 1, 1, 2, 2])])
def test_once_the_culprit_is_known_the_others_are_replayed_together(named: bool,
                                                                    widths: list[int]) -> None:
    engine = MockEngine(3)
    scheduler = make_scheduler(engine)
    scheduler.step()
    engine.fail_call = FailAfterTokens(engine, {"r1": 4}, names_row=named)
    before = len(engine.steps())
    scheduler.drain()
    assert [len(call.rows) for call in engine.steps()[before:]][:len(widths)] == widths


def test_failed_and_empty_steps_are_not_counted_and_not_logged(
        caplog: pytest.LogCaptureFixture) -> None:
    engine = MockEngine(3)
    scheduler = make_scheduler(engine)
    with caplog.at_level("INFO", "rowtwin.scheduler"):
        scheduler.step()
        engine.fail_call = fail_next_call("decode_step")
        scheduler.step()
        assert scheduler.counts.steps == 1
        scheduler.drain()
        steps = scheduler.counts.steps
        scheduler.step()
    assert scheduler.counts.steps == steps
    assert scheduler.counts.batch > 0
    messages = [record.getMessage() for record in caplog.records]
    assert messages[:2] == ["Batch m=3", "engine error with 3 live requests: RuntimeError: no"]
    assert "Batch m=0" not in messages


def test_error_naming_a_row_outside_the_step_ends_no_request() -> None:
    engine = MockEngine(3)
    scheduler = make_scheduler(engine)
    engine.fail_call = lambda call: RowError(99, "no") if call.name == "decode_step" and \
        len(call.rows) > 1 and len(engine.steps()) == 1 else None
    assert {end.reason for end in ends_by_request(scheduler.drain()).values()} == {"length"}


def test_a_dead_engine_reports_its_error_while_draining() -> None:
    engine = MockEngine(3)
    scheduler = make_scheduler(engine)
    engine.fail_call = lambda call: RuntimeError("gone") if call.name != "cleanup" and \
        call.name != "start_batch" else None
    events = scheduler.drain()
    assert all("could not be reset (RuntimeError: gone)" in end.detail
               for end in ends_by_request(events).values())
    with pytest.raises(InputError, match="shutting down"):
        scheduler.submit(make_request("late", 1, 1))
    assert engine.log[-1].name == "cleanup"


def test_stop_from_outside_is_reported_as_stop() -> None:
    scheduler = make_scheduler(MockEngine(3))
    scheduler.step()
    assert scheduler.cancel("r1", "stop")
    assert ends_by_request(scheduler.step())["r1"].reason == "stop"


def test_abort_does_not_overwrite_earlier_endings() -> None:
    scheduler = make_scheduler(MockEngine(3))
    scheduler.cancel("r1", "disconnect")
    scheduler.abort()
    reasons = {id: end.reason for id, end in ends_by_request(scheduler.step()).items()}
    assert reasons == {"r0": "cancel", "r1": "disconnect", "r2": "cancel"}
    assert scheduler.counts.ended == {"cancel": 2, "disconnect": 1}


def test_counts_follow_a_request_through() -> None:
    scheduler = make_scheduler(MockEngine(2), slots=2)
    counts = scheduler.counts
    assert (counts.waiting, counts.live, counts.batch, counts.steps) == (3, 0, 0, 0)
    scheduler.step()
    counts = scheduler.counts
    assert (counts.waiting, counts.live, counts.batch, counts.formed) == (1, 2, 2, 2)
    assert (counts.admitted, counts.released, counts.prefilled) == (2, 0, 7)
    scheduler.drain()
    counts = scheduler.counts
    assert (counts.waiting, counts.live, counts.batch, counts.formed) == (0, 0, 1, 2)
    assert (counts.admitted, counts.released, counts.prefilled) == (3, 3, 3 + 4 + 5)
    assert counts.ended == {"length": 3}
    assert counts.steps == 4 + 5


@pytest.mark.parametrize(("name", "value"), [("slots", 0), ("queue", -1), ("chunk", 0)])
def test_settings_out_of_range_are_refused(name: str, value: int) -> None:
    numbers: dict[str, Any] = {"slots": 1, "queue": 0, "chunk": 1, name: value}
    with pytest.raises(InputError, match=f"{name} is {value}"):
        Settings(**numbers)


def test_sampler_reaches_the_engine_untouched() -> None:
    engine, sampler = MockEngine(1), object()
    scheduler = Scheduler(engine, Settings(slots=1, queue=8, chunk=4))
    one = Request("a", (1, 2), 1, frozenset({3}), sampler)
    scheduler.submit(one)
    scheduler.drain()
    assert engine.tenants[0].request is one


def test_serial_reference_reports_an_engine_that_runs_dry() -> None:
    class Dry(MockEngine):
        def run_single(self, request: Request) -> Iterator[Emitted]:
            yield from islice(super().run_single(request), 2)

    assert serve(Dry(1), [make_request("a", 2, 3)])[0].reason == "error"
    assert serve(Dry(1), [make_request("a", 2, 2)])[0].reason == "length"


def test_cancel_of_an_ended_request_returns_false() -> None:
    scheduler = make_scheduler(MockEngine(3))
    assert scheduler.cancel("r0") is True
    assert scheduler.cancel("r0") is False  # it is marked, though no step has reported it yet
    scheduler.step()
    assert scheduler.cancel("r0") is False
    assert scheduler.cancel("nobody") is False


def test_first_reason_to_close_is_reported() -> None:
    scheduler = make_scheduler(MockEngine(3))
    assert scheduler.close_reason == ""
    scheduler.close("the disk is full")
    scheduler.close()
    assert scheduler.close_reason == "the disk is full"
