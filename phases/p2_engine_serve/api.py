"""FastAPI routes over a service, and the checks made before a body is parsed."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from phases.p2_engine_serve.api_error import ApiError
from phases.p2_engine_serve.request_schema import ChatRequest, CompletionRequest, T, parse
from phases.p2_engine_serve.request_stream import Piece, Reply, ReplyEnd
from phases.p2_engine_serve.response_format import ReplyFormat
from phases.p2_engine_serve.service import Service, client_left_error

BODY_TIMEOUT = 30.0
"""Seconds that a client may take to send its body."""
LARGE_BODY_BYTES = 1 << 16
"""Bytes above which a body is parsed outside of the event loop, one at a time."""
MAX_LARGE_BODIES = 16
"""Large bodies that may be in memory before they are accepted or refused."""
OpenReply = tuple[Reply, ReplyFormat]


class EventStream(Response):
    """A reply as server-sent events, one chunk for each piece."""

    def __init__(self, opened: OpenReply, *, usage: bool) -> None:
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        del self.headers["content-length"]
        self._reply, self._include_usage = opened, usage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send every chunk as soon as it is available."""
        reply, reply_format = self._reply
        async with cancel_on_disconnect(receive, reply):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._send(send, *reply_format.first_chunks())
            async for piece in reply.pieces():
                await self._send(send, *self._chunks(reply_format, piece))
            await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    def _chunks(self, reply_format: ReplyFormat, piece: Piece | ReplyEnd) -> list[dict[str, Any]]:
        if isinstance(piece, Piece):
            chunk = reply_format.chunk(piece)
            return [] if chunk is None else [chunk]
        if piece.failed is not None:
            return [piece.failed.body]
        return reply_format.last_chunks(piece, usage=self._include_usage)

    @staticmethod
    async def _send(send: Send, *chunks: dict[str, Any]) -> None:
        if chunks:
            body = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
            await send({"type": "http.response.body", "body": body, "more_body": True})


