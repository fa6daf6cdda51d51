"""Find the first wrong event of a serving stack: its request, slot and step.

The stack under test and the reference stack run the same case. The events of the engine's thread
and of each HTTP request are compared in order; the earliest that differs is the place.
"""

from __future__ import annotations

import logging
import secrets
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from random import Random
from typing import Any
from unittest.mock import patch

from contracts.schema import Case
from falsifiers.bisect.events import http, parts, scheduler
from falsifiers.bisect.events.log import (
    ENGINE_CHANNEL,
    Event,
    EventLog,
    LogClosingJudge,
    TimedEvent,
)
from falsifiers.bisect.events.scheduler import CANCELLED
from falsifiers.judging.errors import SuiteError
from falsifiers.judging.matrix import Bank
from falsifiers.judging.subject import Subject
from falsifiers.judging.verdict import first_line

RECORDERS: dict[str, Callable[[EventLog, Any], Any]] = {
    "scheduler": scheduler.record_scheduler,
    "engine": parts.record_engine,
    "store": parts.record_store,
    "reuse": parts.record_reuse,
    "template": parts.record_template,
    "reply": http.record_reply,
    "api": http.record_api,
}
"""By component of a stack: a function that returns a recorded version of it."""
LOGGERS = ("rowtwin.scheduler", "rowtwin.prefixes")
Falsifier = Callable[..., None]


@dataclass(frozen=True)
class EventDivergence:
    """Where two runs of one case differ."""

    compared: int
    """Equal events before it, of the engine or of that HTTP request."""
    got: Event | None
    """None when the run has no more events."""
    want: Event | None
    """None when no more events are expected."""
    missing: bool
    """Whether `got` is expected too, but only after `want`, which is missing."""

    @property
    def place(self) -> Event:
        """The first wrong event, or the one that is missing."""
        place = self.want if self.missing or self.got is None else self.got
        assert place is not None
        return place

    def to_dict(self) -> dict[str, Any]:
        """Return the divergence as a JSON object."""
        return {"place": asdict(self.place), **asdict(self)}

    def describe(self) -> str:
        """Return the divergence as one line."""
        at, got, want = self.place, _describe_event(self.got), _describe_event(self.want)
        slot = "" if at.slot is None else f", slot {at.slot}"
        when = f"event {self.compared + 1}" if at.step is None else f"step {at.step}"
        run = f" of scheduler {at.run}" if at.run > 1 and at.step is not None else ""
        events = f"missing: {want}; got {got}" if self.missing or self.got is None else \
            f"{got}; expected {want}"
        return f"{at.request or 'the engine'}{slot}, {when}{run}: {events}"


def _describe_event(event: Event | None) -> str:
    if event is None:
        return "nothing more"
    return f"{event.request or 'the engine'} {event.what}" + \
        ("" if event.slot is None else f" in slot {event.slot}") + \
        ("" if event.step is None else f" at step {event.step}")


def record_events(
    case: Case, falsifier: Falsifier, subject: Subject
) -> tuple[EventLog, Exception | None]:
    """Run a case and return its events, and the exception that ended it, if any.

    Random default seeds are the same in every run.
    """
    log = EventLog()
    recorded = {name: record(log, getattr(subject.stack, name))
                for name, record in RECORDERS.items() if hasattr(subject.stack, name)}
    stack = replace(subject.stack, **recorded)
    try:
        with warnings.catch_warnings(), record_logs(log), \
                patch.object(secrets, "randbits", Random(1).getrandbits):
            warnings.simplefilter("ignore")
            falsifier(case=case, subject=replace(subject, stack=stack),
                      judge=LogClosingJudge(case, log))
    except Exception as error:
        return log, error
    finally:
        log.closed = True
    return log, None


@contextmanager
def record_logs(log: EventLog) -> Iterator[None]:
    """Record the messages of the stack's loggers."""
    handler = logging.Handler()
    handler.emit = lambda record: parts.note_event(  # type: ignore[method-assign]
        log, None, f"logs {record.getMessage()!r}")
    loggers = [logging.getLogger(name) for name in LOGGERS]  # a case may turn propagation off
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)


