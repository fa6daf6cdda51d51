"""One streamed completion as a client saw it: tokens, when each came, and what went wrong.

What a server sends is hostile until it has been checked; `Reader` takes it apart within limits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from falsifiers.witness.rules import quote_text

MAX_EVENT_BYTES = 1 << 18
MAX_STREAM_BYTES = 64 << 20
MAX_COUNT = 1 << 31
"""A larger number counts nothing."""
MIN_LIVE_SHARE = 0.1
"""A live stream's tokens come over at least this part of the request's time; a reply that is
held back comes all at its end."""


class BadResponse(Exception):
    """An answer that cannot be used; the message is one clause."""


@dataclass(frozen=True)
class Token:
    """A token's name, with what the server said of its rivals."""

    name: str
    """The id where the server tells it, else the text."""
    logprob: float | None = None
    top: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Stream:
    """What came back for one request."""

    started: float = 0.0
    ended: float = 0.0
    tokens: list[Token] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """When each token came, on the client's clock."""
    finish_reason: str | None = None
    reported_count: int | None = None
    """How many tokens the server says it made."""
    batch: int | None = None
    """The largest batch that the response itself told of."""
    is_event_stream: bool = False
    """The server declared a live stream: an event stream, by its content type."""
    status: int | None = None
    """The status of an answer that refused the request."""
    trouble: str | None = None
    """Why this is not a whole stream, if it is not."""

    @property
    def names(self) -> list[str]:
        """Return the tokens' names."""
        return [token.name for token in self.tokens]

    @property
    def is_live(self) -> bool:
        """Tell whether the tokens came as they were made."""
        if not self.is_event_stream or len(self.times) < 2:
            return False
        return 0 < self.times[-1] - self.times[0] >= MIN_LIVE_SHARE * (self.ended - self.started)

    @property
    def tokens_per_second(self) -> float | None:
        """Return the tokens a second after the first to come, of a live stream alone."""
        if not self.is_live:
            return None
        first, last = self.times[0], self.times[-1]
        return sum(time > first for time in self.times) / (last - first)


