"""One streamed completion as a client received it: tokens, their times, and errors.

A server's output is untrusted; `EventReader` parses it within limits.
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
"""A larger number is not read as a count."""
MIN_LIVE_SHARE = 0.1
"""A live stream's tokens arrive over at least this share of the request's time; a buffered reply
arrives at its end."""


class BadResponse(Exception):
    """A response that cannot be used; the message is one clause."""


@dataclass(frozen=True)
class Token:
    """A token's name, its log-probability, and those of other tokens in its place."""

    name: str
    """The id if the server sends it, else the text."""
    logprob: float | None = None
    top: Mapping[str, float] = field(default_factory=dict)


@dataclass
class Stream:
    """The response to one request."""

    started: float = 0.0
    ended: float = 0.0
    tokens: list[Token] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """When each token arrived, in seconds of the client's clock."""
    finish_reason: str | None = None
    reported_count: int | None = None
    """The number of tokens that the server counts."""
    batch: int | None = None
    """The largest batch that the response itself reports."""
    is_event_stream: bool = False
    """Whether the content type declares an event stream."""
    status: int | None = None
    """The HTTP status, if the server refused the request."""
    trouble: str | None = None
    """Why the stream is incomplete or unusable, or None."""

    @property
    def names(self) -> list[str]:
        """Return the tokens' names."""
        return [token.name for token in self.tokens]

    @property
    def is_live(self) -> bool:
        """Whether the tokens arrived one after another, not buffered."""
        if not self.is_event_stream or len(self.times) < 2:
            return False
        return 0 < self.times[-1] - self.times[0] >= MIN_LIVE_SHARE * (self.ended - self.started)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens a second after the first; None for a stream that is not live."""
        if not self.is_live:
            return None
        first, last = self.times[0], self.times[-1]
        return sum(time > first for time in self.times) / (last - first)


@dataclass
class EventReader:
    """Parses a server-sent event stream and fills a `Stream`."""

    stream: Stream
    limit: int
    """The requested number of tokens."""
    path: Sequence[str] = ()
    """The keys that lead to the batch size in an event."""
    done: bool = False
    texts: list[tuple[Token, float]] = field(default_factory=list)
    """Pieces of text without log-probabilities."""
    _rest: bytes = b""
    _data: list[bytes] = field(default_factory=list)
    _event_size: int = 0
    _size: int = 0

    def feed(self, raw: bytes, now: float) -> None:
        """Parse the bytes of one read; raise `BadResponse` if they are no event stream."""
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
            raise BadResponse("the server reported an error: "
                              f"{quote_text(error_text(event['error']))}")
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
        """Close the stream; raise `BadResponse` if it is incomplete or its tokens are unknown."""
        stream = self.stream
        has_names = bool(stream.tokens)
        if not has_names:
            stream.tokens = [token for token, _ in self.texts]
            stream.times = [time for _, time in self.texts]
        seen = len(stream.tokens)
        if stream.finish_reason is None:
            raise BadResponse(f"the stream broke off after {seen} tokens")
        counted = stream.reported_count
        if counted is None and stream.finish_reason == "length":
            counted = self.limit
        if not has_names and counted is None:
            raise BadResponse("the server sends neither its tokens nor their number")
        # some servers count an end token, but none sends it
        if counted is not None and counted - seen not in ((0, 1) if has_names else (0,)):
            raise BadResponse(f"the stream shows {seen} tokens, but the server counts {counted}")


def parse_tokens(logprobs: Any) -> Iterator[Token]:
    """Yield an event's tokens from `logprobs`, in its older form of lists or with `content`."""
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
        values, tops = (logprobs[key] if logprobs.get(key) is not None else [None] * len(names)
                        for key in ("token_logprobs", "top_logprobs"))
        for name, value, top in zip(names, values, tops, strict=True):
            yield Token(_format_token_name(name), _finite_or_none(value), {
                rival: known for rival, raw in (top or {}).items()
                if (known := _finite_or_none(raw)) is not None})
    except (AttributeError, TypeError, ValueError):
        raise BadResponse("an event's logprobs are malformed") from None


def error_text(error: Any) -> str:
    """Return an error's message, or an empty text if it is no string or number."""
    message = error.get("message") if isinstance(error, dict) else error
    return str(message) if isinstance(message, str | int | float) else ""


def _token_name(entry: Mapping[str, Any]) -> str:
    number = entry.get("id")
    return _format_token_name(number if _is_count(number) else entry.get("token"))


def _format_token_name(token: Any) -> str:
    """Return a text, or `#` and an id; raise `TypeError` for anything else."""
    if _is_count(token):
        return f"#{token}"
    if not isinstance(token, str):
        raise TypeError
    return token


def _finite_or_none(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an int that exceeds every float
        return None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_COUNT


def _parse_json(data: bytes) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        raise BadResponse("an event is not JSON: "
                          f"{quote_text(data.decode('utf-8', 'replace'))}") from None
    if not isinstance(event, dict):
        raise BadResponse("an event is not an object")
    return event
