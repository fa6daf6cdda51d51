"""Continuous batching over a `BatchEngine`: requests join and leave between steps.

A step seats the longest waiting requests in the free slots, then gives every live slot one row:
a prefill chunk while its prompt lasts, one token after that. So nobody's pace depends on anybody
else: once seated, a request with n prompt tokens to compute and k tokens to emit ends after
ceil(n / chunk) + k - 1 steps, and the head of the queue waits only for the next slot to be freed.

Everything that happens, happens in `step`: `cancel` marks, and the next sweep releases the slot
and reports the ending. When an engine fails, its slots are worth nothing: it is reset and every
request is replayed from its prompt without handing out a token twice. A request alone in the
failing step is at fault and ends with `error`; several are first taken alone past that point.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence

from phases.p0_scheduler.admission_queue import Desk
from phases.p0_scheduler.protocol import (
    BatchEngine,
    Emitted,
    Ended,
    Ending,
    Event,
    Row,
    RowError,
    Seat,
    Token,
)
from phases.p0_scheduler.request_state import Counts, Job, Settings

log = logging.getLogger("rowtwin.scheduler")
log.addHandler(logging.NullHandler())  # who wants the lines adds a handler; nobody gets them twice


class EngineError(Exception):
    """The engine answered what its protocol rules out."""


class Scheduler(Desk):
    """Decides who runs and when each request ends; the engine computes and samples.

    `step`, `drain` and `counts` belong to one thread, what `Desk` has to all.
    """

    def __init__(self, engine: BatchEngine, settings: Settings) -> None:
        super().__init__(settings)
        self.engine = engine
        self._live: dict[int, Job] = {}  # by slot
        self._events: list[Event] = []
        self._cleaned = False
        self._logged = 0
        self._tally: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()

    @property
    def counts(self) -> Counts:
        """What was counted so far."""
        names = ("batch", "formed", "steps", "admitted", "released", "prefilled", "reused")
        return Counts(waiting=len(self._waiting()), live=len(self._live), ended=dict(self._ended),
                      **{name: self._tally[name] for name in names})

    def step(self) -> list[Event]:
        """Do one step and return what happened since the last one, in order."""
        self._sweep()
        self._admit()
        plan = self._plan()
        worked = bool(plan) and self._run(plan)
        self._sweep()
        self._note(len(plan) if worked else 0)
        events, self._events = self._events, []
        return events

    def drain(self) -> list[Event]:
        """Close, serve what was accepted to its end, and clean the engine up, once."""
        self.close()
        events: list[Event] = []
        while not self.idle:
            events += self.step()
        if not self._cleaned:
            self._cleaned = True
            self.engine.cleanup()
        return events

    # Seating.

    def _next(self) -> list[Job]:
        """Return whom to seat now: the longest waiting, as many as there are free slots."""
        return self._waiting()[:self.settings.slots - len(self._live)]

    def _admit(self) -> None:
        jobs = self._next()
        if jobs and not self._live:
            self._start(jobs)
        else:
            self._join(jobs)

    def _start(self, jobs: Sequence[Job]) -> None:
        try:
            seats = self.engine.start_batch([job.request for job in jobs])
        except Exception:  # it took no slot; one at a time shows whose request it was
            self._join(jobs)
            return
        try:
            if len(seats) != len(jobs):
                raise EngineError(f"the engine gave {len(seats)} seats to {len(jobs)} requests")
            for job, seat in zip(jobs, seats, strict=True):
                self._seat(job, seat)
        except EngineError as error:
            self._recover(error, culprits=jobs)

    def _join(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if job.ending is not None:  # cancelled while another one was seated
                continue
            try:
                self._seat(job, self.engine.add_slot(job.request))
            except EngineError as error:
                self._recover(error, culprits=[job])
            except Exception as error:  # it took no slot, so nobody else is touched
                self._mark(job, "error", _told(error))

    def _seat(self, job: Job, seat: Seat) -> None:
        prompt = len(job.request.tokens)
        if seat.slot in self._live:
            raise EngineError(f"the engine gave slot {seat.slot} to two requests")
        if not 0 <= seat.reused < prompt:
            raise EngineError(f"the engine reused {seat.reused} tokens of a prompt of {prompt}")
        job.take(seat)
        self._live[seat.slot] = job
        self._tally["admitted"] += 1
        self._tally["reused"] += seat.reused

    # Running.

    def _plan(self) -> list[Row]:
        """Return a row for every live slot, or the one row of a suspect that must go alone."""
        jobs = [(slot, job) for slot, job in self._live.items() if job.ending is None]
        alone = [(slot, job) for slot, job in jobs if job.suspect][:1]
        return [Row(slot, self._count(job)) for slot, job in alone or jobs]

    def _count(self, job: Job) -> int:
        return min(job.left, self.settings.chunk) if job.left else 1

    def _run(self, plan: Sequence[Row]) -> bool:
        """Do one engine step; return whether it worked."""
        try:
            emitted = self._read(plan, self.engine.decode_step(plan))
        except Exception as error:
            self._blame(plan, error)
            return False
        for row in plan:
            self._advance(self._live[row.slot], row, emitted.get(row.slot))
        return True

    def _read(self, plan: Sequence[Row], answer: Iterable[Emitted]) -> dict[int, Emitted]:
        """Read a step's answer to its end, by slot; only then may a slot it names be released."""
        emitted = list(answer)
        due = sorted(row.slot for row in plan if self._live[row.slot].left <= row.count)
        if sorted(one.slot for one in emitted) != due:
            raise EngineError(f"the engine answered for slots {[one.slot for one in emitted]}, "
                              f"but should for {due}")
        return {one.slot: one for one in emitted}

    def _advance(self, job: Job, row: Row, emitted: Emitted | None) -> None:
        if job.left:
            job.done += row.count
            self._tally["prefilled"] += row.count
        if emitted is not None and job.ending is None:
            self._deliver(job, emitted)

    def _deliver(self, job: Job, emitted: Emitted) -> None:
        job.sampled += 1
        if job.sampled <= len(job.tokens):
            self._compare(job, emitted.token, job.tokens[job.sampled - 1])
            return
        self._events.append(Token(job.request.id, len(job.tokens), emitted))
        job.tokens.append(emitted.token)
        reason = self._reason(job, emitted.token)
        if reason is not None:
            self._mark(job, reason)

    def _compare(self, job: Job, token: int, before: int) -> None:
        """Hold a replayed token to the one that was handed out before the engine failed."""
        if token != before:
            self._mark(job, "error", f"token {job.sampled - 1} is {token} in the replay after an "
                                     f"engine error, but {before} was handed out")

    def _reason(self, job: Job, token: int) -> Ending | None:
        """Return how the newest token ends its request, if it does; stopping beats length."""
        if token in job.request.stop_ids:
            return "eos" if token in self.settings.eos else "stop"
        return "length" if len(job.tokens) >= job.request.limit else None

    def _note(self, rows: int) -> None:
        if rows:
            self._tally["steps"] += 1
            self._tally["batch"] = rows
            self._tally["formed"] = max(self._tally["formed"], rows)
            if rows != self._logged:
                log.info("Batch m=%d", rows)
        self._logged = rows if self._live else 0  # after a pause the same width is news again

    # Ending.

    def _sweep(self) -> None:
        """Release and report every request that was marked, the longest here first."""
        for job in self._known():
            if job.ending is not None:
                self._release(job)
                self._report(job, job.ending)

    def _release(self, job: Job) -> None:
        if job.seat is None:
            return
        slot = job.seat.slot
        del self._live[slot]
        self._tally["released"] += 1
        try:
            self.engine.recycle_slot(slot)
        except Exception as error:
            self._recover(error)

    def _report(self, job: Job, reason: Ending) -> None:
        self._forget(job)
        self._ended[reason] += 1
        self._events.append(Ended(job.request.id, reason, job.reused, job.detail))

    # After an engine error.

    def _blame(self, plan: Sequence[Row], error: Exception) -> None:
        """Recover from a failed step: the row it names, or a single row, is at fault."""
        jobs = {row.slot: self._live[row.slot] for row in plan}
        if isinstance(error, RowError) and error.slot in jobs:
            self._recover(error, culprits=[jobs[error.slot]])
        elif len(jobs) == 1:
            self._recover(error, culprits=list(jobs.values()))
        else:
            self._recover(error, suspects=list(jobs.values()))

    def _recover(self, error: Exception, culprits: Sequence[Job] = (),
                 suspects: Sequence[Job] = ()) -> None:
        """End the culprits, take every slot back and let the others start over."""
        log.warning("engine error with %d requests seated: %s", len(self._live), _told(error))
        for job in culprits:
            self._mark(job, "error", _told(error))
        for job in self._live.values():
            job.struck_at = job.progress if job in suspects else -1
            job.seat = None
        self._tally["released"] += len(self._live)
        self._live.clear()
        try:
            self.engine.reset()
        except Exception as second:
            self._give_up(second)

    def _give_up(self, error: Exception) -> None:
        why = f"the engine failed and could not be reset ({_told(error)})"
        self.close(why)
        for job in self._known():
            self._mark(job, "error", why)


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