class ReferenceRun:
    """The events of the reference stack on a case, and which of them repeat in a second run."""

    def __init__(self, case: Case, falsifier: Falsifier, subject: Subject) -> None:
        """Run the case twice; raise `SuiteError` when its events cannot be compared with."""
        self.case, self.falsifier = case, falsifier
        (log, error), (second, _) = (record_events(case, falsifier, subject) for _ in range(2))
        if error is not None:
            raise SuiteError(f"{case.id} does not pass with the reference stack: "
                             f"{first_line(error)}")
        self.expected, again = log.channels(), second.channels()
        if not self.expected:
            raise SuiteError(f"{case.id} calls no stack, so it has no events to compare")
        first_keys, second_keys = ([_location_key(event) for event in run.get(ENGINE_CHANNEL, [])]
                                   for run in (self.expected, again))
        if first_keys != second_keys or self.expected.keys() != again.keys():
            raise SuiteError(f"{case.id} does not give the same events twice, so its first wrong "
                             f"event cannot be found")
        self.repeats = {number: _repeated_events(events, again[number])
                        for number, events in self.expected.items()}

    def find_divergence(self, wrong: Subject) -> EventDivergence | None:
        """Return where a stack's events first differ from the reference's, or None.

        Raises `SuiteError` when the case fails although all events agree.
        """
        log, error = record_events(self.case, self.falsifier, wrong)
        got = log.channels()
        found = [timed for number in {**self.expected, **got} if (
            timed := self._channel_divergence(number, got.get(number, []), log, error is not None))]
        if found:
            return min(found, key=lambda timed: timed[0])[1]
        if error is not None:
            raise SuiteError(f"{self.case.id} fails, but every event before the failure equals the "
                             f"reference's, so the fault shows in no event: {first_line(error)}")
        return None

    def _channel_divergence(
            self, number: int, events: Sequence[TimedEvent], log: EventLog, failed: bool
    ) -> tuple[tuple[int, int, int], EventDivergence] | None:
        """Return the sort key and the place of a channel's first difference, or None."""
        expected, repeats = self.expected.get(number, []), self.repeats.get(number, [])
        for at, (got, want) in enumerate(zip_longest(events, expected)):
            if at >= len(repeats) and want is not None:
                return None  # the reference itself does not repeat from here on
            if got is None:
                assert want is not None
                if failed and not (events and _was_expected(want, log)):
                    return None
                return _sort_key(want, number), EventDivergence(at, None, want.event, missing=True)
            if want is None:
                return _sort_key(got, number), EventDivergence(at, got.event, None, missing=False)
            if _location_key(got) == _location_key(want) and (
                    got.event == want.event or not repeats[at]):
                continue
            # a caller whose event never comes cancels in the end
            gave_up = got.event.what == CANCELLED and want.caller_order > 0 \
                and want.event.run == got.event.run
            later = [event.event for event in expected[at:] if event.event.step == got.event.step]
            missing = gave_up or got.event in later or want.tick < got.tick
            return _sort_key(want if missing else got, number), \
                EventDivergence(at, got.event, want.event, missing=missing)
        return None


def _sort_key(event: TimedEvent, number: int) -> tuple[int, int, int]:
    """Return the order of divergences; the engine's channel comes before HTTP requests."""
    return event.tick, event.caller_order, number


def _location_key(timed: TimedEvent) -> tuple[object, ...]:
    event = timed.event
    return event.run, event.step, event.request, event.slot


def _repeated_events(events: Sequence[TimedEvent], again: Sequence[TimedEvent]) -> list[bool]:
    """Return for each event whether it repeats, up to the first whose place differs."""
    repeats = []
    for first, second in zip(events, again, strict=False):
        if _location_key(first) != _location_key(second):
            break
        repeats.append(first.event == second.event)
    return repeats


def _was_expected(missing: TimedEvent, log: EventLog) -> bool:
    """Return whether earlier events of a failed case imply the missing one.

    A request that is sent is accepted, a client that leaves is cancelled, an ended request is
    answered.
    """
    request = missing.event.run, missing.event.request
    earlier = [timed.event.what for timed in log.events[ENGINE_CHANNEL]
               if (timed.event.run, timed.event.request) == request]
    if not earlier:
        return missing.event.what == "is accepted"
    return missing.event.what == CANCELLED or any(what.startswith("ends by") for what in earlier)


def relevant_cases(bank: Bank, mutant: str | None) -> Iterator[Case]:
    """Yield the quick cases of the falsifiers that kill a mutant, or all for a candidate."""
    names: Iterable[str] = bank.falsifiers if mutant is None else bank.mutant(mutant).killers
    for name in names:
        yield from (case for case in bank.contract.expand()
                    if case.falsifier == name and case.quick and case.tier == "cpu")


def find_wrong_case(cases: Iterable[Case], bank: Bank, subject_of: Callable[[Case], Subject],
                    mutant: str | None) -> tuple[Case, EventDivergence] | None:
    """Return the first case in which a candidate or mutant differs from the reference stack.

    Raises `SuiteError` when none differs and at least one could not be compared.
    """
    agreed, problem = 0, ""
    for case in cases:
        right, subject = bank.subject_for(case), subject_of(case)
        if (subject.candidate is None) == (mutant is None):
            raise SuiteError("a serving stack is compared with the reference stack: give "
                             "--candidate or --mutant")
        wrong = subject if mutant is None else bank.mutant(mutant).build(subject)
        try:
            reference = ReferenceRun(case, bank.falsifiers[case.falsifier], right)
            found = reference.find_divergence(wrong)
        except SuiteError as error:
            problem = str(error)
            continue
        if found is not None:
            return case, found
        agreed += 1
    if problem:
        raise SuiteError(f"{f'{agreed} cases agree in every event, but ' if agreed else ''}"
                         f"{problem}")
    return None
