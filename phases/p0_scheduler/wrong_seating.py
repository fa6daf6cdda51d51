"""Faulty schedulers: admission, cancels and releases; each class has one fault."""



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
from phases.p0_scheduler.request_state import RequestState, Settings
from phases.p0_scheduler.scheduler import Scheduler


class NoParallelForThisModel(Scheduler):
    """The number of slots is silently set to 1."""

    def __init__(self, engine: BatchEngine, settings: Settings) -> None:
        super().__init__(engine, replace(settings, slots=1))


class PaddingTakesASlot(Scheduler):
    """One of the slots is reserved for padding."""

    def __init__(self, engine: BatchEngine, settings: Settings) -> None:
        super().__init__(engine, replace(settings, slots=max(1, settings.slots - 1)))


class ReleasesOnlyThisStepsRows(Scheduler):
    """An abort between two steps finds no row of its own and releases nothing."""

    _rows: frozenset[int] = frozenset()

    def _plan_step(self) -> list[Row]:
        plan = super()._plan_step()
        self._rows = frozenset(row.slot for row in plan)
        return plan

    def _release_ended(self) -> None:
        super()._release_ended()
        self._rows = frozenset()

    def _release_slot(self, job: RequestState) -> None:
        if job.seat is None or job.seat.slot in self._rows:
            super()._release_slot(job)
        else:
            del self._live[job.seat.slot]


class CancelsOnlyWhoDecodes(Scheduler):
    """A cancel is accepted, but only decode rows are searched."""

    def cancel(self, id: str, reason: FromOutside = "cancel") -> bool:
        job = self._requests.get(id)
        if job is not None and job.prompt_left and job.seat is not None:
            return True
        return super().cancel(id, reason)


class CancelsOnlyWhoIsSeated(Scheduler):
    """A cancel ignores waiting requests; they are served to the end."""

    def cancel(self, id: str, reason: FromOutside = "cancel") -> bool:
        seated = [job.request.id for job in self._live.values()]
        return super().cancel(id, reason) if id in seated else id in self._requests


class SlotByNumber(Scheduler):
    """The slot is the request's number modulo the capacity."""

    def _assign_slot(self, job: RequestState, seat: Seat) -> None:
        seat = replace(seat, slot=self._counters["admitted"] % self.settings.slots)
        self._live.pop(seat.slot, None)
        super()._assign_slot(job, seat)


class FreesAStoppedRowTwice(Scheduler):
    """A stop token frees the slot, though a cancel of this step will free it too."""

    def _advance(self, job: RequestState, row: Row, emitted: Emitted | None) -> None:
        if job.ending and emitted is not None and emitted.token in job.request.stop_ids:
            self.engine.recycle_slot(row.slot)
        super()._advance(job, row, emitted)


class ReleasesBeforeReading(Scheduler):
    """A slot cancelled in a step is released before the step's answer is read."""

    def _read_answer(self, plan: Sequence[Row], answer: Iterable[Emitted]) -> dict[int, Emitted]:
        self._early = {row.slot for row in plan if self._live[row.slot].ending}
        for slot in self._early:
            self.engine.recycle_slot(slot)
        return super()._read_answer(plan, answer)

    def _release_slot(self, job: RequestState) -> None:
        if job.seat is None or job.seat.slot not in self._early:
            super()._release_slot(job)
            return
        del self._live[job.seat.slot]
        self._counters["released"] += 1


class CancelTellsNobody(Scheduler):
    """A cancelled request is dropped without an end event."""

    def cancel(self, id: str, reason: FromOutside = "cancel") -> bool:
        accepted = super().cancel(id, reason)
        job = self._requests.get(id)
        if accepted and job is not None and job.seat is None:
            self._remove(job)
        return accepted


class CancelIsTakenTwice(Scheduler):
    """A second cancel of the same request is accepted too."""

    def cancel(self, id: str, reason: FromOutside = "cancel") -> bool:
        return super().cancel(id, reason) or id in self._requests


