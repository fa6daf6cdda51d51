"""The first wrong event of a serving stack: request, slot and step, against the tree's own stack.

Both run the same case. What a scheduler asks of its engine and tells its callers is noted in
order, and the first event that differs is the place.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from typing import Any

from contracts.schema import Case
from falsifiers.errors import SuiteError
from falsifiers.judge import Judge
from falsifiers.mutants import Bank, named
from falsifiers.recording import first_line
from falsifiers.subject import Subject


@dataclass(frozen=True)
class Happened:
    """One event."""

    run: int
    """Which of the case's schedulers, in the order in which they were made."""
    step: int
    """The scheduler's step that it belongs to; 0 is before the first."""
    request: str
    """`request 3` for the third that came; empty for an event of the engine as a whole."""
    slot: int | None
    what: str


@dataclass(frozen=True)
class Parting:
    """Where two runs of one case part."""

    compared: int
    got: Happened
    want: Happened | None
    """None when nothing more was due."""
    missing: bool
    """Whether what happened was due all the same, only not before an event that is left out."""

    @property
    def place(self) -> Happened:
        """The first wrong event, or the one that is missing."""
        return self.want if self.missing and self.want else self.got

    def told(self) -> dict[str, Any]:
        """Return it as JSON would have it."""
        return {"place": asdict(self.place), **asdict(self)}

    def line(self) -> str:
        """Return it in words."""
        at, got, want = self.place, _said(self.got), _said(self.want)
        slot = "" if at.slot is None else f", slot {at.slot}"
        told = f"it should: {want}; instead {got}" if self.missing else f"{got}; due was {want}"
        return f"{at.request or 'the engine'}{slot}, step {at.step}: {told}"


def _said(event: Happened | None) -> str:
    if event is None:
        return "nothing more"
    return f"{event.request or 'the engine'} {event.what}" + \
        ("" if event.slot is None else f" in slot {event.slot}") + f" at step {event.step}"


