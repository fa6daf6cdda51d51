"""Record each HTTP request to a server and its response, field by field."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from typing import Any

from falsifiers.bisect.events.log import Event, EventLog, override_methods

HEADERS = ("content-type", "retry-after", "allow")
VARYING_FIELDS = ("id", "created")
"""Fields that differ in every response."""
_EXCHANGE: ContextVar[HttpExchange | None] = ContextVar("http_exchange", default=None)


def current_exchange() -> HttpExchange | None:
    """Return the HTTP request that this task answers, or None."""
    return _EXCHANGE.get()


class HttpExchange:
    """One HTTP request and its response."""

    def __init__(self, log: EventLog, scope: Any) -> None:
        log.http_requests += 1
        self.log, self.number = log, log.http_requests
        self.target = f"{scope['method']} {scope['path']}"
        self.arrival = log.runs, log.tick
        self.id: str | None = None
        """The id of the scheduler's request that it submits."""
        self._pieces = self._chunks = 0
        self._kind, self._body = "", b""
        self.note(f"asks {self.target}")

    def note_piece(self, piece: Any) -> None:
        """Record a piece of the reply, at the step that produced it."""
        if hasattr(piece, "offset"):
            self._pieces += 1
            token = "" if piece.emitted is None else \
                f" with token {piece.emitted.token} at {piece.emitted.logprob:.9g}"
            self.note(f"is shown {piece.text!r}{token}")
            return
        self._pieces = -1  # events from now on belong to the last delivery
        failed = "" if piece.failed is None else f" for {piece.failed}"
        self.note(f"ends its reply by {piece.reason!r}{failed}: {piece.prompt} prompt tokens, "
                  f"{piece.completion} completion tokens, {piece.cached} cached")

    def note_sent(self, message: Any) -> None:
        """Record an ASGI message of the response, before it is sent."""
        if message["type"] == "http.response.start":
            headers = {name.decode(): value.decode() for name, value in message.get("headers", ())}
            self._kind = headers.get("content-type", "")
            self.note(f"is answered {message['status']} to {self.target}")
            for name in HEADERS:
                if name in headers:
                    self.note(f"has the header {name}: {headers[name]}")
            return
        self._body += message.get("body", b"")
        last = not message.get("more_body", False)
        if last or "event-stream" in self._kind:
            for what in self._describe_body(self._body.decode("utf-8", "replace")):
                self.note(what)
            self._body = b""
        if last:
            self.note("has its complete answer")

    def note(self, what: str) -> None:
        """Record an event, under the scheduler's request if there is one."""
        watch = self.log.watchers.get(self.id or "")
        if watch is None:
            run, tick = self.arrival
            event = Event(run, None, f"HTTP request {self.number}", None, what)
            self.log.note(event, self.number, tick=tick)
            return
        name, deliveries = watch.names[self.id], watch.deliveries.get(self.id or "", [])
        last = deliveries[:self._pieces][-1:] if self._pieces >= 0 else deliveries[-1:]
        step, slot, tick = (last[0].step, last[0].slot, last[0].tick) if last else \
            (0, None, self.arrival[1])
        self.log.note(Event(watch.run, step, name, slot, what), self.number, tick=tick)

    def _describe_body(self, text: str) -> Iterator[str]:
        if "event-stream" in self._kind:
            for line in text.split("\n\n"):
                if line:
                    self._chunks += 1
                    yield from _describe_json(line.removeprefix("data: "),
                                              f"chunk {self._chunks}: ")
        elif "json" in self._kind:
            yield from _describe_json(text, "")
        else:
            lines = [line for line in text.splitlines() if "_created" not in line]
            yield from (f"returns {line}" for line in lines if not line.startswith("#"))


def _describe_json(text: str, where: str) -> Iterator[str]:
    try:
        data = json.loads(text)
    except ValueError:
        yield f"{where}returns {text!r}"
        return
    for path, value in iter_leaves(data):
        if path.rpartition(".")[2] not in VARYING_FIELDS:
            yield f"{where}returns {path} {value!r}"


def iter_leaves(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each leaf of a JSON document with its dotted path."""
    items = data.items() if isinstance(data, dict) else \
        enumerate(data) if isinstance(data, list) else None
    if not items:
        yield path, data
        return
    for name, value in items:
        yield from iter_leaves(value, f"{path}.{name}" if path else str(name))


class RecordingApp:
    """An ASGI application whose requests and responses are recorded."""

    def __init__(self, log: EventLog, app: Any) -> None:
        self.log, self.app = log, app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = HttpExchange(self.log, scope)
        _EXCHANGE.set(exchange)  # each request runs in its own task, and so in its own context

        async def record_and_send(message: Any) -> None:
            exchange.note_sent(message)
            await send(message)

        await self.app(scope, receive, record_and_send)


def record_api(log: EventLog, base: Any) -> type:
    """Return an API class whose requests and responses are recorded."""
    return override_methods(base, app=lambda self: RecordingApp(log, base.app(self)))


def record_reply(log: EventLog, base: Any) -> type:
    """Return a reply class that records the pieces it yields to its handler."""
    def init(self: Any, request: Any, *rest: Any) -> None:
        if (exchange := current_exchange()) is not None:
            exchange.id = request.id
        base.__init__(self, request, *rest)

    def send(self: Any) -> None:
        base.send(self)
        if (exchange := current_exchange()) is not None:
            exchange.note("is accepted")

    async def pieces(self: Any) -> AsyncIterator[Any]:
        async for piece in base.pieces(self):
            if (exchange := current_exchange()) is not None:
                exchange.note_piece(piece)
            yield piece

    return override_methods(base, __init__=init, send=send, pieces=pieces)
