"""Wrong schedulers that seat, cancel or release the wrong way, each with one fault."""



from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from engine.errors import InputError
from phases.p0_scheduler.protocol import (
    BatchEngine,
    Emitted,
    FromOutside,
    QueueFullError,
    Request,
    Row,
    Seat,
)
from phases.p0_scheduler.request_state import Job, Settings
from phases.p0_scheduler.scheduler import Scheduler


class NoParallelForThisModel(Scheduler):
    """The number of slots is ignored, with no word of it."""

    def __init__(self, engine: BatchEngine, settings: Settings) -> None:
        super().__init__(engine, replace(settings, slots=1))


class PaddingTakesASlot(Scheduler):
    """One of the slots is kept as padding."""

    def __init__(self, engine: BatchEngine, settings: Settings) -> None:
        super().__init__(engine, replace(settings, slots=max(1, settings.slots - 1)))


class ReleasesOnlyThisStepsRows(Scheduler):
    """An abort between two steps finds no row of its own and gives nothing back."""

    _rows: frozenset[int] = frozenset()

    def _plan(self) -> list[Row]:
        plan = super()._plan()
        self._rows = frozenset(row.slot for row in plan)
        return plan

    def _sweep(self) -> None:
        super()._sweep()
        self._rows = frozenset()

    def _release(self, job: Job) -> None:
        if job.seat is None or job.seat.slot in self._rows:
            super()._release(job)
        else:
            del self._live[job.seat.slot]


class CancelsOnlyWhoDecodes(Scheduler):
    """A cancel is acknowledged, but searches the decode rows alone."""

    def cancel(self, id: str, reason: FromOutside = "cancel") -> bool:
        job = self._jobs.get(id)
        if job is not None and job.left and job.seat is not None:
            return True
        return super().cancel(id, reason)


class CancelsOnlyWhoIsSeated(Scheduler):
    """A request that waits is not found, and is served to nobody."""

    def cancel(self, id: str, reason: FromOutside = "cancel") -> bool:
        seated = [job.request.id for job in self._live.values()]
        return super().cancel(id, reason) if id in seated else id in self._jobs


class SlotByNumber(Scheduler):
    """The slot is the request's number modulo the capacity."""

    def _seat(self, job: Job, seat: Seat) -> None:
        seat = replace(seat, slot=self._tally["admitted"] % self.settings.slots)
        self._live.pop(seat.slot, None)
        super()._seat(job, seat)


class FreesAStoppedRowTwice(Scheduler):
    """A stop token frees the slot, though a cancel of this step will free it too."""

    def _advance(self, job: Job, row: Row, emitted: Emitted | None) -> None:
        if job.ending and emitted is not None and emitted.token in job.request.stop_ids:
            self.engine.recycle_slot(row.slot)
        super()._advance(job, row, emitted)


class ReleasesBeforeReading(Scheduler):
    """A slot cancelled in a step is free before the step's answer was read."""

    def _read(self, plan: Sequence[Row], answer: Iterable[Emitted]) -> dict[int, Emitted]:
        self._early = {row.slot for row in plan if self._live[row.slot].ending}
        for slot in self._early:
            self.engine.recycle_slot(slot)
        return super()._read(plan, answer)

    def _release(self, job: Job) -> None:
        if job.seat is None or job.seat.slot not in self._early:
            super()._release(job)
            return
        del self._live[job.seat.slot]
        self._tally["released"] += 1


class CancelTellsNobody(Scheduler):
    """A cancelled request is dropped without an end."""

    def cancel(self, id: str, reason: FromOutside = "cancel") -> bool:
        taken = super().cancel(id, reason)
        job = self._jobs.get(id)
        if taken and job is not None and job.seat is None:
            self._forget(job)
        return taken


class CancelIsTakenTwice(Scheduler):
    """A second cancel of the same request is taken like the first."""

    def cancel(self, id: str, reason: FromOutside = "cancel") -> bool:
        return super().cancel(id, reason) or id in self._jobs


class StopKeepsItsSlot(Scheduler):
    """A request that ends by a stop token is reported, and its slot forgotten."""

    def _release(self, job: Job) -> None:
        if job.ending != "stop" or job.seat is None:
            super()._release(job)
        else:
            del self._live[job.seat.slot]


class DisconnectFreesTwice(Scheduler):
    """A disconnect is cleaned up by the server too."""

    def _release(self, job: Job) -> None:
        seat = job.seat
        super()._release(job)
        if seat is not None and job.ending == "disconnect":
            self.engine.recycle_slot(seat.slot)


class NewestFirst(Scheduler):
    """The queue is a stack."""

    def _next(self) -> list[Job]:
        return self._waiting()[::-1][:self.settings.slots - len(self._live)]


class ShortestFirst(Scheduler):
    """Short prompts overtake long ones."""

    def _next(self) -> list[Job]:
        order = sorted(self._waiting(), key=lambda job: len(job.request.tokens))
        return order[:self.settings.slots - len(self._live)]


class WaitsForTheBatchToEnd(Scheduler):
    """Nobody joins a running batch."""

    def _next(self) -> list[Job]:
        return [] if self._live else super()._next()


class OneSeatAStep(Scheduler):
    """One request is seated in a step, however many slots are free."""

    def _next(self) -> list[Job]:
        return super()._next()[:1]


class SeatsWhoWasCancelled(Scheduler):
    """A request that was cancelled while another one was seated is seated too."""

    def _join(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._seat(job, self.engine.add_slot(job.request))


class PrefillsBeforeAdmitting(Scheduler):
    """Nobody is seated while a prompt is in progress."""

    def _next(self) -> list[Job]:
        return [] if any(job.left for job in self._live.values()) else super()._next()


class QueueWithoutBound(Scheduler):
    """A full queue takes one more, and one more."""

    def _check(self, request: Request) -> None:
        try:
            super()._check(request)
        except QueueFullError:
            return


class BoundForgetsFreeSlots(Scheduler):
    """Only the length of the queue is looked at, though slots are free."""

    def _check(self, request: Request) -> None:
        super()._check(request)
        if sum(job.seat is None for job in self._jobs.values()) >= self.settings.queue:
            raise QueueFullError(f"request {request.id!r} is refused: the queue is full")


class RefusedRequestStays(Scheduler):
    """A refused request has taken its place in the queue already."""

    def submit(self, request: Request) -> None:
        try:
            super().submit(request)
        except QueueFullError:
            self._jobs[request.id] = Job(request)
            raise


class ContextIsNotChecked(Scheduler):
    """A request may need more tokens than a slot holds."""

    def __init__(self, engine: BatchEngine, settings: Settings) -> None:
        super().__init__(engine, replace(settings, context=None))


class LastTokenNeedsRoom(Scheduler):
    """The context is checked as if the last token were fed back."""

    def _check(self, request: Request) -> None:
        context = self.settings.context
        if context is not None and len(request.tokens) + request.limit > context:
            raise InputError(f"request {request.id!r} is too long")
        super()._check(request)


class SameIdReplaces(Scheduler):
    """A second request of the same id takes the place of the first."""

    def _check(self, request: Request) -> None:
        super()._check(replace(request, id=f"{request.id} "))


class ComputesReusedTokensAgain(Scheduler):
    """The first chunk starts at the first token, whatever the seat says."""

    def _seat(self, job: Job, seat: Seat) -> None:
        super()._seat(job, seat)
        job.done = 0


class TellsNoReuse(Scheduler):
    """Reuse happens and is not told."""

    def _seat(self, job: Job, seat: Seat) -> None:
        super()._seat(job, seat)
        job.reused = 0