@dataclass
class Log:
    """Events of one run of a case."""

    events: list[Happened] = field(default_factory=list)
    runs: int = 0
    closed: bool = False
    """Whether the case broke: what is cleared away behind that is nobody's doing."""

    def watched(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """Return what makes a scheduler whose events are noted."""
        def made(engine: Any, settings: Any) -> Any:
            self.runs += 1
            return Watch(self, self.runs).over(make, engine, settings)

        return made


class Closing(Judge):
    """A judge that closes the log when a claim is broken."""

    def __init__(self, case: Case, log: Log) -> None:
        super().__init__(case)
        self.log = log

    def _fail(self, *args: Any, **options: Any) -> None:
        self.log.closed = True
        super()._fail(*args, **options)


class Watch:
    """An engine's seven methods and a scheduler's steps, noted as they happen."""

    def __init__(self, log: Log, run: int) -> None:
        self.log, self.run, self.step = log, run, 0
        self.engine: Any = None
        self.came = 0
        self.names: dict[str, str] = {}
        self.owner: dict[int, str] = {}
        self.last: dict[str, int] = {}

    def over(self, make: Callable[..., Any], engine: Any, settings: Any) -> Any:
        """Make the scheduler, over this engine."""
        self.engine = engine
        scheduler = make(self, settings)
        step, submit, cancel = scheduler.step, scheduler.submit, scheduler.cancel

        def submitted(request: Any) -> Any:
            before = self.names.get(request.id)
            name = self._came(request.id)
            try:
                taken = submit(request)
            except Exception as error:
                self._note(name, None, f"is refused by {type(error).__name__}")
                if before is not None:  # its name is still that of who is served
                    self.names[request.id] = before
                raise
            self._note(name, None, "is accepted")
            return taken

        def cancelled(id: str, *args: Any, **options: Any) -> Any:
            taken = cancel(id, *args, **options)
            if taken:  # one that comes too late changes nothing
                self._note(self._name(id), None, "is cancelled")
            return taken

        def counted() -> Any:
            self.step += 1
            try:
                events = step()
            except Exception as error:
                self._note("", None, f"lets {type(error).__name__} out of a step")
                raise
            for event in events:
                self._heard(event)
            return events

        scheduler.step, scheduler.submit, scheduler.cancel = counted, submitted, cancelled
        return scheduler

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def start_batch(self, requests: Sequence[Any]) -> Any:
        """Note who is seated where."""
        seats = self.engine.start_batch(requests)
        for request, seat in zip(requests, seats, strict=False):
            self._seated(request, seat)
        return seats

    def add_slot(self, request: Any) -> Any:
        """Note who is seated where."""
        seat = self.engine.add_slot(request)
        self._seated(request, seat)
        return seat

    def decode_step(self, plan: Sequence[Any]) -> Any:
        """Note what is fed, and the tokens that come, without reading an answer in flight."""
        rows = tuple(plan)
        for row in rows:
            self._note(self._of(row.slot), row.slot, f"is fed {row.count}")
        answer = self.engine.decode_step(rows)
        emitted = [answer[i] for i in range(len(answer))]
        for one in sorted(emitted, key=lambda one: one.slot):
            self._note(self._of(one.slot), one.slot, f"is given {one.token} at {one.logprob:.9g}")
        return answer

    def recycle_slot(self, slot: int) -> None:
        """Note that a slot is freed."""
        self._note(self._of(slot), slot, "gives its slot back")
        self.engine.recycle_slot(slot)

    def reset(self) -> None:
        """Note that every slot is freed."""
        self._note("", None, "is reset")
        self.engine.reset()

    def cleanup(self) -> None:
        """Note the end."""
        self._note("", None, "is cleaned up")
        self.engine.cleanup()

    def _seated(self, request: Any, seat: Any) -> None:
        name = self._name(request.id)
        self.owner[seat.slot], self.last[name] = name, seat.slot
        self._note(name, seat.slot, f"is seated with {seat.reused} tokens reused")

    def _heard(self, event: Any) -> None:
        name = self._name(event.id)
        reason = getattr(event, "reason", None)
        what = f"ends by {reason}, {event.reused} tokens reused" if reason is not None else \
            f"hears token {event.index}: {event.emitted.token}"
        self._note(name, self.last.get(name), what)

    def _of(self, slot: int) -> str:
        return self.owner.get(slot, "nobody")

    def _came(self, id: str) -> str:
        self.came += 1
        self.names[id] = f"request {self.came}"
        return self.names[id]

    def _name(self, id: str) -> str:
        return self.names.get(id, "an unknown request")

    def _note(self, request: str, slot: int | None, what: str) -> None:
        if not self.log.closed:
            self.log.events.append(Happened(self.run, self.step, request, slot, what))


def noted(case: Case, falsifier: Callable[..., None],
          subject: Subject) -> tuple[list[Happened], Exception | None]:
    """Run a case and return its events, and what it broke with if it did."""
    log = Log()
    stack = replace(subject.stack, scheduler=log.watched(subject.stack.scheduler))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            falsifier(case=case, subject=replace(subject, stack=stack),
                      judge=Closing(case, log))
    except Exception as error:
        return log.events, error
    return log.events, None


def first_wrong(case: Case, falsifier: Callable[..., None], right: Subject,
                wrong: Subject) -> Parting | None:
    """Return where a wrong stack's events part from the right one's on a case, or None.

    Raises `SuiteError` when it cannot be told: the case does not give the same events twice, or
    it breaks over something that is no event of a scheduler.
    """
    (want, broke), (again, _) = (noted(case, falsifier, right) for _ in range(2))
    if broke is not None:
        raise SuiteError(f"{case.id} does not pass with the tree's own stack: {first_line(broke)}")
    if not want:
        raise SuiteError(f"{case.id} drives no scheduler, so it has no events to compare")
    if want != again:
        raise SuiteError(f"{case.id} does not give the same events twice, so the first wrong one "
                         f"cannot be told")
    got, broke = noted(case, falsifier, wrong)
    for number, (mine, theirs) in enumerate(zip_longest(got, want)):
        if mine is not None and mine != theirs:
            due = any(later == mine for later in want[number:] if later.step == mine.step)
            return Parting(number, mine, theirs, missing=due)
        if mine is None:
            break
    if broke is not None or got != want:
        told = first_line(broke) if broke is not None else "it ended early"
        raise SuiteError(f"{case.id} breaks, though every event up to there is the tree's own, so "
                         f"the fault is not in one: {told}")
    return None


def against_the_tree(case: Case, bank: Bank, subject: Subject,
                     mutant: str | None) -> Parting | None:
    """Return where a candidate, or a mutant of the tree, parts from the tree's own stack."""
    if (subject.candidate is None) == (mutant is None):
        raise SuiteError(f"{case.id} is held to the tree's own stack, event by event: give "
                         f"--candidate or --mutant")
    wrong = subject if mutant is None else named(bank, mutant).build(subject)
    return first_wrong(case, bank.falsifiers[case.falsifier], bank.subject_for(case), wrong)
