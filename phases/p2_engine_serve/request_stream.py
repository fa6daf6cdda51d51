"""One request's reply: events arrive on the engine thread, pieces go to the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from phases.p0_scheduler.increment import (
    Emitted,
    Ended,
    EngineLoop,
    Event,
    FromOutside,
    Request,
    Token,
)
from phases.p2_engine_serve.api_error import ApiError
from phases.p2_engine_serve.stop_text import StreamedText


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a reply."""

    text: str
    """The text to send now; may be empty."""
    emitted: Emitted | None
    """The token, or None for text that was pending until the end."""
    offset: int
    """Characters decoded before it, sent or pending."""


@dataclass(frozen=True, slots=True)
class ReplyEnd:
    """The end of a reply."""

    reason: str
    """`stop` or `length`; empty if the request failed."""
    prompt: int
    completion: int
    cached: int
    """Prompt tokens that were not computed."""
    failed: ApiError | None = None

    @property
    def usage(self) -> dict[str, object]:
        """The usage in OpenAI's format."""
        return {"prompt_tokens": self.prompt, "completion_tokens": self.completion,
                "total_tokens": self.prompt + self.completion,
                "prompt_tokens_details": {"cached_tokens": self.cached}}


class Reply:
    """The reply to one request, read once by its handler.

    Stop strings are searched on the engine thread, between two steps, so that no token is computed
    after one.
    """

    def __init__(self, request: Request, text: StreamedText, driver: EngineLoop) -> None:
        """Bind the reply to the caller's event loop, where its pieces are read."""
        self.request, self.text = request, text
        self._engine_loop, self._loop = driver, asyncio.get_running_loop()
        self._queue: asyncio.Queue[Piece | ReplyEnd] = asyncio.Queue()
        self._completion_tokens = 0
        self._stopped = False

    def send(self) -> None:
        """Submit the request, or raise like `Scheduler.submit`."""
        self._engine_loop.send(self.request, self.on_event)

    def cancel_request(self, reason: FromOutside = "disconnect") -> None:
        """Cancel the request if it has not ended."""
        self._engine_loop.cancel(self.request.id, reason)

    async def pieces(self) -> AsyncIterator[Piece | ReplyEnd]:
        """Yield the pieces and at last the `ReplyEnd`."""
        while True:
            piece = await self._queue.get()
            yield piece
            if isinstance(piece, ReplyEnd):
                return

    # On the engine thread.

    def on_event(self, event: Event) -> None:
        """Process an event; raise if the event loop is closed, which cancels the request."""
        if isinstance(event, Ended):
            self._on_end(event)
        elif not self._stopped:
            self._on_token(event)

    def _on_token(self, event: Token) -> None:
        emitted = event.emitted
        self._completion_tokens += 1
        offset = self.text.decoded_chars
        self._post_to_loop(Piece(self._visible_text(emitted), emitted, offset))
        if self.text.stopped:
            self._stopped = True
            self.cancel_request("stop")

    def _visible_text(self, emitted: Emitted) -> str:
        """Return the text to send after a token; a token that ends the request has none."""
        return "" if emitted.token in self.request.stop_ids else self.text.push(emitted.token)

    def _on_end(self, event: Ended) -> None:
        rest = self.text.finish()
        if rest:
            self._post_to_loop(Piece(rest, None, self.text.decoded_chars))
        self._post_to_loop(ReplyEnd(self._finish_reason(event), len(self.request.tokens),
                                    self._completion_tokens, event.reused, self._end_error(event)))

    def _finish_reason(self, event: Ended) -> str:
        if self.text.stopped:
            return "stop"
        return {"eos": "stop", "stop": "stop", "length": "length"}.get(event.reason, "")

    def _end_error(self, event: Ended) -> ApiError | None:
        if self.text.stopped or event.reason in ("eos", "stop", "length"):
            return None
        if event.reason == "error":
            return ApiError(500, f"the engine failed on this request: {event.detail}",
                            code="engine_error")
        return ApiError(503, "the request was cancelled because the server is shutting down",
                        code="cancelled")

    def _post_to_loop(self, piece: Piece | ReplyEnd) -> None:
        put: Callable[[Piece | ReplyEnd], None] = self._queue.put_nowait
        self._loop.call_soon_threadsafe(put, piece)
