"""The first wrong event of a serving stack: request, slot and step, against the tree's own stack.

Both run the same case. The events of the engine's thread and the answers to each HTTP request are
compared in order, and the earliest that differs is the place.
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
"""By part of a stack: what makes one whose events are noted."""
LOGGERS = ("rowtwin.scheduler", "rowtwin.prefixes")
Falsifier = Callable[..., None]


@dataclass(frozen=True)
class EventDivergence:
    """Where two runs of one case part."""

    compared: int
    """Events that agree before it, of the engine or of that HTTP request."""
    got: Event | None
    """None when nothing more came."""
    want: Event | None
    """None when nothing more was due."""
    missing: bool
    """Whether what happened was due all the same, only not before an event that is left out."""

    @property
    def place(self) -> Event:
        """The first wrong event, or the one that is missing."""
        place = self.want if self.missing or self.got is None else self.got
        assert place is not None
        return place

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON would have it."""
        return {"place": asdict(self.place), **asdict(self)}

    def describe(self) -> str:
        """Return it in words."""
        at, got, want = self.place, _describe_event(self.got), _describe_event(self.want)
        slot = "" if at.slot is None else f", slot {at.slot}"
        when = f"event {self.compared + 1}" if at.step is None else f"step {at.step}"
        run = f" of scheduler {at.run}" if at.run > 1 and at.step is not None else ""
        told = f"it should: {want}; instead {got}" if self.missing or self.got is None else \
            f"{got}; due was {want}"
        return f"{at.request or 'the engine'}{slot}, {when}{run}: {told}"


def _describe_event(event: Event | None) -> str:
    if event is None:
        return "nothing more"
    return f"{event.request or 'the engine'} {event.what}" + \
        ("" if event.slot is None else f" in slot {event.slot}") + \
        ("" if event.step is None else f" at step {event.step}")


def record_events(
    case: Case, falsifier: Falsifier, subject: Subject
) -> tuple[EventLog, Exception | None]:
    """Run a case and return its events, and what it broke with if it did.

    Seeds that nobody asked for are the same ones in every run.
    """
    log = EventLog()
    own = {name: watch(log, getattr(subject.stack, name)) for name, watch in RECORDERS.items()
           if hasattr(subject.stack, name)}
    try:
        with warnings.catch_warnings(), record_logs(log), \
                patch.object(secrets, "randbits", Random(1).getrandbits):
            warnings.simplefilter("ignore")
            falsifier(case=case, subject=replace(subject, stack=replace(subject.stack, **own)),
                      judge=LogClosingJudge(case, log))
    except Exception as error:
        return log, error
    finally:
        log.closed = True
    return log, None


@contextmanager
def record_logs(log: EventLog) -> Iterator[None]:
    """Note what the stack writes to its loggers."""
    handler = logging.Handler()
    handler.emit = lambda record: parts.note_event(  # type: ignore[method-assign]
        log, None, f"logs {record.getMessage()!r}")
    loggers = [logging.getLogger(name) for name in LOGGERS]  # a case may cut them off from a root
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
    """What the tree's own stack does on a case, and which of it it does the same way twice."""

    def __init__(self, case: Case, falsifier: Falsifier, subject: Subject) -> None:
        """Run the case twice; raise `SuiteError` when that gives nothing to compare with."""
        self.case, self.falsifier = case, falsifier
        (log, broke), (other, _) = (record_events(case, falsifier, subject) for _ in range(2))
        if broke is not None:
            raise SuiteError(f"{case.id} does not pass with the tree's own stack: "
                             f"{first_line(broke)}")
        self.expected, again = log.channels(), other.channels()
        if not self.expected:
            raise SuiteError(f"{case.id} asks nothing of a stack, so it has no events to compare")
        if [_location_key(one) for one in self.expected.get(ENGINE_CHANNEL, [])] != [
            _location_key(one) for one in again.get(ENGINE_CHANNEL, [])
        ] or self.expected.keys() != again.keys():
            raise SuiteError(f"{case.id} does not give the same events twice, so the first wrong "
                             f"one cannot be told")
        self.repeats = {
            number: _repeated_events(due, again[number]) for number, due in self.expected.items()
        }

    def find_divergence(self, wrong: Subject) -> EventDivergence | None:
        """Return where a wrong stack's events part from the right one's, or None.

        Raises `SuiteError` when the case breaks over something that is no event.
        """
        log, broke = record_events(self.case, self.falsifier, wrong)
        got = log.channels()
        found = [one for number in {**self.expected, **got}
                 if (one := self._channel_divergence(number, got.get(number, []), log, broke))]
        if found:
            return min(found, key=lambda one: one[0])[1]
        if broke is not None:
            raise SuiteError(f"{self.case.id} breaks, though every event up to there is the tree's "
                             f"own, so the fault is not in one: {first_line(broke)}")
        return None

    def _channel_divergence(self, number: int, got: Sequence[TimedEvent], log: EventLog,
                 broke: Exception | None) -> tuple[tuple[int, int, int], EventDivergence] | None:
        """Return where one channel parts and when, if it does."""
        due, same = self.expected.get(number, []), self.repeats.get(number, [])
        for at, (mine, theirs) in enumerate(zip_longest(got, due)):
            if at >= len(same) and theirs is not None:
                return None  # from here on it is never twice the same
            if (
                mine is not None
                and theirs is not None
                and _location_key(mine) == _location_key(theirs)
                and (mine.event == theirs.event or not same[at])
            ):
                continue
            if mine is None:
                assert theirs is not None
                if broke is not None and not (got and _was_expected(theirs, log)):
                    return None
                return _sort_key(theirs, number), EventDivergence(
                    at, None, theirs.event, missing=True
                )
            later = [one.event for one in due[at:] if one.event.step == mine.event.step]
            vain = (
                mine.event.what == CANCELLED
                and theirs is not None
                and theirs.caller_order > 0
                and theirs.event.run == mine.event.run
            )  # who waits in vain leaves in the end
            missing = theirs is not None and (
                vain or mine.event in later or theirs.tick < mine.tick)
            return _sort_key(theirs if theirs is not None and missing else mine, number), \
                EventDivergence(at, mine.event, theirs.event if theirs else None, missing=missing)
        return None


