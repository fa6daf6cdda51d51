"""Faulty schedulers: planning, logging and endings; each class has one fault."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from phases.p0_scheduler.protocol import Emitted, Ending, Row, Token
from phases.p0_scheduler.request_state import RequestState
from phases.p0_scheduler.scheduler import Scheduler


class PrefillFirst(Scheduler):
    """While a prompt is in progress, only prompt rows run."""

    def _plan_step(self) -> list[Row]:
        plan = super()._plan_step()
        return [row for row in plan if self._live[row.slot].prompt_left] or plan


class OnePromptAtATime(Scheduler):
    """The oldest prompt gets every chunk until it is complete."""

    def _plan_step(self) -> list[Row]:
        plan = super()._plan_step()
        prompts = [row for row in plan if self._live[row.slot].prompt_left]
        return [row for row in plan if row not in prompts[1:]]


class DeadlineByBatchStep(Scheduler):
    """The limit is compared with the oldest row's tokens, not with the request's own."""

    def _end_reason(self, job: RequestState, token: int) -> Ending | None:
        oldest = max(len(other.tokens) for other in self._live.values())
        return super()._end_reason(job, token) or \
            ("length" if oldest >= job.request.limit else None)


class OneForwardTooMany(Scheduler):
    """The limit is compared before the newest token is counted."""

    def _deliver_token(self, job: RequestState, emitted: Emitted) -> None:
        if len(job.tokens) == job.request.limit:
            self._mark_ended(job, "length")
        else:
            super()._deliver_token(job, emitted)

    def _end_reason(self, job: RequestState, token: int) -> Ending | None:
        reason = super()._end_reason(job, token)
        return None if reason == "length" else reason


class AppendsUntilTheLastEnds(Scheduler):
    """Rows that ended continue, and get tokens, until every row has ended."""

    def _release_ended(self) -> None:
        if all(job.ending for job in self._live.values()):
            super()._release_ended()

    def _plan_step(self) -> list[Row]:
        return [Row(slot, self._token_count(job)) for slot, job in self._live.items()]

    def _advance(self, job: RequestState, row: Row, emitted: Emitted | None) -> None:
        over = job.ending
        super()._advance(job, row, emitted)
        if over and emitted is not None:
            self._events.append(Token(job.request.id, len(job.tokens), emitted))


class FirstStopIdOnly(Scheduler):
    """Only one id of a stop set is compared."""

    def _end_reason(self, job: RequestState, token: int) -> Ending | None:
        one = frozenset(sorted(job.request.stop_ids)[-1:])
        return super()._end_reason(with_changed_request(job, stop_ids=one), token)


class NoStopOnThePrefillToken(Scheduler):
    """The token that prefill samples never ends a request."""

    def _end_reason(self, job: RequestState, token: int) -> Ending | None:
        return None if len(job.tokens) == 1 < job.request.limit else super()._end_reason(job, token)


class StopsForAll(Scheduler):
    """A stop id of one row stops every row that emits it."""

    def _end_reason(self, job: RequestState, token: int) -> Ending | None:
        every = frozenset().union(*(other.request.stop_ids for other in self._live.values()))
        return super()._end_reason(with_changed_request(job, stop_ids=every), token)


class SwallowsTheStopToken(Scheduler):
    """The stop token is not delivered."""

    def _deliver_token(self, job: RequestState, emitted: Emitted) -> None:
        if emitted.token in job.request.stop_ids:
            self._mark_ended(job, "eos" if emitted.token in self.settings.eos else "stop")
        else:
            super()._deliver_token(job, emitted)


class EosIsAlwaysAStop(Scheduler):
    """An end-of-text token also ends requests that ignore it."""

    def _end_reason(self, job: RequestState, token: int) -> Ending | None:
        return "eos" if token in self.settings.eos else super()._end_reason(job, token)


class StepsRowByRow(Scheduler):
    """The batch is planned, then run one row at a time."""

    def _run_step(self, plan: Sequence[Row]) -> bool:
        worked = [super(StepsRowByRow, self)._run_step([row]) for row in plan]
        return all(worked)


class ZipsAnswersWithRows(Scheduler):
    """Answers are assumed to come in the order of the rows."""

    def _read_answer(self, plan: Sequence[Row], answer: Iterable[Emitted]) -> dict[int, Emitted]:
        read = super()._read_answer(plan, answer)
        return dict(zip([row.slot for row in plan if row.slot in read], read.values(), strict=True))


class TokenAfterCancel(Scheduler):
    """A token sampled in the step of the cancel is delivered."""

    def _advance(self, job: RequestState, row: Row, emitted: Emitted | None) -> None:
        cut = job.ending
        super()._advance(job, row, emitted)
        if cut is not None and emitted is not None:
            self._events.append(Token(job.request.id, len(job.tokens), emitted))


class LengthBeatsStop(Scheduler):
    """A stop token that is the last one allowed is reported as length."""

    def _end_reason(self, job: RequestState, token: int) -> Ending | None:
        over = len(job.tokens) == job.request.limit
        return "length" if over else super()._end_reason(job, token)


class LogsOnlyAboveOne(Scheduler):
    """A batch of one row is not logged."""

    def _record_step(self, rows: int) -> None:
        quiet = self._logged_width
        self._logged_width = 1 if rows == 1 else quiet
        super()._record_step(rows)


class LogsRequestsNotRows(Scheduler):
    """The log line reports the number of requests, not of rows."""

    def _record_step(self, rows: int) -> None:
        super()._record_step(len(self._requests) if rows else 0)


class SaysAWidthOnce(Scheduler):
    """After a pause the same width is not logged again."""

    def _record_step(self, rows: int) -> None:
        before = self._logged_width
        super()._record_step(rows)
        self._logged_width = rows or before


class LogsEveryStep(Scheduler):
    """The width is logged in every step, changed or not."""

    def _record_step(self, rows: int) -> None:
        super()._record_step(rows)
        self._logged_width = 0


class ChunkIsHalved(Scheduler):
    """Prompts are computed in smaller chunks when others decode."""

    def _token_count(self, job: RequestState) -> int:
        count = super()._token_count(job)
        return max(1, count // 2) if len(self._live) > 1 else count


def with_changed_request(job: RequestState, **changes: Any) -> RequestState:
    """Return a copy of a job with a changed request."""
    return replace(job, request=replace(job.request, **changes))
