"""Continuous batching over a `BatchEngine`: requests join and leave between steps.

A step gives the free slots to the requests that waited longest. Then every live slot gets one row:
a prefill chunk while its prompt lasts, one token after that. So no request slows another: with n
prompt tokens to compute and k tokens to emit, a request ends ceil(n / chunk) + k - 1 steps after
it got its slot. The head of the queue waits only for the next free slot.

All work happens in `step`: `cancel` marks a request, and the next sweep releases its slot and
reports its end. When an engine call fails, every slot's state is invalid: the engine is reset, and
every request is replayed from its prompt without delivering a token twice. A request that was the
only row of the failing step ends with `error`. After a failing step of several rows, each of its
requests first runs by itself past that point.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence

from phases.p0_scheduler.admission_queue import AdmissionQueue
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
from phases.p0_scheduler.request_state import Counts, RequestState, Settings

log = logging.getLogger("rowtwin.scheduler")
log.addHandler(logging.NullHandler())


class EngineError(Exception):
    """The engine's answer violates the protocol."""


class Scheduler(AdmissionQueue):
    """Decides which requests run and when each ends; the engine computes and samples.

    One thread calls `step`, `drain` and `counts`; any thread may call the `AdmissionQueue` methods.
    """

    def __init__(self, engine: BatchEngine, settings: Settings) -> None:
        super().__init__(settings)
        self.engine = engine
        self._live: dict[int, RequestState] = {}  # by slot
        self._events: list[Event] = []
        self._cleaned_up = False
        self._logged_width = 0
        self._counters: Counter[str] = Counter()
        self._ended_counts: Counter[str] = Counter()

    @property
    def counts(self) -> Counts:
        """The counters so far."""
        names = ("batch", "formed", "steps", "admitted", "released", "prefilled", "reused")
        return Counts(waiting=len(self._waiting_requests()), live=len(self._live),
                      ended=dict(self._ended_counts),
                      **{name: self._counters[name] for name in names})

    def step(self) -> list[Event]:
        """Do one step and return the events since the last one, in order."""
        self._release_ended()
        self._admit()
        plan = self._plan_step()
        worked = bool(plan) and self._run_step(plan)
        self._release_ended()
        self._record_step(len(plan) if worked else 0)
        events, self._events = self._events, []
        return events

    def drain(self) -> list[Event]:
        """Close, serve every accepted request to its end, and clean the engine up once."""
        self.close()
        events: list[Event] = []
        while not self.idle:
            events += self.step()
        if not self._cleaned_up:
            self._cleaned_up = True
            self.engine.cleanup()
        return events

    # Admission.

    def _next_requests(self) -> list[RequestState]:
        """Return the requests that get a slot now: the longest waiting, one for each free slot."""
        return self._waiting_requests()[:self.settings.slots - len(self._live)]

    def _admit(self) -> None:
        jobs = self._next_requests()
        if jobs and not self._live:
            self._start_batch(jobs)
        else:
            self._add_to_batch(jobs)

    def _start_batch(self, jobs: Sequence[RequestState]) -> None:
        try:
            seats = self.engine.start_batch([job.request for job in jobs])
        except Exception:  # no slot was taken; adding one at a time shows which request fails
            self._add_to_batch(jobs)
            return
        try:
            if len(seats) != len(jobs):
                raise EngineError(f"the engine gave {len(seats)} seats to {len(jobs)} requests")
            for job, seat in zip(jobs, seats, strict=True):
                self._assign_slot(job, seat)
        except EngineError as error:
            self._recover(error, culprits=jobs)

    def _add_to_batch(self, jobs: Sequence[RequestState]) -> None:
        for job in jobs:
            if job.ending is not None:  # cancelled during another request's add_slot
                continue
            try:
                self._assign_slot(job, self.engine.add_slot(job.request))
            except EngineError as error:
                self._recover(error, culprits=[job])
            except Exception as error:  # no slot was taken, so no other request is affected
                self._mark_ended(job, "error", _format_error(error))

    def _assign_slot(self, job: RequestState, seat: Seat) -> None:
        prompt = len(job.request.tokens)
        if seat.slot in self._live:
            raise EngineError(f"the engine gave slot {seat.slot} to two requests")
        if not 0 <= seat.reused < prompt:
            raise EngineError(f"the engine reused {seat.reused} tokens of a prompt of {prompt}")
        job.assign_seat(seat)
        self._live[seat.slot] = job
        self._counters["admitted"] += 1
        self._counters["reused"] += seat.reused

    # Running.

    def _plan_step(self) -> list[Row]:
        """Return a row for every live slot, or only the row of a suspect that must run alone."""
        jobs = [(slot, job) for slot, job in self._live.items() if job.ending is None]
        alone = [(slot, job) for slot, job in jobs if job.is_suspect][:1]
        return [Row(slot, self._token_count(job)) for slot, job in alone or jobs]

    def _token_count(self, job: RequestState) -> int:
        return min(job.prompt_left, self.settings.chunk) if job.prompt_left else 1

    def _run_step(self, plan: Sequence[Row]) -> bool:
        """Do one engine step; return False if it failed."""
        try:
            emitted = self._read_answer(plan, self.engine.decode_step(plan))
        except Exception as error:
            self._handle_step_error(plan, error)
            return False
        for row in plan:
            self._advance(self._live[row.slot], row, emitted.get(row.slot))
        return True

    def _read_answer(self, plan: Sequence[Row], answer: Iterable[Emitted]) -> dict[int, Emitted]:
        """Return a step's answer by slot, read to its end; only then may its slots be released."""
        emitted = list(answer)
        expected = sorted(row.slot for row in plan if self._live[row.slot].prompt_left <= row.count)
        if sorted(one.slot for one in emitted) != expected:
            raise EngineError(f"the engine answered for slots {[one.slot for one in emitted]}, "
                              f"but should for {expected}")
        return {one.slot: one for one in emitted}

    def _advance(self, job: RequestState, row: Row, emitted: Emitted | None) -> None:
        if job.prompt_left:
            job.prefilled += row.count
            self._counters["prefilled"] += row.count
        if emitted is not None and job.ending is None:
            self._deliver_token(job, emitted)

    def _deliver_token(self, job: RequestState, emitted: Emitted) -> None:
        job.sampled += 1
        if job.sampled <= len(job.tokens):
            self._check_replay(job, emitted.token, job.tokens[job.sampled - 1])
            return
        self._events.append(Token(job.request.id, len(job.tokens), emitted))
        job.tokens.append(emitted.token)
        reason = self._end_reason(job, emitted.token)
        if reason is not None:
            self._mark_ended(job, reason)

    def _check_replay(self, job: RequestState, token: int, before: int) -> None:
        """Compare a replayed token with the one delivered before the engine failed."""
        if token != before:
            self._mark_ended(job, "error",
                             f"token {job.sampled - 1} is {token} in the replay after an "
                             f"engine error, but {before} was delivered before")

    def _end_reason(self, job: RequestState, token: int) -> Ending | None:
        """Return how the newest token ends its request, or None; a stop takes precedence."""
        if token in job.request.stop_ids:
            return "eos" if token in self.settings.eos else "stop"
        return "length" if len(job.tokens) >= job.request.limit else None

    def _record_step(self, rows: int) -> None:
        if rows:
            self._counters["steps"] += 1
            self._counters["batch"] = rows
            self._counters["formed"] = max(self._counters["formed"], rows)
            if rows != self._logged_width:
                log.info("Batch m=%d", rows)
        self._logged_width = rows if self._live else 0  # after a pause, log again

    # Ending.

    def _release_ended(self) -> None:
        """Release and report every marked request, the oldest first."""
        for job in self._all_requests():
            if job.ending is not None:
                self._release_slot(job)
                self._report_end(job, job.ending)

    def _release_slot(self, job: RequestState) -> None:
        if job.seat is None:
            return
        slot = job.seat.slot
        del self._live[slot]
        self._counters["released"] += 1
        try:
            self.engine.recycle_slot(slot)
        except Exception as error:
            self._recover(error)

    def _report_end(self, job: RequestState, reason: Ending) -> None:
        self._remove(job)
        self._ended_counts[reason] += 1
        self._events.append(Ended(job.request.id, reason, job.reused, job.detail))

    # After an engine error.

    def _handle_step_error(self, plan: Sequence[Row], error: Exception) -> None:
        """Recover from a failed step; the row it names, or its only row, is at fault."""
        jobs = {row.slot: self._live[row.slot] for row in plan}
        if isinstance(error, RowError) and error.slot in jobs:
            self._recover(error, culprits=[jobs[error.slot]])
        elif len(jobs) == 1:
            self._recover(error, culprits=list(jobs.values()))
        else:
            self._recover(error, suspects=list(jobs.values()))

    def _recover(self, error: Exception, culprits: Sequence[RequestState] = (),
                 suspects: Sequence[RequestState] = ()) -> None:
        """End the culprits, reset the engine and replay the other requests."""
        log.warning("engine error with %d live requests: %s", len(self._live),
                    _format_error(error))
        for job in culprits:
            self._mark_ended(job, "error", _format_error(error))
        for job in self._live.values():
            job.failed_at = job.progress if job in suspects else -1
            job.seat = None
        self._counters["released"] += len(self._live)
        self._live.clear()
        try:
            self.engine.reset()
        except Exception as second:
            self._give_up(second)

    def _give_up(self, error: Exception) -> None:
        why = f"the engine failed and could not be reset ({_format_error(error)})"
        self.close(why)
        for job in self._all_requests():
            self._mark_ended(job, "error", why)


def _format_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