class Api:
    """The routes of one service."""

    stream = EventStream

    def __init__(self, service: Service) -> None:
        self.service = service
        self._large_bodies = set[int]()  # requests whose large body is not yet accepted or refused

    def app(self) -> FastAPI:
        """Return the application; the caller closes the service."""
        app = FastAPI(title="rowtwin", docs_url=None, redoc_url=None, openapi_url=None,
                      redirect_slashes=False)
        app.add_exception_handler(ApiError, _handle_api_error)
        app.add_exception_handler(HTTPException, _handle_http_error)
        app.add_exception_handler(Exception, _handle_server_error)
        for path, endpoint in (("/v1/models", self.models), ("/health", self.health),
                               ("/metrics", self.metrics)):
            app.add_api_route(path, endpoint, methods=["GET", "HEAD"], response_model=None)
        for path, endpoint in (("/v1/completions", self.completions),
                               ("/v1/chat/completions", self.chat)):
            app.add_api_route(path, endpoint, methods=["POST"], response_model=None)
        return app

    async def models(self, request: Request) -> Response:
        """Return the name of the served model."""
        self._check_key(request)
        one = {"id": self.service.terms.name, "object": "model", "created": self.service.started_at,
               "owned_by": "rowtwin", "max_model_len": self.service.capacity}
        return JSONResponse({"object": "list", "data": [one]})

    async def health(self) -> Response:
        """Return 200 while requests are accepted, 503 with the reason afterwards."""
        trouble = self.service.unavailable_reason
        return JSONResponse({"status": trouble or "ok"}, 503 if trouble else 200)

    async def metrics(self) -> Response:
        """Return the metrics in Prometheus's text format."""
        return Response(self.service.metrics.text(), media_type="text/plain; version=0.0.4")

    async def completions(self, request: Request) -> Response:
        """Continue a text."""
        async with self._read_request(request, CompletionRequest) as params:
            opened = await self.service.complete(params, request.is_disconnected)
        return await self._respond(request, params, opened)

    async def chat(self, request: Request) -> Response:
        """Write the next turn of a chat."""
        async with self._read_request(request, ChatRequest) as params:
            opened = await self.service.chat(params, request.is_disconnected)
        return await self._respond(request, params, opened)

    async def _respond(self, request: Request, params: CompletionRequest | ChatRequest,
                       opened: OpenReply) -> Response:
        if params.stream:
            options = params.stream_options
            return self.stream(opened, usage=options is not None and options.include_usage)
        return await self._respond_full(request, opened)

    async def _respond_full(self, request: Request, opened: OpenReply) -> Response:
        reply, reply_format = opened
        pieces: list[Piece] = []
        async with cancel_on_disconnect(request.receive, reply):
            async for piece in reply.pieces():
                if isinstance(piece, Piece):
                    pieces.append(piece)
                elif piece.failed is not None:
                    raise piece.failed
                else:
                    return JSONResponse(reply_format.full_reply(pieces, piece))
        raise AssertionError("a reply ended without a ReplyEnd")

    @asynccontextmanager
    async def _read_request(self, request: Request, kind: type[T]) -> AsyncIterator[T]:
        """Yield the parsed body, or raise `ApiError`; the block accepts the request."""
        self._check_key(request)
        _check_content_type(request)
        try:
            read = partial(parse, kind, await self._read_body(request))
            yield read() if id(request) not in self._large_bodies else \
                await self.service.body_reader.run(read, request.is_disconnected)
        finally:
            self._large_bodies.discard(id(request))

    async def _read_body(self, request: Request) -> bytes:
        """Read a body up to the limit, or raise `ApiError`."""
        most, body = self.service.terms.body, bytearray()
        announced = request.headers.get("content-length", "")
        if announced.isdigit() and int(announced[:20]) > most:
            raise _body_too_large(most)
        try:
            async with asyncio.timeout(BODY_TIMEOUT):
                async for part in request.stream():
                    body += part
                    if len(body) > most:
                        raise _body_too_large(most)
                    if len(body) > LARGE_BODY_BYTES:
                        self._count_large_body(id(request))
        except TimeoutError:
            raise ApiError(408, f"the body did not arrive within {BODY_TIMEOUT:.0f} seconds",
                           code="timeout") from None
        except ClientDisconnect:
            raise client_left_error() from None
        return bytes(body)

    def _count_large_body(self, request: int) -> None:
        if request not in self._large_bodies and len(self._large_bodies) >= MAX_LARGE_BODIES:
            raise ApiError(
                429,
                f"{MAX_LARGE_BODIES} bodies of more than {LARGE_BODY_BYTES:,} bytes are being read "
                f"already, which is the limit", code="queue_full", retry_after=1)
        self._large_bodies.add(request)

    def _check_key(self, request: Request) -> None:
        key = self.service.terms.key
        if key is None:
            return
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        raw = shown.lstrip(" ").encode("latin-1")  # the bytes that were sent
        known = [hmac.compare_digest(raw, one) for one in _key_encodings(key)]
        if scheme.lower() != "bearer" or not any(known):
            raise ApiError(401, "the API key is missing or wrong", code="invalid_api_key")


def _check_content_type(request: Request) -> None:
    """Refuse a body whose headers do not announce plain JSON."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "the body must be application/json", code="content_type")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ApiError(415, "the body must not be compressed", code="content_encoding")


def _key_encodings(key: str) -> list[bytes]:
    """Return a key's bytes in UTF-8 and, where possible, Latin-1; clients send either."""
    encodings = [key.encode()]
    with suppress(UnicodeEncodeError):
        encodings.append(key.encode("latin-1"))
    return encodings


@asynccontextmanager
async def cancel_on_disconnect(receive: Receive, reply: Reply) -> AsyncIterator[None]:
    """Cancel the reply's request when its client disconnects or the block ends early."""
    gone = asyncio.create_task(_wait_for_disconnect(receive, reply))
    try:
        yield
    finally:
        gone.cancel()
        reply.cancel_request()


async def _wait_for_disconnect(receive: Receive, reply: Reply) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    reply.cancel_request()


def _body_too_large(most: int) -> ApiError:
    return ApiError(413, f"the body has more than the limit of {most:,} bytes",
                    code="body_too_large")


async def _handle_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body, error.status, headers=error.headers)


async def _handle_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    where = f"{request.method[:20]} {request.url.path[:200]}"
    response = ApiError(error.status_code, f"{where}: {error.detail}", code="no_such_route")
    return JSONResponse(response.body, error.status_code, headers=error.headers)


async def _handle_server_error(request: Request, error: Exception) -> Response:
    """Return 500 for a bug of the server; the log has its traceback."""
    response = ApiError(500, "the server failed on this request", code="internal_error")
    return JSONResponse(response.body, response.status)
