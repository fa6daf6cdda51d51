"""Faulty servers: keys, locks, fields and shutdown; each class has one fault."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, Response

from phases.p0_scheduler.increment import (
    Counts,
    EngineLoop,
    QueueFullError,
    Request,
    RequestState,
    Scheduler,
)
from phases.p2_engine_serve.api import Api, EventStream, OpenReply
from phases.p2_engine_serve.api_error import ApiError
from phases.p2_engine_serve.metrics import Metrics
from phases.p2_engine_serve.request_schema import CommonRequest
from phases.p2_engine_serve.request_stream import Piece, Reply, ReplyEnd
from phases.p2_engine_serve.response_format import ChatFormat, ReplyFormat
from phases.p2_engine_serve.sampling import Sampling
from phases.p2_engine_serve.service import Service


class ReturnsEarlyForOne(Scheduler):
    """While one request is served no other gets a slot, so no batch forms."""

    def _next_requests(self) -> list[RequestState]:
        return [] if self._live else super()._next_requests()[:1]


class LocksTheStep(EngineLoop):
    """One lock is locked during every step and by every submit."""

    def __init__(self, *args: Any) -> None:
        self._step_lock = threading.Lock()
        super().__init__(*args)

    def send(self, request: Request, deliver: Any) -> None:
        with self._step_lock:
            super().send(request, deliver)

    def _step_once(self) -> None:
        if self.scheduler.idle:
            self._wake.wait()
            self._wake.clear()
        with self._step_lock:
            events = self.scheduler.step()
        if self._on_step is not None:
            self._on_step(self.scheduler.counts)
        self._dispatch(events)


class LeavesSlotsOfTheGone(Scheduler):
    """A disconnect ends the request but does not release its slot."""

    def _release_slot(self, job: RequestState) -> None:
        if job.ending != "disconnect" or job.seat is None:
            super()._release_slot(job)


class OneRequestAtATime(Api):
    """A handler locks the server until its reply is complete."""

    lock: asyncio.Lock | None = None

    async def completions(self, request: HttpRequest) -> Response:
        self.lock = self.lock or asyncio.Lock()
        async with self.lock:
            return await super().completions(request)


class WholeRepliesAreNotWatched(Api):
    """Only streams notice that their client disconnected."""

    async def _respond_full(self, request: HttpRequest, opened: OpenReply) -> Response:
        reply, reply_format = opened
        pieces = [piece async for piece in reply.pieces()]
        done = pieces.pop()
        assert isinstance(done, ReplyEnd)
        if done.failed is not None:
            raise done.failed
        return JSONResponse(reply_format.full_reply([p for p in pieces if isinstance(p, Piece)],
                                                    done))


class _EarlyUsageStream(EventStream):
    def _chunks(self, reply_format: ReplyFormat, piece: Piece | ReplyEnd) -> list[dict[str, Any]]:
        if isinstance(piece, ReplyEnd):
            piece = replace(piece, completion=piece.completion - 1)
        return super()._chunks(reply_format, piece)


class UsageOfAStreamMissesTheLast(Api):
    """A stream's usage is sent before its last token is counted."""

    stream = _EarlyUsageStream


class _SilentErrorStream(EventStream):
    def _chunks(self, reply_format: ReplyFormat, piece: Piece | ReplyEnd) -> list[dict[str, Any]]:
        if isinstance(piece, ReplyEnd) and piece.failed is not None:
            return []
        return super()._chunks(reply_format, piece)


class StreamsHideErrors(Api):
    """A stream that fails ends without an error."""

    stream = _SilentErrorStream


class UnknownFieldsAreDropped(Api):
    """An unknown field is silently dropped."""

    async def _read_body(self, request: HttpRequest) -> bytes:
        body = await super()._read_body(request)
        try:
            fields = json.loads(body)
        except (ValueError, RecursionError):
            return body
        if isinstance(fields, dict):
            fields.pop("best_off", None)
        return json.dumps(fields).encode()


class NumbersMayBeText(Api):
    """A number in quotes is accepted."""

    async def _read_body(self, request: HttpRequest) -> bytes:
        return (await super()._read_body(request)).replace(b'"max_tokens": "4"', b'"max_tokens": 4')


