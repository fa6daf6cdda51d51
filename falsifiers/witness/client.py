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
"""How many log-probabilities a token are asked for; more is refused by some servers."""
MAX_TEXT_BYTES = 8 << 20
MAX_NAME_CHARS = 1000
"""Characters of a name that a server gives itself or its model."""
PAGE_TIMEOUT = 10.0
"""Seconds that a short page may take."""
OMITTED_FIELDS: tuple[frozenset[str], ...] = tuple(map(frozenset, (
    (), ("stream_options",), ("logprobs",), ("stream_options", "logprobs"))))
"""What is left out of a request, in turn, for servers that refuse a field they do not know."""


@dataclass
class Client:
    """Asks one server; use inside `connected`."""

    url: str
    """The server's root, without `/v1`."""
    http: httpx.AsyncClient
    timeout: float
    field_path: Sequence[str] = ()
    clock: Callable[[], float] = time.perf_counter
    model: str = ""
    omitted_fields: frozenset[str] = field(default=OMITTED_FIELDS[0])
    server: str | None = None
    """What the server calls itself."""
    api_key: str | None = None
    """Shown to the server, and to nobody else."""

    def headers(self, url: str) -> dict[str, str]:
        """Return the headers that an address gets beside those that all get."""
        parts = [(at.scheme, at.host, at.port) for at in map(httpx.URL, (url, self.url))]
        own = self.api_key is not None and parts[0] == parts[1]
        return {"Authorization": f"Bearer {self.api_key}"} if own else {}

    def body(self, prompt: str, tokens: int) -> dict[str, Any]:
        """Return the request for one greedy, streamed completion of a fixed length."""
        asked = {"model": self.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0,
                 "seed": SEED, "stream": True, "ignore_eos": True, "logprobs": TOP_LOGPROBS,
                 "stream_options": {"include_usage": True}}
        nameless = {"model"} if not self.model else set[str]()
        return {
            key: value for key, value in asked.items() if key not in self.omitted_fields | nameless
        }

    async def complete(self, prompt: str, tokens: int) -> Stream:
        """Stream one completion; what goes wrong is told in `trouble`."""
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
            said = (await _read_limited(response, 4096)).decode("utf-8", "replace").strip()
            raise BadResponse(
                f"the server answered {response.status_code}: {quote_text(_error_message(said))}"
            )
        kind = response.headers.get("content-type", "")
        if not kind.lower().startswith("text/event-stream"):
            raise BadResponse(f"the server sent {quote_text(kind)}, not an event stream")
        if response.headers.get("content-encoding", "identity") != "identity":
            raise BadResponse("the server sent a compressed stream, though none was asked for")
        self.server = response.headers.get("server", "")[:MAX_NAME_CHARS] or self.server
        reader.stream.is_event_stream = True
        async for raw in response.aiter_raw():
            reader.feed(raw, self.clock())
            if reader.done:
                return

    async def fetch_text(self, url: str) -> str:
        """Return the text at an address; raise `Hostile` when there is none."""
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
        """Return the names of the models that the server offers; raise `Hostile` if it does not."""
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
    """Open a client for a server; raise `SuiteError` when its address or key is no such thing."""
    headers = {"Accept-Encoding": "identity", "User-Agent": "rowtwin-witness"}
    if api_key is not None and not (
            api_key.isascii() and api_key.isprintable() and api_key.strip()):
        raise SuiteError("--api-key holds characters that no header may hold")
    root = server_root(url)
    # a proxy from the environment would be measured with the server; without TLS there is nothing
    # to verify, and loading the authorities takes longer than a short witness
    async with httpx.AsyncClient(headers=headers, timeout=timeout, trust_env=False,
                                 verify=root.startswith("https:"),
                                 limits=httpx.Limits(max_connections=None)) as http:
        yield Client(root, http, timeout, field_path, clock, api_key=api_key)


def server_root(url: str) -> str:
    """Return a server's address without `/v1`; raise `SuiteError` when it is not an address."""
    return str(parse_url(url).copy_with(query=None, fragment=None)).rstrip("/").removesuffix("/v1")


def parse_url(url: str) -> httpx.URL:
    """Return an address in its parts; raise `SuiteError` when it is not one of a server."""
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
    """Tell whether a text has words and can be sent: a lone surrogate cannot."""
    return bool(text.strip()) and text.encode("utf-8", "replace").decode("utf-8") == text


async def _read_limited(response: httpx.Response, most: int) -> bytes:
    raw = b""
    async for part in response.aiter_raw():
        raw += part
        if len(raw) >= most:
            break
    return raw[:most]


def _error_message(body: str) -> str:
    """Return what an error's body says, out of its JSON where it is some."""
    try:
        return error_text(json.loads(body)["error"]) or body
    except (ValueError, RecursionError, TypeError, LookupError):
        return body


def _describe_error(error: httpx.HTTPError) -> str:
    return quote_text(str(error) or type(error).__name__)