def _sort_key(one: TimedEvent, number: int) -> tuple[int, int, int]:
    """Return when an event is; who is answered at the door tells more than who was let in."""
    return one.tick, one.caller_order, number


def _location_key(one: TimedEvent) -> tuple[object, ...]:
    event = one.event
    return event.run, event.step, event.request, event.slot


def _repeated_events(due: Sequence[TimedEvent], again: Sequence[TimedEvent]) -> list[bool]:
    """Return of each event whether it is the same twice, up to where even its place is not."""
    same = []
    for one, other in zip(due, again, strict=False):
        if _location_key(one) != _location_key(other):
            break
        same.append(one.event == other.event)
    return same


def _was_expected(due: TimedEvent, log: EventLog) -> bool:
    """Return whether what did not come before a case broke was due by what had come before.

    A request that was asked for is let in, one whose client left ends, one that ended is answered.
    """
    who = due.event.run, due.event.request
    known = [one.event.what for one in log.events[ENGINE_CHANNEL]
             if (one.event.run, one.event.request) == who]
    if not known:
        return due.event.what == "is accepted"
    return due.event.what == CANCELLED or any(what.startswith("ends by") for what in known)


def first_wrong_event(case: Case, falsifier: Falsifier, right: Subject,
                wrong: Subject) -> EventDivergence | None:
    """Return where a wrong stack's events part from the right one's on a case, or None.

    Raises `SuiteError` when it cannot be told.
    """
    return ReferenceRun(case, falsifier, right).find_divergence(wrong)


def relevant_cases(bank: Bank, mutant: str | None) -> Iterator[Case]:
    """Yield the quick cases that may show a candidate's fault, or a mutant's."""
    names: Iterable[str] = bank.falsifiers if mutant is None else bank.mutant(mutant).killers
    for name in names:
        yield from (case for case in bank.contract.expand()
                    if case.falsifier == name and case.quick and case.tier == "cpu")


def find_wrong_case(cases: Iterable[Case], bank: Bank, subject_of: Callable[[Case], Subject],
                     mutant: str | None) -> tuple[Case, EventDivergence] | None:
    """Return the first case in which a candidate, or a mutant, parts from the tree's own stack.

    Raises `SuiteError` when none does and one of them cannot be told.
    """
    agreed, unable = 0, ""
    for case in cases:
        right, subject = bank.subject_for(case), subject_of(case)
        if (subject.candidate is None) == (mutant is None):
            raise SuiteError("a serving stack is held to the tree's own, event by event: give "
                             "--candidate or --mutant")
        wrong = subject if mutant is None else bank.mutant(mutant).build(subject)
        try:
            found = first_wrong_event(case, bank.falsifiers[case.falsifier], right, wrong)
        except SuiteError as error:
            unable = str(error)
            continue
        if found is not None:
            return case, found
        agreed += 1
    if unable:
        raise SuiteError(f"{f'{agreed} of the cases agree event by event, but ' * (agreed > 0)}"
                         f"{unable}")
    return None
