"""What HTTP clients ask of a server and are answered, field by field."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from typing import Any

from falsifiers.bisect.events.log import Event, EventLog, override_methods

HEADERS = ("content-type", "retry-after", "allow")
VARYING_FIELDS = ("id", "created")
"""Fields that are another in each reply."""
_EXCHANGE: ContextVar[HttpExchange | None] = ContextVar("talk", default=None)


def current_exchange() -> HttpExchange | None:
    """Return the HTTP request that this code answers, or None."""
    return _EXCHANGE.get()


class HttpExchange:
    """One HTTP request, and what it is answered."""

    def __init__(self, log: EventLog, scope: Any) -> None:
        log.asked += 1
        self.log, self.number = log, log.asked
        self.asked = f"{scope['method']} {scope['path']}"
        self.arrival = log.runs, log.tick
        self.id: str | None = None
        """Of the scheduler's request that it leads to."""
        self._pieces = self._chunks = 0
        self._kind, self._body = "", b""
        self.note(f"asks {self.asked}")

    def note_accepted(self) -> None:
        """Take note that the scheduler took its request."""
        self.note("is accepted")

    def note_piece(self, piece: Any) -> None:
        """Take note of a part of the reply, at the step that made it."""
        if hasattr(piece, "offset"):
            self._pieces += 1
            token = "" if piece.emitted is None else \
                f" with token {piece.emitted.token} at {piece.emitted.logprob:.9g}"
            self.note(f"is shown {piece.text!r}{token}")
            return
        self._pieces = -1  # from now on all that was heard counts
        failed = "" if piece.failed is None else f" for {piece.failed}"
        self.note(f"is told to end by {piece.reason!r}{failed}: {piece.prompt} tokens asked, "
                  f"{piece.completion} answered, {piece.cached} cached")

    def note_sent(self, message: Any) -> None:
        """Take note of a part of the answer, before it leaves."""
        if message["type"] == "http.response.start":
            named = {name.decode(): value.decode() for name, value in message.get("headers", ())}
            self._kind = named.get("content-type", "")
            self.note(f"is answered {message['status']} to {self.asked}")
            for name in HEADERS:
                if name in named:
                    self.note(f"has the header {name}: {named[name]}")
            return
        self._body += message.get("body", b"")
        last = not message.get("more_body", False)
        if last or "event-stream" in self._kind:
            for what in self._describe_body(self._body.decode("utf-8", "replace")):
                self.note(what)
            self._body = b""
        if last:
            self.note("has its whole answer")

    def note(self, what: str) -> None:
        """Note an event under the scheduler's request, if there is one."""
        watch = self.log.watchers.get(self.id or "")
        if watch is None:
            run, tick = self.arrival
            event = Event(run, None, f"HTTP request {self.number}", None, what)
            self.log.note(event, self.number, tick=tick)
            return
        name, heard = watch.names[self.id], watch.deliveries.get(self.id or "", [])
        at = heard[:self._pieces][-1:] if self._pieces >= 0 else heard[-1:]
        run, step, slot, tick = watch.run, 0, None, self.arrival[1]
        if at:
            step, slot, tick = at[0].step, at[0].slot, at[0].tick
        self.log.note(Event(run, step, name, slot, what), self.number, tick=tick)

    def _describe_body(self, text: str) -> Iterator[str]:
        if "event-stream" in self._kind:
            for line in text.split("\n\n"):
                if line:
                    self._chunks += 1
                    yield from _describe_json(
                        line.removeprefix("data: "), f"chunk {self._chunks}: "
                    )
        elif "json" in self._kind:
            yield from _describe_json(text, "")
        else:
            lines = [line for line in text.splitlines() if "_created" not in line]
            yield from (f"tells {line}" for line in lines if not line.startswith("#"))


def _describe_json(text: str, where: str) -> Iterator[str]:
    try:
        found = json.loads(text)
    except ValueError:
        yield f"{where}tells {text!r}"
        return
    for path, value in iter_leaves(found):
        if path.rpartition(".")[2] not in VARYING_FIELDS:
            yield f"{where}tells {path} {value!r}"


def iter_leaves(found: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value of a JSON text with the names that lead to it."""
    within = found.items() if isinstance(found, dict) else \
        enumerate(found) if isinstance(found, list) else None
    if not within:
        yield path, found
        return
    for name, value in within:
        yield from iter_leaves(value, f"{path}.{name}" if path else str(name))


class RecordingApp:
    """An application whose requests and answers are noted."""

    def __init__(self, log: EventLog, app: Any) -> None:
        self.log, self.app = log, app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one connection."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        asking = HttpExchange(self.log, scope)
        _EXCHANGE.set(asking)  # each request has a task, and so a context, of its own

        async def told(message: Any) -> None:
            asking.note_sent(message)
            await send(message)

        await self.app(scope, receive, told)


def record_api(log: EventLog, part: Any) -> type:
    """Return an API whose requests and answers are noted."""
    return override_methods(part, app=lambda self: RecordingApp(log, part.app(self)))


def record_reply(log: EventLog, part: Any) -> type:
    """Return a reply that notes what it tells its handler."""
    def made(self: Any, request: Any, *rest: Any) -> None:
        if (asking := current_exchange()) is not None:
            asking.id = request.id
        part.__init__(self, request, *rest)

    def send(self: Any) -> None:
        part.send(self)
        if (asking := current_exchange()) is not None:
            asking.note_accepted()

    async def pieces(self: Any) -> AsyncIterator[Any]:
        async for piece in part.pieces(self):
            if (asking := current_exchange()) is not None:
                asking.note_piece(piece)
            yield piece

    return override_methods(part, __init__=made, send=send, pieces=pieces)
