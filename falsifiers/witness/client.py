"""A client of one OpenAI-compatible server that never raises because of what the server does."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from falsifiers.judging.errors import SuiteError
from falsifiers.witness.rules import quote_text
from falsifiers.witness.stream import BadResponse, EventReader, Stream, error_text

SEED = 0
TOP_LOGPROBS = 5
"""Requested log-probabilities of each token; some servers refuse more."""
MAX_TEXT_BYTES = 8 << 20
MAX_NAME_CHARS = 1000
"""Largest length of the name of a server or a model."""
PAGE_TIMEOUT = 10.0
"""Time limit of a page, in seconds."""
OMITTED_FIELDS: tuple[frozenset[str], ...] = tuple(map(frozenset, (
    (), ("stream_options",), ("logprobs",), ("stream_options", "logprobs"))))
"""Fields to omit, tried in order, for servers that refuse unknown fields."""


@dataclass
class Client:
    """Sends requests to one server; create it with `open_client`."""

    url: str
    """The server's root, without `/v1`."""
    http: httpx.AsyncClient
    timeout: float
    field_path: Sequence[str] = ()
    clock: Callable[[], float] = time.perf_counter
    model: str = ""
    omitted_fields: frozenset[str] = field(default=OMITTED_FIELDS[0])
    server: str | None = None
    """The `Server` header of its responses."""
    api_key: str | None = None
    """Sent to the server's own address only."""

    def headers(self, url: str) -> dict[str, str]:
        """Return the additional headers for an address."""
        parts = [(at.scheme, at.host, at.port) for at in map(httpx.URL, (url, self.url))]
        is_server = self.api_key is not None and parts[0] == parts[1]
        return {"Authorization": f"Bearer {self.api_key}"} if is_server else {}

    def body(self, prompt: str, tokens: int) -> dict[str, Any]:
        """Return the request for one greedy, streamed completion of a fixed length."""
        fields = {"model": self.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0,
                  "seed": SEED, "stream": True, "ignore_eos": True, "logprobs": TOP_LOGPROBS,
                  "stream_options": {"include_usage": True}}
        omitted = self.omitted_fields | (set[str]() if self.model else {"model"})
        return {key: value for key, value in fields.items() if key not in omitted}

    async def complete(self, prompt: str, tokens: int) -> Stream:
        """Stream one completion; errors are stored in its `trouble`."""
        stream = Stream(started=self.clock())
        reader, url = EventReader(stream, tokens, self.field_path), f"{self.url}/v1/completions"
        try:
            async with asyncio.timeout(self.timeout), self.http.stream(
                    "POST", url, json=self.body(prompt, tokens),
                    headers=self.headers(url)) as response:
                await self._read_response(response, reader)
        except TimeoutError:
            stream.trouble = f"the request did not end within {self.timeout:g} s"
        except httpx.HTTPError as error:
            stream.trouble = f"the connection failed: {_describe_error(error)}"
        except BadResponse as why:
            stream.trouble = str(why)
        stream.ended = self.clock()
        try:
            reader.end()
        except BadResponse as why:
            stream.trouble = stream.trouble or str(why)
        return stream

    async def _read_response(self, response: httpx.Response, reader: EventReader) -> None:
        if response.status_code != 200:
            reader.stream.status = response.status_code
            body = (await _read_limited(response, 4096)).decode("utf-8", "replace").strip()
            raise BadResponse(f"the server answered {response.status_code}: "
                              f"{quote_text(_error_message(body))}")
        kind = response.headers.get("content-type", "")
        if not kind.lower().startswith("text/event-stream"):
            raise BadResponse(f"the server sent {quote_text(kind)}, not an event stream")
        if response.headers.get("content-encoding", "identity") != "identity":
            raise BadResponse("the server sent a compressed stream that was not requested")
        self.server = response.headers.get("server", "")[:MAX_NAME_CHARS] or self.server
        reader.stream.is_event_stream = True
        async for raw in response.aiter_raw():
            reader.feed(raw, self.clock())
            if reader.done:
                return

    async def fetch_text(self, url: str) -> str:
        """Return the text at an address; raise `BadResponse` if it cannot be read."""
        patience = min(self.timeout, PAGE_TIMEOUT)
        try:
            async with asyncio.timeout(patience), self.http.stream(
                    "GET", url, headers=self.headers(url)) as response:
                if response.status_code != 200:
                    raise BadResponse(f"{url} answered {response.status_code}")
                raw = await _read_limited(response, MAX_TEXT_BYTES + 1)
        except TimeoutError:
            raise BadResponse(f"{url} did not answer within {patience:g} s") from None
        except httpx.HTTPError as error:
            raise BadResponse(f"{url} cannot be reached: {_describe_error(error)}") from None
        if len(raw) > MAX_TEXT_BYTES:
            raise BadResponse(f"{url} sent more than {MAX_TEXT_BYTES >> 20} MiB")
        return raw.decode("utf-8", "replace")

    async def list_models(self) -> list[str]:
        """Return the names of the listed models; raise `BadResponse` if there are none."""
        try:
            listed = json.loads(await self.fetch_text(f"{self.url}/v1/models"))
            names = [model["id"] for model in listed["data"]]
        except (ValueError, RecursionError, TypeError, LookupError):
            raise BadResponse(f"{self.url}/v1/models lists no models") from None
        if not names or not all(isinstance(name, str) and is_sendable_text(name) and
                                len(name) <= MAX_NAME_CHARS for name in names):
            raise BadResponse(f"{self.url}/v1/models lists no models")
        return names


