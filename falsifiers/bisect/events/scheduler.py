"""What a scheduler asks of its engine and tells its callers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from falsifiers.bisect.events.log import Event, EventLog

CANCELLED = "is cancelled"


@dataclass(frozen=True)
class Delivery:
    """When a caller was told something."""

    step: int
    slot: int | None
    tick: int
    ended: bool


def record_scheduler(log: EventLog, make: Callable[..., Any]) -> Callable[..., Any]:
    """Return what makes a scheduler whose events are noted."""
    def made(engine: Any, settings: Any) -> Any:
        log.runs += 1
        return SchedulerWatcher(log, log.runs).build_scheduler(make, engine, settings)

    return made


class SchedulerWatcher:
    """An engine's seven methods and a scheduler's steps, noted as they happen."""

    def __init__(self, log: EventLog, run: int) -> None:
        self.log, self.run, self.step = log, run, 0
        self.engine: Any = None
        self.names: dict[str, str] = {}
        self.deliveries: dict[str, list[Delivery]] = {}
        self._request_count = 0
        self._owner: dict[int, str] = {}
        self._last_slot: dict[str, int] = {}
        self._seating: Sequence[Any] = ()
        self._step_pending = False  # a step, in which nothing was noted so far

    def build_scheduler(self, make: Callable[..., Any], engine: Any, settings: Any) -> Any:
        """Make the scheduler, over this engine."""
        self.engine = engine
        scheduler = make(self, settings)
        step, submit, cancel = scheduler.step, scheduler.submit, scheduler.cancel

        def submitted(request: Any) -> Any:
            now, before = self._now(), self.names.get(request.id)
            self._request_count += 1
            name = self.names[request.id] = f"request {self._request_count}"
            self.log.watchers[request.id] = self
            try:
                taken = submit(request)
            except Exception as error:
                self._note_caller(now, name, f"is refused by {type(error).__name__}")
                if before is not None:  # its name is still that of who is served
                    self.names[request.id] = before
                raise
            self._note_caller(now, name, f"is accepted{format_terms(request)}")
            self._note_caller(now, name, f"is drawn by {request.sampler}")
            return taken

        def cancelled(id: str, *args: Any, **options: Any) -> Any:
            now = self._now()
            taken = cancel(id, *args, **options)
            if taken:  # one that comes too late changes nothing
                self._note_caller(now, self._name(id), CANCELLED)
            return taken

        def counted() -> Any:
            self._step_pending = True
            try:
                with self.log.nested_call(self):
                    events = step()
            except Exception as error:
                self.note("", None, f"lets {type(error).__name__} out of a step")
                raise
            for event in events:
                self._note_delivery(event)
            self._step_pending = False
            return events

        scheduler.step, scheduler.submit, scheduler.cancel = counted, submitted, cancelled
        return scheduler

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def start_batch(self, requests: Sequence[Any]) -> Any:
        """Note who is seated where."""
        return self._note_seats(requests, self.engine.start_batch, requests)

    def add_slot(self, request: Any) -> Any:
        """Note who is seated where."""
        return self._note_seats([request], self.engine.add_slot, request)

    def decode_step(self, plan: Sequence[Any]) -> Any:
        """Note what is fed, and the tokens that come, without reading an answer in flight."""
        rows = tuple(plan)
        for row in rows:
            self.note(self.owner_of(row.slot), row.slot, f"is fed {row.count}")
        with self.log.nested_call(self):
            answer = self.engine.decode_step(rows)
        emitted = [answer[i] for i in range(len(answer))]
        for one in sorted(emitted, key=lambda one: one.slot):
            self.note(self.owner_of(one.slot), one.slot, f"is given {format_token(one)}")
        return answer

    def recycle_slot(self, slot: int) -> None:
        """Note that a slot is freed."""
        self.note(self.owner_of(slot), slot, "gives its slot back")
        with self.log.nested_call(self):
            self.engine.recycle_slot(slot)

    def reset(self) -> None:
        """Note that every slot is freed."""
        with self.log.nested_call(self):
            self.engine.reset()
        self.note("", None, f"is reset{format_taken_slots(self.engine)}")

    def cleanup(self) -> None:
        """Note the end, and where the state is then."""
        with self.log.nested_call(self):
            self.engine.cleanup()
        pool = getattr(self.engine, "pool", None)
        self.note("", None, "is cleaned up" + (f", its pool on {pool.device}" if pool else ""))

    def note(self, request: str, slot: int | None, what: str) -> None:
        """Note an event of the engine's thread; the first of a step is what makes it count."""
        if self._step_pending:
            self._step_pending = False
            self.step += 1
            self.log.tick += 1
        self.log.note(Event(self.run, self.step, request, slot, what))

    def owner_of(self, slot: int, tokens: Sequence[int] = ()) -> str:
        """Return whose slot it is; it is that of who is being seated with these tokens."""
        for request in self._seating if tokens else ():
            if tuple(request.tokens) == tuple(tokens):
                self._owner[slot] = self._name(request.id)
        return self._owner.get(slot, "nobody")

    def _note_seats(self, requests: Sequence[Any], call: Callable[..., Any], given: Any) -> Any:
        self._seating = requests
        try:
            with self.log.nested_call(self):
                seats = call(given)
        except Exception as error:
            names = [self._name(one.id) for one in requests]
            self.note(", ".join(names), None, f"is not seated for {type(error).__name__}"
                                              f"{format_taken_slots(self.engine)}")
            raise
        finally:
            self._seating = ()
        for request, seat in zip(requests, seats if given is requests else [seats], strict=False):
            name = self._name(request.id)
            self._owner[seat.slot], self._last_slot[name] = name, seat.slot
            self.note(name, seat.slot, f"is seated with {seat.reused} tokens reused")
        return seats

    def _note_delivery(self, event: Any) -> None:
        name, reason = self._name(event.id), getattr(event, "reason", None)
        what = f"ends by {reason}, {event.reused} tokens reused" if reason is not None else \
            f"hears token {event.index}: {event.emitted.token}"
        slot = self._last_slot.get(name)
        self.note(name, slot, what)
        if not self.log.closed:
            self.deliveries.setdefault(event.id, []).append(
                Delivery(self.step, slot, self.log.tick, reason is not None))

    def _name(self, id: str) -> str:
        return self.names.get(id, "unknown request 0")

    def _now(self) -> tuple[int, int]:
        """Return the step and the tick in which a caller begins a call.

        Before its call returns, the engine's thread may be steps further.
        """
        return self.step, self.log.tick

    def _note_caller(self, now: tuple[int, int], request: str, what: str) -> None:
        """Note what a caller did."""
        order = 1
        if what == CANCELLED:  # of several who leave at once any may be noticed first
            order += int(request.rpartition(" ")[2])
        self.log.note(Event(self.run, now[0], request, None, what), tick=now[1], outside=order)


def format_terms(request: Any) -> str:
    """Return what a request asks for, its prompt as a digest."""
    text = ",".join(map(str, request.tokens))
    return (f" with {len(request.tokens)} tokens ({hashlib.sha256(text.encode()).hexdigest()[:8]}),"
            f" {request.limit} to come, ending at {sorted(request.stop_ids)}")


def format_token(one: Any) -> str:
    """Return a token with its log-probability and the likeliest ones."""
    top = "".join(f", {token} {value:.9g}" for token, value in one.top)
    return f"{one.token} at {one.logprob:.9g}" + (f" (likeliest{top[1:]})" if top else "")


def format_taken_slots(engine: Any) -> str:
    """Return how many slots an engine has given away, if it tells."""
    tenants = getattr(engine, "tenants", None)
    return "" if tenants is None else f", {len(tenants)} slots taken"