class OnlyAnnouncedSizesCount(Api):
    """A body without Content-Length may have any size."""

    async def _read_body(self, request: HttpRequest) -> bytes:
        if "content-length" in request.headers:
            return await super()._read_body(request)
        return await request.body()


class KeyByItsBeginning(Api):
    """A prefix of the key is accepted."""

    def _check_key(self, request: HttpRequest) -> None:
        shown = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not str(self.service.terms.key or "").startswith(shown):
            super()._check_key(request)


class ChatHasNoDoor(Api):
    """One route does not check the key."""

    def _check_key(self, request: HttpRequest) -> None:
        if "chat" not in request.url.path:
            super()._check_key(request)


class ChatIgnoresStops(Service):
    """One endpoint does not pass the stop strings on."""

    def _submit_request(self, params: CommonRequest, prompt: Sequence[int], field: str,
                        reply_format: type[ReplyFormat]) -> tuple[Reply, ReplyFormat]:
        if reply_format is ChatFormat:
            params = params.model_copy(update={"stop": None})
        return super()._submit_request(params, prompt, field, reply_format)


class EndTokensAreIgnored(Service):
    """No request ends at an end token."""

    def _submit_request(self, params: CommonRequest, *rest: Any) -> tuple[Reply, ReplyFormat]:
        return super()._submit_request(params.model_copy(update={"ignore_eos": True}), *rest)


class EndTokensAlwaysEnd(Service):
    """A request with ignore_eos ends at an end token too."""

    def _submit_request(self, params: CommonRequest, *rest: Any) -> tuple[Reply, ReplyFormat]:
        return super()._submit_request(params.model_copy(update={"ignore_eos": False}), *rest)


class SeedOfTheFirst(Service):
    """Every request draws with the first one's seed."""

    first: Sampling | None = None

    def sampling_options(self, params: CommonRequest) -> Sampling:  # type: ignore[override]
        sampling = Service.sampling_options(params)
        self.first = self.first or sampling
        return replace(sampling, seed=self.first.seed)


class SeedIsIgnored(Service):
    """Every request gets a random seed, even with a seed in its body."""

    def sampling_options(self, params: CommonRequest) -> Sampling:  # type: ignore[override]
        return Service.sampling_options(params.model_copy(update={"seed": None}))


class RepliesAreKept(Service):
    """A table of replies is never cleared."""

    def _submit_request(self, *args: Any) -> tuple[Reply, ReplyFormat]:
        opened = super()._submit_request(*args)
        self.kept = [*getattr(self, "kept", ()), opened[0]]
        return opened


class LimitIsNotChecked(Service):
    """A limit that does not fit is only refused by the scheduler."""

    def _max_tokens(self, params: CommonRequest, prompt: int, field: str) -> int:
        return params.limit or self.capacity - prompt + 1


class LongTextsAreEncoded(Service):
    """A text of any length is tokenised before its size is checked."""

    def _check_size(self, text: str, field: str) -> None:
        return


class FullQueueIsAFault(Service):
    """A full queue is answered with 400."""

    def _submit_request(self, *args: Any) -> tuple[Reply, ReplyFormat]:
        try:
            return super()._submit_request(*args)
        except ApiError as refused:
            status = 400 if refused.status == 429 else refused.status
            raise ApiError(status, refused.message, refused.field, refused.code) from None


class NoWordOfLater(Service):
    """The response of a full queue has no Retry-After."""

    def _submit_request(self, *args: Any) -> tuple[Reply, ReplyFormat]:
        try:
            return super()._submit_request(*args)
        except ApiError as refused:
            raise ApiError(refused.status, refused.message, refused.field, refused.code) from None


class QueueTakesOneMore(Scheduler):
    """A full queue accepts further requests."""

    def _check_request(self, request: Request) -> None:
        try:
            super()._check_request(request)
        except QueueFullError:
            return


class ShutdownCancels(Service):
    """Closing cancels the accepted requests."""

    def close(self) -> None:
        self.scheduler.abort()
        super().close()


class _RequestCountMetrics(Metrics):
    def observe(self, counts: Counts) -> None:
        super().observe(replace(counts, batch=counts.live + counts.waiting))


class MetricsCountRequests(Service):
    """The histogram counts requests instead of the rows of a step."""

    metrics_class = _RequestCountMetrics
