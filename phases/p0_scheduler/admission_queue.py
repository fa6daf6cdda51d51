"""The thread-safe half of the scheduler: methods that may be called while a step runs."""

from __future__ import annotations

import threading

from engine.errors import InputError
from phases.p0_scheduler.protocol import ClosedError, Ending, FromOutside, QueueFullError, Request
from phases.p0_scheduler.request_state import RequestState, Settings


class AdmissionQueue:
    """Accepts requests up to a bound and marks those that end; it never calls the engine."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._lock = threading.Lock()  # guards the jobs, their endings and _closed
        self._requests: dict[str, RequestState] = {}  # in order of submission and admission
        self._closed = ""

    @property
    def idle(self) -> bool:
        """Whether no accepted request is left to serve."""
        return not self._requests

    @property
    def close_reason(self) -> str:
        """Why requests are refused; empty while they are accepted."""
        return self._closed

    def submit(self, request: Request) -> None:
        """Accept a request, or raise and store nothing.

        Raises `QueueFullError`, `ClosedError`, or `InputError` for one that cannot be served.
        """
        with self._lock:
            self._check_request(request)
            self._requests[request.id] = RequestState(request)

    def cancel(self, id: str, reason: FromOutside = "cancel") -> bool:
        """End a request from outside, at any stage; return False if it had already ended.

        No later step names it. A token that the running step samples for it is dropped.
        """
        with self._lock:
            job = self._requests.get(id)
        return job is not None and self._mark_ended(job, reason)

    def abort(self, reason: FromOutside = "cancel") -> None:
        """End every accepted request from outside."""
        for job in self._all_requests():
            self._mark_ended(job, reason)

    def close(self, why: str = "the server is shutting down") -> None:
        """Refuse further requests and serve the accepted ones; the first reason is stored."""
        with self._lock:
            self._closed = self._closed or why

    def _check_request(self, request: Request) -> None:
        most, context = self.settings.slots + self.settings.queue, self.settings.context
        need = len(request.tokens) + request.limit - 1  # the last token is never fed back
        if self._closed:
            raise ClosedError(f"request {request.id!r} is refused: {self._closed}")
        if context is not None and need > context:
            raise InputError(f"request {request.id!r} may need {need} tokens of context, "
                             f"but a slot has {context}")
        if request.id in self._requests:
            raise InputError(f"request {request.id!r} is already in the scheduler: use another id")
        if len(self._requests) >= most:
            raise QueueFullError(f"request {request.id!r} is refused: the limit of {most} running "
                                 f"and waiting requests is reached; send it again later")

    def _all_requests(self) -> list[RequestState]:
        """Return every accepted request whose end was not reported, the oldest first."""
        with self._lock:
            return list(self._requests.values())

    def _waiting_requests(self) -> list[RequestState]:
        return [job for job in self._all_requests() if job.seat is None and job.ending is None]

    def _mark_ended(self, job: RequestState, reason: Ending, detail: str = "") -> bool:
        """Set a job's ending unless it has one; the next sweep releases it."""
        with self._lock:
            if job.ending is not None:
                return False
            job.ending, job.detail = reason, detail
            return True

    def _remove(self, job: RequestState) -> None:
        with self._lock:
            del self._requests[job.request.id]
