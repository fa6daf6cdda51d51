"""Record the calls of a scheduler to its engine, and the events it returns to callers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from falsifiers.bisect.events.log import Event, EventLog

CANCELLED = "is cancelled"


@dataclass(frozen=True)
class Delivery:
    """When an event was delivered to a caller."""

    step: int
    slot: int | None
    tick: int
    ended: bool


def record_scheduler(log: EventLog, make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a factory of schedulers whose events are recorded."""
    def build(engine: Any, settings: Any) -> Any:
        log.runs += 1
        return SchedulerWatcher(log, log.runs).build_scheduler(make, engine, settings)

    return build


class SchedulerWatcher:
    """Stands between a scheduler and its engine, and records the calls of both."""

    def __init__(self, log: EventLog, run: int) -> None:
        self.log, self.run, self.step = log, run, 0
        self.engine: Any = None
        self.names: dict[str, str] = {}
        self.deliveries: dict[str, list[Delivery]] = {}
        self._request_count = 0
        self._owner: dict[int, str] = {}
        self._last_slot: dict[str, int] = {}
        self._seating: Sequence[Any] = ()
        self._step_pending = False  # inside a step that has no event so far

    def build_scheduler(self, make: Callable[..., Any], engine: Any, settings: Any) -> Any:
        """Return a new scheduler over this engine, with recorded methods."""
        self.engine = engine
        scheduler = make(self, settings)
        step, submit, cancel = scheduler.step, scheduler.submit, scheduler.cancel

        def recorded_submit(request: Any) -> Any:
            now, before = self._now(), self.names.get(request.id)
            self._request_count += 1
            name = self.names[request.id] = f"request {self._request_count}"
            self.log.watchers[request.id] = self
            try:
                result = submit(request)
            except Exception as error:
                self._note_caller(now, name, f"is refused by {type(error).__name__}")
                if before is not None:  # the id is in use by an earlier request
                    self.names[request.id] = before
                raise
            self._note_caller(now, name, f"is accepted{format_terms(request)}")
            self._note_caller(now, name, f"is drawn by {request.sampler}")
            return result

        def recorded_cancel(id: str, *args: Any, **options: Any) -> Any:
            now = self._now()
            result = cancel(id, *args, **options)
            if result:  # a late cancel changes nothing
                self._note_caller(now, self._name(id), CANCELLED)
            return result

        def recorded_step() -> Any:
            self._step_pending = True
            try:
                with self.log.nested_call(self):
                    events = step()
            except Exception as error:
                self.note("", None, f"raises {type(error).__name__} from a step")
                raise
            for event in events:
                self._note_delivery(event)
            self._step_pending = False
            return events

        scheduler.step, scheduler.submit, scheduler.cancel = (
            recorded_step, recorded_submit, recorded_cancel)
        return scheduler

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def start_batch(self, requests: Sequence[Any]) -> Any:
        """Record the slot of each request."""
        return self._note_seats(requests, self.engine.start_batch, requests)

    def add_slot(self, request: Any) -> Any:
        """Record the slot of the request."""
        return self._note_seats([request], self.engine.add_slot, request)

    def decode_step(self, plan: Sequence[Any]) -> Any:
        """Record the rows of a step and the tokens it emits."""
        rows = tuple(plan)
        for row in rows:
            self.note(self.owner_of(row.slot), row.slot, f"is fed {row.count}")
        with self.log.nested_call(self):
            answer = self.engine.decode_step(rows)
        emitted = [answer[i] for i in range(len(answer))]
        for token in sorted(emitted, key=lambda token: token.slot):
            self.note(self.owner_of(token.slot), token.slot, f"is given {format_token(token)}")
        return answer

    def recycle_slot(self, slot: int) -> None:
        """Record that a slot is freed."""
        self.note(self.owner_of(slot), slot, "gives its slot back")
        with self.log.nested_call(self):
            self.engine.recycle_slot(slot)

    def reset(self) -> None:
        """Record that every slot is freed."""
        with self.log.nested_call(self):
            self.engine.reset()
        self.note("", None, f"is reset{format_taken_slots(self.engine)}")

    def cleanup(self) -> None:
        """Record the end of the engine, and the device of its pool."""
        with self.log.nested_call(self):
            self.engine.cleanup()
        pool = getattr(self.engine, "pool", None)
        self.note("", None, "is cleaned up" + (f", its pool on {pool.device}" if pool else ""))

    def note(self, request: str, slot: int | None, what: str) -> None:
        """Record an event of the engine's thread; the first event of a step counts the step."""
        if self._step_pending:
            self._step_pending = False
            self.step += 1
            self.log.tick += 1
        self.log.note(Event(self.run, self.step, request, slot, what))

    def owner_of(self, slot: int, tokens: Sequence[int] = ()) -> str:
        """Return the request in a slot; while seating, the one with these tokens."""
        for request in self._seating if tokens else ():
            if tuple(request.tokens) == tuple(tokens):
                self._owner[slot] = self._name(request.id)
        return self._owner.get(slot, "nobody")

    def _note_seats(self, requests: Sequence[Any], call: Callable[..., Any], argument: Any) -> Any:
        self._seating = requests
        try:
            with self.log.nested_call(self):
                seats = call(argument)
        except Exception as error:
            names = [self._name(request.id) for request in requests]
            self.note(", ".join(names), None, f"is not seated for {type(error).__name__}"
                                              f"{format_taken_slots(self.engine)}")
            raise
        finally:
            self._seating = ()
        all_seats = seats if argument is requests else [seats]
        for request, seat in zip(requests, all_seats, strict=False):
            name = self._name(request.id)
            self._owner[seat.slot], self._last_slot[name] = name, seat.slot
            self.note(name, seat.slot, f"is seated with {seat.reused} tokens reused")
        return seats

    def _note_delivery(self, event: Any) -> None:
        name, reason = self._name(event.id), getattr(event, "reason", None)
        what = f"ends by {reason}, {event.reused} tokens reused" if reason is not None else \
            f"gets token {event.index}: {event.emitted.token}"
        slot = self._last_slot.get(name)
        self.note(name, slot, what)
        if not self.log.closed:
            self.deliveries.setdefault(event.id, []).append(
                Delivery(self.step, slot, self.log.tick, reason is not None))

    def _name(self, id: str) -> str:
        return self.names.get(id, "unknown request 0")

    def _now(self) -> tuple[int, int]:
        """Return the step and tick at the start of a caller's call.

        The engine's thread may run more steps before the call returns.
        """
        return self.step, self.log.tick

    def _note_caller(self, now: tuple[int, int], request: str, what: str) -> None:
        order = 1
        if what == CANCELLED:  # cancels at the same time arrive in any order: sort by request
            order += int(request.rpartition(" ")[2])
        self.log.note(Event(self.run, now[0], request, None, what), tick=now[1], caller_order=order)


def format_terms(request: Any) -> str:
    """Return a request's options, with its prompt as a digest."""
    text = ",".join(map(str, request.tokens))
    return (f" with {len(request.tokens)} tokens ({hashlib.sha256(text.encode()).hexdigest()[:8]}),"
            f" {request.limit} to come, ending at {sorted(request.stop_ids)}")


def format_token(emitted: Any) -> str:
    """Return a token with its log-probability and the likeliest tokens."""
    top = "".join(f", {token} {value:.9g}" for token, value in emitted.top)
    return f"{emitted.token} at {emitted.logprob:.9g}" + (f" (likeliest{top[1:]})" if top else "")


def format_taken_slots(engine: Any) -> str:
    """Return how many slots of an engine are taken, if it exposes them."""
    tenants = getattr(engine, "tenants", None)
    return "" if tenants is None else f", {len(tenants)} slots taken"
