"""The harness of the attacks: a scheduler over the mock engine, with checks of every event."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from engine.errors import InputError
from falsifiers.judging.errors import SuiteError
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from phases.p0_scheduler.mock_engine import VOCAB, EngineCall, MockEngine
from phases.p0_scheduler.protocol import Emitted, Ended, Event, Request, RowError
from phases.p0_scheduler.reference import Served
from phases.p0_scheduler.request_state import Settings

SEATING_CALLS = ("start_batch", "add_slot")
MAX_STEPS = 20_000
"""Steps after which a run counts as stuck; four times what the largest attack needs."""


def make_prompt(id: str, length: int) -> tuple[int, ...]:
    """Return a pseudo-random prompt, different for every id and length."""
    draw = random.Random(f"{id}/{length}")
    return tuple(draw.randrange(8, 50_000) for _ in range(length))


def make_request(id: str, length: int, limit: int, sampler: int = 0) -> Request:
    """Return a request with its own prompt and no stop ids."""
    return Request(id, make_prompt(id, length), limit, frozenset(), sampler)


class Harness:
    """One scheduler over one mock engine; stores and checks its events."""

    def __init__(self, subject: Subject, judge: Judge, *, slots: int, queue: int = 64,
                 chunk: int = 8, context: int | None = None, seed: int = 0,
                 eos: frozenset[int] = frozenset()) -> None:
        self.stack, self.judge, self.eos = subject.stack, judge, eos
        self.settings = Settings(slots=slots, queue=queue, chunk=chunk, context=context, eos=eos)
        self.engine = MockEngine(slots, seed=seed)
        self.scheduler = self.stack.scheduler(self.engine, self.settings)
        self._scheduler_step, self._step_count = self.scheduler.step, 0
        self.scheduler.step = self._step_bounded  # ends endless loops
        self.requests: dict[str, Request] = {}
        self.streams: dict[str, list[Emitted]] = {}
        self.ended: dict[str, Ended] = {}
        self.ended_at: dict[str, int] = {}
        self.submitted_at: dict[str, int] = {}
        self.cancelled_at: dict[str, int] = {}
        """By cancelled request, the step from which only its end event is allowed."""

    @property
    def clock(self) -> int:
        """The number of the next step."""
        return self.engine.clock

    def submit(self, *requests: Request) -> None:
        """Submit requests that must be accepted."""
        for one in requests:
            self.scheduler.submit(one)
            self.requests[one.id] = one
            self.streams[one.id] = []
            self.submitted_at[one.id] = self.clock

    def cancel(self, id: str, reason: str = "cancel") -> bool:
        """Cancel a request; if accepted, it must get no further token."""
        accepted = bool(self.scheduler.cancel(id, reason))
        if accepted:  # a step's tokens are delivered before its slots are released
            self.cancelled_at[id] = self.clock + (self.engine.current_call == "recycle_slot")
        return accepted

    def step(self, times: int = 1) -> None:
        """Step and check every event."""
        for _ in range(times):
            self.check_events(self.scheduler.step())
            self.engine.clock += 1

    def expect_refusal(self, bad: Request | tuple[str, int, int], error: type[InputError],
                       words: str) -> None:
        """Expect a request, or the (id, length, limit) of one, to be refused with `words`."""
        try:
            self.scheduler.submit(bad if isinstance(bad, Request) else make_request(*bad))
        except InputError as refusal:
            self.check_equal("refusal", type(refusal), error)
            self.law(words in str(refusal), f"a refusal is {str(refusal)!r}, without {words!r}")
        else:
            self.law(False, f"request {bad} was accepted")

    def run_until_idle(self) -> None:
        """Step until every accepted request has ended."""
        while not self.scheduler.idle:
            self.step()

    def waiting(self) -> list[str]:
        """Return the accepted requests that have not ended."""
        return [id for id in self.requests if id not in self.ended]

    def law(self, holds: bool, sentence: str, **where: int | str) -> None:
        """Report a broken law to the judge unless `holds`."""
        self.judge.law(holds, sentence, rung="law", **where)

    def check_equal(self, name: str, got: object, want: object, **where: int | str) -> None:
        """Compare a value with the expected one."""
        place = ", ".join(f"{key} {value}" for key, value in where.items())
        at = f"{name}[{place}]" if place else name
        self.law(got == want, f"{at}={got}, but should be {want}", **where)

    def check_events(self, events: Sequence[Event]) -> None:
        """Check the order of events in their streams, and store them."""
        for event in events:
            self._check_event(event)

    def _step_bounded(self) -> list[Event]:
        self._step_count += 1
        if self._step_count > MAX_STEPS:
            self.law(False, f"the scheduler is stuck: {self.waiting()} have not ended after "
                     f"{MAX_STEPS} steps")
        events: list[Event] = self._scheduler_step()
        return events

    def _check_event(self, event: Event) -> None:
        id = event.id
        self.law(id in self.requests, f"an event of unknown request {id!r}")
        self.law(id not in self.ended, f"request {id!r} got {event} after its end", request=id)
        if isinstance(event, Ended):
            self.ended[id], self.ended_at[id] = event, self.clock
            return
        self.law(id not in self.cancelled_at or self.clock < self.cancelled_at[id],
                 f"request {id!r} got a token after its cancel", request=id)
        self.check_equal("token index", event.index, len(self.streams[id]), request=id)
        self.streams[id].append(event.emitted)

    # The laws.

    def check_accounting(self) -> None:
        """Check an idle run's counters: every slot is free, each admission was released once."""
        wrong = self.engine.violations
        self.law(not wrong, f"the engine was misused: {', '.join(wrong[:1])}")
        self.check_equal("requests without an end", self.waiting(), [])
        self.check_equal("free slots", sorted(self.engine.free_slots),
                         list(range(self.settings.slots)))
        for tenant in self.engine.tenants:
            self.check_equal("releases", tenant.released, 1, request=tenant.request.id,
                             slot=tenant.slot)
        counts = self.scheduler.counts
        self.check_equal("counted as live or waiting", (counts.live, counts.waiting), (0, 0))
        self.check_equal("counted admissions", counts.admitted, len(self.engine.tenants))
        self.check_equal("counted releases", counts.released, len(self.engine.tenants))
        self.check_equal("counted endings", sum(counts.ended.values()), len(self.requests))
        self.check_equal("counted rows", counts.formed,
                         max((len(call.rows) for call in self.engine.steps()), default=0))

    def check_all(self, but: Sequence[str] = ()) -> dict[str, Served]:
        """Check an idle run's counters and streams; requests in `but` may have ended early."""
        self.check_accounting()
        return self.check_streams_equal_solo(but)

    def serve_solo(self) -> dict[str, Served]:
        """Serve every accepted request by itself, one after another."""
        served = self.stack.serial(MockEngine(1), list(self.requests.values()), self.eos)
        return {one.request.id: one for one in served}

    def check_streams_equal_solo(self, but: Sequence[str] = ()) -> dict[str, Served]:
        """Compare every stream and ending with the request run alone; `but` may end early."""
        solo = self.serve_solo()
        for id, served in solo.items():
            got, want = without_slots(self.streams[id]), without_slots(served.emitted)
            if id in but:
                want = want[:len(got)]
            else:
                self.check_equal("tokens emitted", len(got), len(want), request=id)
                self.check_equal("reason", self.ended[id].reason, served.reason, request=id)
            for index, (a, b) in enumerate(zip(got, want, strict=True)):
                self.check_equal("token, log-probs", a, b, request=id, index=index)
        return solo

    def seated_at(self, id: str) -> int:
        """Return the step in which a request was first given a slot."""
        return next(call.clock for call in self.engine.calls_naming(id)
                    if call.name in SEATING_CALLS)