@dataclass
class EventReader:
    """Takes a server-sent event stream apart and fills a `Stream`."""

    stream: Stream
    limit: int
    """The tokens that were asked for."""
    path: Sequence[str] = ()
    """Where in an event the server tells its batch, key by key."""
    done: bool = False
    texts: list[tuple[Token, float]] = field(default_factory=list)
    """Texts that came without a token of their own."""
    _rest: bytes = b""
    _data: list[bytes] = field(default_factory=list)
    _event_size: int = 0
    _size: int = 0

    def feed(self, raw: bytes, now: float) -> None:
        """Take what one read brought; raise `Hostile` when it is no such stream."""
        self._size += len(raw)
        if self._size > MAX_STREAM_BYTES:
            raise BadResponse(f"the stream is longer than {MAX_STREAM_BYTES >> 20} MiB")
        *lines, self._rest = (self._rest + raw).split(b"\n")
        for line in lines:
            self._read_line(line.rstrip(b"\r"), now)
        if len(self._rest) + self._event_size > MAX_EVENT_BYTES:
            raise BadResponse(f"an event is longer than {MAX_EVENT_BYTES >> 10} KiB")

    def _read_line(self, line: bytes, now: float) -> None:
        if line.startswith(b"data:"):
            self._data.append(line[5:].strip())
            self._event_size += len(line)
        elif not line and self._data:
            self._read_event(b"\n".join(self._data), now)
            self._data.clear()
            self._event_size = 0

    def _read_event(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self.done = True
            return
        event = _parse_json(data)
        if event.get("error"):
            raise BadResponse(
                f"the server reported an error: {quote_text(error_text(event['error']))}"
            )
        self._read_usage(event)
        choices = event.get("choices") or []
        if not isinstance(choices, list) or not all(isinstance(c, dict) for c in choices):
            raise BadResponse("an event's choices are not a list of objects")
        for choice in choices[:1]:
            self._read_choice(choice, now)

    def _read_usage(self, event: Mapping[str, Any]) -> None:
        usage = event.get("usage")
        counted = usage.get("completion_tokens") if isinstance(usage, dict) else None
        if _is_count(counted):
            self.stream.reported_count = counted
        value: Any = event if self.path else None
        for key in self.path:
            value = value.get(key) if isinstance(value, dict) else None
        if _is_count(value):
            self.stream.batch = max(value, self.stream.batch or 0)

    def _read_choice(self, choice: Mapping[str, Any], now: float) -> None:
        stream, text = self.stream, choice.get("text") or ""
        reason = choice.get("finish_reason")
        if not isinstance(text, str) or not isinstance(reason, str | None):
            raise BadResponse("an event's text or finish_reason is not a string")
        stream.finish_reason = reason or stream.finish_reason
        found = list(parse_tokens(choice.get("logprobs")))
        if not found and text:
            self.texts.append((Token(text), now))
        stream.tokens += found
        stream.times += [now] * len(found)
        if max(len(stream.tokens), len(self.texts)) > self.limit:
            raise BadResponse(f"the server sent more than the {self.limit} tokens it was asked for")

    def end(self) -> None:
        """Close the stream; raise `Hostile` when it is not whole or its tokens cannot be told."""
        stream = self.stream
        told = bool(stream.tokens)
        if not told:
            stream.tokens = [token for token, _ in self.texts]
            stream.times = [time for _, time in self.texts]
        seen = len(stream.tokens)
        if stream.finish_reason is None:
            raise BadResponse(f"the stream broke off after {seen} tokens")
        counted = stream.reported_count
        if counted is None and stream.finish_reason == "length":
            counted = self.limit
        if not told and counted is None:
            raise BadResponse("the server tells neither its tokens nor their number")
        # an end token is counted by some servers and sent by none
        if counted is not None and counted - seen not in ((0, 1) if told else (0,)):
            raise BadResponse(f"the stream shows {seen} tokens, but the server counts {counted}")


def parse_tokens(logprobs: Any) -> Iterator[Token]:
    """Yield an event's tokens from either form of `logprobs`: the older lists, or `content`."""
    if not isinstance(logprobs, dict):
        return
    content = logprobs.get("content")
    try:
        if content is not None:
            for entry in content:
                yield Token(_token_name(entry), _finite_or_none(entry.get("logprob")), {
                    _token_name(rival): value for rival in entry.get("top_logprobs") or []
                    if (value := _finite_or_none(rival.get("logprob"))) is not None})
            return
        if not isinstance(names := logprobs.get("tokens") or [], list):
            raise TypeError
        own, tops = (logprobs[key] if logprobs.get(key) is not None else [None] * len(names)
                     for key in ("token_logprobs", "top_logprobs"))
        for name, value, top in zip(names, own, tops, strict=True):
            yield Token(_format_token_name(name), _finite_or_none(value), {
                rival: known for rival, told in (top or {}).items()
                if (known := _finite_or_none(told)) is not None})
    except (AttributeError, TypeError, ValueError):
        raise BadResponse("an event's logprobs are malformed") from None


def error_text(error: Any) -> str:
    """Return what an error says; empty where that is no word or number."""
    told = error.get("message") if isinstance(error, dict) else error
    return str(told) if isinstance(told, str | int | float) else ""


def _token_name(entry: Mapping[str, Any]) -> str:
    told = entry.get("id")
    return _format_token_name(told if _is_count(told) else entry.get("token"))


def _format_token_name(told: Any) -> str:
    """Return a token's name, a number for an id; raise `TypeError` for what names no token."""
    if _is_count(told):
        return f"#{told}"
    if not isinstance(told, str):
        raise TypeError
    return told


def _finite_or_none(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # a whole number beyond every float
        return None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_COUNT


def _parse_json(data: bytes) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        raise BadResponse(
            f"an event is not JSON: {quote_text(data.decode('utf-8', 'replace'))}"
        ) from None
    if not isinstance(event, dict):
        raise BadResponse("an event is not an object")
    return event