@asynccontextmanager
async def open_client(url: str, *, api_key: str | None = None, timeout: float = 300,
                      field_path: Sequence[str] = (),
                      clock: Callable[[], float] = time.perf_counter) -> AsyncIterator[Client]:
    """Open a client for a server; raise `SuiteError` if its address or key is invalid."""
    headers = {"Accept-Encoding": "identity", "User-Agent": "rowtwin-witness"}
    if api_key is not None and not (
            api_key.isascii() and api_key.isprintable() and api_key.strip()):
        raise SuiteError("--api-key holds characters that an HTTP header cannot hold")
    root = server_root(url)
    # a proxy from the environment would be part of the measurement; without TLS, loading the
    # certificate authorities would take longer than a short witness
    async with httpx.AsyncClient(headers=headers, timeout=timeout, trust_env=False,
                                 verify=root.startswith("https:"),
                                 limits=httpx.Limits(max_connections=None)) as http:
        yield Client(root, http, timeout, field_path, clock, api_key=api_key)


def server_root(url: str) -> str:
    """Return a server's address without `/v1`; raise `SuiteError` if it is invalid."""
    return str(parse_url(url).copy_with(query=None, fragment=None)).rstrip("/").removesuffix("/v1")


def parse_url(url: str) -> httpx.URL:
    """Return a parsed server address; raise `SuiteError` if it is invalid."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise SuiteError(f"{quote_text(url)} is not an address: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise SuiteError(f"{quote_text(url)} is not an address such as http://127.0.0.1:8000")
    if not 0 <= (parsed.port or 0) <= 65535:
        raise SuiteError(f"{quote_text(url)} is not an address: a port is 0 to 65535")
    return parsed


def is_sendable_text(text: str) -> bool:
    """Return whether a text is not blank and has no lone surrogate, which cannot be sent."""
    return bool(text.strip()) and text.encode("utf-8", "replace").decode("utf-8") == text


async def _read_limited(response: httpx.Response, most: int) -> bytes:
    raw = b""
    async for part in response.aiter_raw():
        raw += part
        if len(raw) >= most:
            break
    return raw[:most]


def _error_message(body: str) -> str:
    """Return the message in an error's JSON body, or the body."""
    try:
        return error_text(json.loads(body)["error"]) or body
    except (ValueError, RecursionError, TypeError, LookupError):
        return body


def _describe_error(error: httpx.HTTPError) -> str:
    return quote_text(str(error) or type(error).__name__)