def without_slots(emitted: Sequence[Emitted]) -> list[tuple[object, ...]]:
    """Return tokens with log-probs but without the slot, which may differ."""
    return [(one.token, one.logprob, one.top) for one in emitted]


def with_stop_at(one: Request, at: int) -> Request:
    """Return the request with two stop ids: one it never emits, and its token at index `at`."""
    run = MockEngine(1).run_single(one)
    tokens = [next(run).token for _ in range(at + 1)]
    if tokens.index(tokens[at]) != at:
        raise SuiteError(f"request {one.id!r} repeats a token before index {at}")
    return replace(one, stop_ids=frozenset({VOCAB, tokens[at]}))


@dataclass
class FailAfterTokens:
    """A `fail_call` for the mock: a step fails if it feeds a request more than its limit."""

    engine: MockEngine
    token_limits: dict[str, int]
    """By request; a negative number makes its `add_slot` fail instead."""
    names_row: bool = False
    """Whether the error names the row."""

    def __call__(self, call: EngineCall) -> Exception | None:
        """Return the error that the call raises, or None."""
        for id, row in itertools.zip_longest(call.ids, call.rows):
            most = self.token_limits.get(id)
            if most is None:
                continue
            if call.name in SEATING_CALLS and most < 0:
                return RuntimeError(f"{id} has a bad sampler")
            if call.name == "decode_step" and self.engine.owners[row.slot].fed + row.count > most:
                message = f"{id} has no finite logits"
                return RowError(row.slot, message) if self.names_row else RuntimeError(message)
        return None


@contextmanager
def capture_batch_log() -> Iterator[list[str]]:
    """Collect the messages of the logger `rowtwin.scheduler` at level INFO and above."""
    lines: list[str] = []
    logger = logging.getLogger("rowtwin.scheduler")
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
