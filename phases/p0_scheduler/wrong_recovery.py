"""Wrong schedulers and drivers that fail, shut down or hand out the wrong way."""



from __future__ import annotations

from collections.abc import Sequence

from phases.p0_scheduler.engine_loop import EngineLoop, EventSink
from phases.p0_scheduler.protocol import Event, FromOutside, Request, Row
from phases.p0_scheduler.request_state import RequestState
from phases.p0_scheduler.scheduler import Scheduler


class ErrorEndsTheWholeStep(Scheduler):
    """An engine error ends everyone in the step."""

    def _handle_step_error(self, plan: Sequence[Row], error: Exception) -> None:
        self._recover(error, culprits=[self._live[row.slot] for row in plan])


class ErrorEndsTheOldest(Scheduler):
    """An engine error is put on the first row."""

    def _handle_step_error(self, plan: Sequence[Row], error: Exception) -> None:
        self._recover(error, culprits=[self._live[plan[0].slot]])


class NamedRowIsIgnored(Scheduler):
    """The row that the engine names is tried alone like all others."""

    def _handle_step_error(self, plan: Sequence[Row], error: Exception) -> None:
        super()._handle_step_error(plan, RuntimeError(str(error)))


class NoReset(Scheduler):
    """After an error the slots are counted as free, and the engine is not told."""

    def _recover(self, error: Exception, culprits: Sequence[RequestState] = (),
                 suspects: Sequence[RequestState] = ()) -> None:
        for job in culprits:
            self._mark_ended(job, "error", str(error))
        for job in self._live.values():
            job.seat = None
        self._live.clear()


class GoesOnAfterTheError(Scheduler):
    """Only the culprit leaves; the others go on in slots whose state is worth nothing."""

    def _recover(self, error: Exception, culprits: Sequence[RequestState] = (),
                 suspects: Sequence[RequestState] = ()) -> None:
        for job in culprits or suspects[:1]:
            self._mark_ended(job, "error", str(error))


class ReplayIsHandedOut(Scheduler):
    """Replayed tokens are handed out a second time."""

    def _recover(self, error: Exception, culprits: Sequence[RequestState] = (),
                 suspects: Sequence[RequestState] = ()) -> None:
        super()._recover(error, culprits, suspects)
        for job in self._all_requests():
            job.tokens.clear()


class ReplayIsForgotten(Scheduler):
    """Those who lost their slot are not served again."""

    def _recover(self, error: Exception, culprits: Sequence[RequestState] = (),
                 suspects: Sequence[RequestState] = ()) -> None:
        lost = list(self._live.values())
        super()._recover(error, culprits, suspects)
        for job in lost:
            self._mark_ended(job, "error", str(error))


class FailedStartEndsAll(Scheduler):
    """A start that fails ends everyone who was to be seated."""

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
    """A request that cannot be seated costs the others their slots."""

    def _add_to_batch(self, jobs: Sequence[RequestState]) -> None:
        for job in jobs:
            try:
                self._assign_slot(job, self.engine.add_slot(job.request))
            except Exception as error:
                self._recover(error, culprits=[job])


class FailedReleaseIsIgnored(Scheduler):
    """An error of `recycle_slot` is swallowed."""

    def _recover(self, error: Exception, culprits: Sequence[RequestState] = (),
                 suspects: Sequence[RequestState] = ()) -> None:
        if culprits or suspects:
            super()._recover(error, culprits, suspects)


class ResetErrorEscapes(Scheduler):
    """An engine that cannot be reset takes the loop down with it."""

    def _give_up(self, error: Exception) -> None:
        raise error


class ResetErrorIsIgnored(Scheduler):
    """An engine that cannot be reset is used on."""

    def _give_up(self, error: Exception) -> None:
        pass


class DrainDropsTheQueue(Scheduler):
    """Closing ends those who wait."""

    def close(self, why: str = "the server is shutting down") -> None:
        super().close(why)
        for job in self._waiting_requests():
            self._mark_ended(job, "cancel")


class DrainTakesMore(Scheduler):
    """Closing refuses nobody."""

    def close(self, why: str = "the server is shutting down") -> None:
        pass


class CleansUpTwice(Scheduler):
    """Every drain cleans the engine up."""

    def drain(self) -> list[Event]:
        self._cleaned_up = False
        return super().drain()


class AbortSparesTheQueue(Scheduler):
    """An abort ends those who are seated alone."""

    def abort(self, reason: FromOutside = "cancel") -> None:
        for job in self._live.values():
            self._mark_ended(job, reason)


class DeliversToTheLastCaller(EngineLoop):
    """Events go to whoever came last."""

    def _deliver_event(self, deliver: EventSink, event: Event) -> None:
        with self._sinks_lock:
            last = list(self._sinks.values())[-1:]
        super()._deliver_event((last or [deliver])[0], event)


class ReleasesOnTheCallersThread(EngineLoop):
    """A cancel releases the slot at once, on the caller's thread."""

    def cancel(self, id: str, reason: FromOutside = "cancel") -> bool:
        taken = super().cancel(id, reason)
        self.scheduler._release_ended()
        return taken


class ForgetsWhoCameWhileBusy(EngineLoop):
    """A caller is known only once the first step after its submit is over."""

    def send(self, request: Request, deliver: EventSink) -> None:
        busy = bool(self._sinks)
        super().send(request, deliver)
        if busy:
            with self._sinks_lock:
                self._sinks.pop(request.id, None)
