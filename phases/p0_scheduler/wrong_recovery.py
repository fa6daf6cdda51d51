"""Faulty schedulers and engine loops: error recovery, shutdown and delivery."""



from __future__ import annotations

from collections.abc import Sequence

from phases.p0_scheduler.engine_loop import EngineLoop, EventSink
from phases.p0_scheduler.protocol import Event, FromOutside, Request, Row
from phases.p0_scheduler.request_state import RequestState
from phases.p0_scheduler.scheduler import Scheduler


class ErrorEndsTheWholeStep(Scheduler):
    """An engine error ends every request in the step."""

    def _handle_step_error(self, plan: Sequence[Row], error: Exception) -> None:
        self._recover(error, culprits=[self._live[row.slot] for row in plan])


class ErrorEndsTheOldest(Scheduler):
    """An engine error ends the first row's request."""

    def _handle_step_error(self, plan: Sequence[Row], error: Exception) -> None:
        self._recover(error, culprits=[self._live[plan[0].slot]])


class NamedRowIsIgnored(Scheduler):
    """The row that the engine names is retried like all others."""

    def _handle_step_error(self, plan: Sequence[Row], error: Exception) -> None:
        super()._handle_step_error(plan, RuntimeError(str(error)))


class NoReset(Scheduler):
    """After an error the slots count as free, but the engine is not reset."""

    def _recover(self, error: Exception, culprits: Sequence[RequestState] = (),
                 suspects: Sequence[RequestState] = ()) -> None:
        for job in culprits:
            self._mark_ended(job, "error", str(error))
        for job in self._live.values():
            job.seat = None
        self._live.clear()


class GoesOnAfterTheError(Scheduler):
    """Only the culprit is ended; the others continue in slots with invalid state."""

    def _recover(self, error: Exception, culprits: Sequence[RequestState] = (),
                 suspects: Sequence[RequestState] = ()) -> None:
        for job in culprits or suspects[:1]:
            self._mark_ended(job, "error", str(error))


class ReplayIsHandedOut(Scheduler):
    """Replayed tokens are delivered a second time."""

    def _recover(self, error: Exception, culprits: Sequence[RequestState] = (),
                 suspects: Sequence[RequestState] = ()) -> None:
        super()._recover(error, culprits, suspects)
        for job in self._all_requests():
            job.tokens.clear()


class ReplayIsForgotten(Scheduler):
    """Requests that lost their slot are not served again."""

    def _recover(self, error: Exception, culprits: Sequence[RequestState] = (),
                 suspects: Sequence[RequestState] = ()) -> None:
        lost = list(self._live.values())
        super()._recover(error, culprits, suspects)
        for job in lost:
            self._mark_ended(job, "error", str(error))


class FailedStartEndsAll(Scheduler):
    """A start that fails ends every request in it."""

    def _start_batch(self, jobs: Sequence[RequestState]) -> None:
        try:
            seats = self.engine.start_batch([job.request for job in jobs])
        except Exception as error:
            for job in jobs:
                self._mark_ended(job, "error", str(error))
            return
        for job, seat in zip(jobs, seats, strict=True):
            self._assign_slot(job, seat)


class FailedJoinResets(Scheduler):
    """A request that cannot get a slot resets all others."""

    def _add_to_batch(self, jobs: Sequence[RequestState]) -> None:
        for job in jobs:
            try:
                self._assign_slot(job, self.engine.add_slot(job.request))
            except Exception as error:
                self._recover(error, culprits=[job])


class FailedReleaseIsIgnored(Scheduler):
    """An error of `recycle_slot` is ignored."""

    def _recover(self, error: Exception, culprits: Sequence[RequestState] = (),
                 suspects: Sequence[RequestState] = ()) -> None:
        if culprits or suspects:
            super()._recover(error, culprits, suspects)


class ResetErrorEscapes(Scheduler):
    """An engine that cannot be reset ends the loop with its error."""

    def _give_up(self, error: Exception) -> None:
        raise error


class ResetErrorIsIgnored(Scheduler):
    """An engine that cannot be reset is used again."""

    def _give_up(self, error: Exception) -> None:
        pass


class DrainDropsTheQueue(Scheduler):
    """Closing cancels the waiting requests."""

    def close(self, why: str = "the server is shutting down") -> None:
        super().close(why)
        for job in self._waiting_requests():
            self._mark_ended(job, "cancel")


class DrainTakesMore(Scheduler):
    """Closing still accepts requests."""

    def close(self, why: str = "the server is shutting down") -> None:
        pass


class CleansUpTwice(Scheduler):
    """Every drain calls cleanup."""

    def drain(self) -> list[Event]:
        self._cleaned_up = False
        return super().drain()


class AbortSparesTheQueue(Scheduler):
    """An abort ends only the requests that have a slot."""

    def abort(self, reason: FromOutside = "cancel") -> None:
        for job in self._live.values():
            self._mark_ended(job, reason)


class DeliversToTheLastCaller(EngineLoop):
    """Every event is delivered to the newest caller."""

    def _deliver_event(self, deliver: EventSink, event: Event) -> None:
        with self._sinks_lock:
            last = list(self._sinks.values())[-1:]
        super()._deliver_event((last or [deliver])[0], event)


class ReleasesOnTheCallersThread(EngineLoop):
    """A cancel releases the slot at once, on the caller's thread."""

    def cancel(self, id: str, reason: FromOutside = "cancel") -> bool:
        accepted = super().cancel(id, reason)
        self.scheduler._release_ended()
        return accepted


class ForgetsWhoCameWhileBusy(EngineLoop):
    """A caller is registered only after the first step that follows its submit."""

    def send(self, request: Request, deliver: EventSink) -> None:
        busy = bool(self._sinks)
        super().send(request, deliver)
        if busy:
            with self._sinks_lock:
                self._sinks.pop(request.id, None)