class StopKeepsItsSlot(Scheduler):
    """A request that ends by a stop token is reported, but its slot is not released."""

    def _release_slot(self, job: RequestState) -> None:
        if job.ending != "stop" or job.seat is None:
            super()._release_slot(job)
        else:
            del self._live[job.seat.slot]


class DisconnectFreesTwice(Scheduler):
    """A disconnect releases the slot twice."""

    def _release_slot(self, job: RequestState) -> None:
        seat = job.seat
        super()._release_slot(job)
        if seat is not None and job.ending == "disconnect":
            self.engine.recycle_slot(seat.slot)


class NewestFirst(Scheduler):
    """The queue is a stack."""

    def _next_requests(self) -> list[RequestState]:
        return self._waiting_requests()[::-1][:self.settings.slots - len(self._live)]


class ShortestFirst(Scheduler):
    """Short prompts overtake long ones in the queue."""

    def _next_requests(self) -> list[RequestState]:
        order = sorted(self._waiting_requests(), key=lambda job: len(job.request.tokens))
        return order[:self.settings.slots - len(self._live)]


class WaitsForTheBatchToEnd(Scheduler):
    """No request joins a running batch."""

    def _next_requests(self) -> list[RequestState]:
        return [] if self._live else super()._next_requests()


class OneSeatAStep(Scheduler):
    """One request gets a slot in a step, however many slots are free."""

    def _next_requests(self) -> list[RequestState]:
        return super()._next_requests()[:1]


class SeatsWhoWasCancelled(Scheduler):
    """A request that was cancelled while another got its slot gets a slot too."""

    def _add_to_batch(self, jobs: Sequence[RequestState]) -> None:
        for job in jobs:
            self._assign_slot(job, self.engine.add_slot(job.request))


class PrefillsBeforeAdmitting(Scheduler):
    """No request gets a slot while a prompt is in progress."""

    def _next_requests(self) -> list[RequestState]:
        return [] if any(job.prompt_left
                         for job in self._live.values()) else super()._next_requests()


class QueueWithoutBound(Scheduler):
    """A full queue accepts further requests."""

    def _check_request(self, request: Request) -> None:
        try:
            super()._check_request(request)
        except QueueFullError:
            return


class BoundForgetsFreeSlots(Scheduler):
    """Only the length of the queue is compared, though slots are free."""

    def _check_request(self, request: Request) -> None:
        super()._check_request(request)
        if sum(job.seat is None for job in self._requests.values()) >= self.settings.queue:
            raise QueueFullError(f"request {request.id!r} is refused: the queue is full")


class RefusedRequestStays(Scheduler):
    """A refused request stays in the queue."""

    def submit(self, request: Request) -> None:
        try:
            super().submit(request)
        except QueueFullError:
            self._requests[request.id] = RequestState(request)
            raise


class ContextIsNotChecked(Scheduler):
    """A request may need more tokens than a slot has room for."""

    def __init__(self, engine: BatchEngine, settings: Settings) -> None:
        super().__init__(engine, replace(settings, context=None))


class LastTokenNeedsRoom(Scheduler):
    """The context is checked as if the last token were fed back."""

    def _check_request(self, request: Request) -> None:
        context = self.settings.context
        if context is not None and len(request.tokens) + request.limit > context:
            raise InputError(f"request {request.id!r} is too long")
        super()._check_request(request)


class SameIdReplaces(Scheduler):
    """A second request with the same id replaces the first."""

    def _check_request(self, request: Request) -> None:
        super()._check_request(replace(request, id=f"{request.id} "))


class ComputesReusedTokensAgain(Scheduler):
    """The first chunk starts at the first token, whatever the seat says."""

    def _assign_slot(self, job: RequestState, seat: Seat) -> None:
        super()._assign_slot(job, seat)
        job.prefilled = 0


class TellsNoReuse(Scheduler):
    """Reuse happens but is not reported."""

    def _assign_slot(self, job: RequestState, seat: Seat) -> None:
        super()._assign_slot(job, seat)
        job.reused = 0
