"""A small OpenAI-compatible server over a fake model, with optional faults.

It is a scheduler in miniature: one loop, one step at a time, a token for every seat a step. Time
is simulated: a step takes one second of `clock`, whatever its width, unless it is looped.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

MODEL_NAME = "Qwen3.5-4B-made-up.gguf"
STEP_SECONDS = 0.0005
"""Real seconds a step, in which a client reads what the last one brought."""
QUIET_SECONDS = 0.008
"""The first step waits until no request has come for so long: those sent at once meet in it."""


@dataclass
class Seat:
    """One request being served."""

    prompt: str
    limit: int
    order: int
    """How many requests came before."""
    out: asyncio.Queue[dict[str, Any] | None] = field(default_factory=asyncio.Queue)
    tokens: list[str] = field(default_factory=list)


@dataclass
class StubServer:
    """The server; its fields are the faults."""

    name: str = MODEL_NAME
    step: float = STEP_SECONDS
    slots: int = 16
    """Seats stepped together; 1 never batches."""
    looped: bool = False
    """A step takes as many seconds of simulated time as it has seats."""
    logprobs: bool = True
    usage: bool = True
    metric: str | None = "rowtwin_batch_size"
    length: int | None = None
    """End streams after this many tokens instead of the requested number."""
    token: Callable[[StubServer, Seat, list[Seat]], str] | None = None
    """Chooses a token other than the right one."""
    margins: dict[int, float] = field(default_factory=dict)
    """How far the right token of a position is above its rival, where it is not 1."""
    dies_at: Callable[[list[Seat]], bool] | None = None
    answer: Callable[[asyncio.StreamWriter], Any] | None = None
    """Answers completions in place of the model."""
    page: bytes | None = None
    """The metrics page, in place of the right one."""
    models: bytes | None = None
    """The list of models, in place of the right one."""
    log: list[str] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    header_lines: list[str] = field(default_factory=list)
    """The header lines of every request."""
    loading: int = 0
    """How often the list of models is refused, for the model is still loaded."""
    refuses: frozenset[str] = frozenset()
    """Fields of a request that are answered with 400."""

    def __post_init__(self) -> None:
        self.seats: list[Seat] = []
        self.work = asyncio.Event()
        self.sizes: dict[int, int] = {}
        self.request_count = 0
        self.widest = 0
        self.is_dead = False
        self.now = 0.0

    def clock(self) -> float:
        """Return the simulated seconds since the start."""
        return self.now

    # The model.

    def right_token(self, seat: Seat) -> str:
        """Return the token that the prompt and the position call for, if all before were right."""
        seed = f"{seat.prompt}|{len(seat.tokens)}|{seat.tokens[-1] if seat.tokens else ''}"
        return f" t{int.from_bytes(hashlib.sha256(seed.encode()).digest()[:2], 'big') % 997}"

    def token_event(self, seat: Seat, token: str) -> dict[str, Any]:
        """Return a token's event, with the right token and its rival as log-probabilities."""
        choice: dict[str, Any] = {"index": 0, "text": token, "logprobs": None,
                                  "finish_reason": None}
        if self.logprobs and "logprobs" in self.requests[-1]:
            right = self.right_token(seat)
            top = {right: -0.5, rival_token(right): -0.5 - self.margins.get(len(seat.tokens), 1.0)}
            choice["logprobs"] = {"tokens": [token], "token_logprobs": [top.get(token, -9.0)],
                                  "top_logprobs": [top]}
        return {"object": "text_completion", "choices": [choice], "m": self.widest}

    # The engine.

    async def run_engine(self) -> None:
        """Step whoever is seated, for ever."""
        while True:
            if not self.seats:
                self.work.clear()
                await self.work.wait()
                await self.wait_until_quiet()
            batch = self.seats[:self.slots]
            if self.dies_at and self.dies_at(batch):
                self.is_dead = True
            m = len(batch)
            await asyncio.sleep(self.step)
            self.now += m if self.looped else 1
            self.widest = m
            self.sizes[m] = self.sizes.get(m, 0) + 1
            self.log.append(f"Batch m={m}")
            chosen = [self.token(self, seat, batch) if self.token else self.right_token(seat)
                      for seat in batch]
            for seat, token in zip(batch, chosen, strict=True):
                event = self.token_event(seat, token)
                seat.tokens.append(token)
                ends = len(seat.tokens) >= min(seat.limit, self.length or seat.limit)
                if ends:
                    event["choices"][0]["finish_reason"] = "stop" if self.length else "length"
                    self.seats.remove(seat)
                seat.out.put_nowait(event)
                if ends or self.is_dead:
                    seat.out.put_nowait(None)

    async def wait_until_quiet(self) -> None:
        """Wait until no more requests come."""
        before = -1
        while before != self.request_count:
            before = self.request_count
            await asyncio.sleep(QUIET_SECONDS)

    # The server.

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request and close."""
        with close_writer(writer), suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            self.header_lines += head
            lengths = [int(h.split(":")[1]) for h in head if h.lower().startswith("content-length")]
            body = await reader.readexactly(lengths[0]) if lengths else b"{}"
            if not self.is_dead:
                await self.route(head[0].split()[1], json.loads(body), writer)
            await writer.drain()

    async def route(self, path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """Answer at one of the paths."""
        if path == "/v1/models" and self.loading:
            self.loading -= 1
            write_response(writer, 503, b"loading")
        elif path == "/v1/models":
            write_response(
                writer, 200, self.models or json.dumps({"data": [{"id": self.name}]}).encode()
            )
        elif path == "/metrics" and (self.metric or self.page):
            write_response(writer, 200, self.page or self.metrics().encode())
        elif path == "/v1/completions":
            self.requests.append(body)
            odd = self.refuses & set(body)
            if odd:
                write_response(
                    writer, 400, json.dumps({"error": {"message": f"unknown {odd}"}}).encode()
                )
            elif self.answer is not None:
                await self.answer(writer)
            else:
                await self.complete(body, writer)
        else:
            write_response(writer, 404, b"not here")

    async def complete(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """Stream one completion."""
        seat = Seat(body["prompt"], body["max_tokens"], self.request_count)
        self.request_count += 1
        self.seats.append(seat)
        self.work.set()
        writer.write(SSE_HEADER)
        while (event := await seat.out.get()) is not None:
            writer.write(format_sse(json.dumps(event)))
            await writer.drain()
        if not self.is_dead:
            if self.usage:
                counted = {"choices": [], "usage": {"completion_tokens": len(seat.tokens)}}
                writer.write(format_sse(json.dumps(counted)))
            writer.write(format_sse("[DONE]"))

    def metrics(self) -> str:
        """Return a histogram of batch sizes under our own name, a gauge under any other."""
        if self.metric != "rowtwin_batch_size":
            return f'# TYPE {self.metric} gauge\n{self.metric}{{engine="0"}} {len(self.seats)}\n'
        edges = [1, 2, 4, 8, 16, float("inf")]
        lines = [f"rowtwin_batch_size_sum {sum(m * n for m, n in self.sizes.items())}\n"]
        lines += [f'rowtwin_batch_size_bucket{{le="{edge}"}} '
                 f'{sum(n for m, n in self.sizes.items() if m <= edge)}\n' for edge in edges]
        return "# TYPE rowtwin_batch_size histogram\n" + "".join(lines)


SSE_HEADER = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def format_sse(data: str) -> bytes:
    """Return one server-sent event."""
    return f"data: {data}\n\n".encode()


def write_response(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    """Write a complete response."""
    writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n"
                 f"Content-Type: application/json\r\nConnection: close\r\n\r\n".encode() + body)


def rival_token(token: str) -> str:
    """Return the second likeliest token where this one is the likeliest."""
    return f"{token}'"


@contextmanager
def close_writer(writer: asyncio.StreamWriter) -> Iterator[None]:
    """Close a connection at the end, and at once when the server is stopped."""
    try:
        yield
    except asyncio.CancelledError:
        writer.transport.abort()
        raise
    finally:
        writer.close()


async def _serve(stub: StubServer, ready: Callable[[str, Callable[[], object]], None]) -> None:
    server = await asyncio.start_server(stub.handle, "127.0.0.1", 0)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    engine = asyncio.create_task(stub.run_engine())
    ready(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}",
          partial(loop.call_soon_threadsafe, stopped.set))
    await stopped.wait()
    server.close()
    await asyncio.sleep(0)  # a connection just accepted is nobody's until its task has begun
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in [engine, *tasks]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for _ in range(3):
        await asyncio.sleep(0)  # sockets are closed in the turns after


@contextmanager
def serve_stub(stub: StubServer) -> Iterator[str]:
    """Serve a stub on a free port of the loopback, in a new thread; yield its address."""
    started = threading.Event()
    server: dict[str, Any] = {}

    def ready(url: str, stop: Callable[[], object]) -> None:
        server.update(url=url, stop=stop)
        started.set()

    thread = threading.Thread(target=lambda: asyncio.run(_serve(stub, ready)))
    thread.start()
    try:
        assert started.wait(10), "the stub did not start"
        yield server["url"]
    finally:
        server["stop"]()
        thread.join(10)


def answer_once(raw: bytes) -> Callable[[asyncio.StreamWriter], Any]:
    """Return an answer that is these bytes and the end of the connection."""
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(raw)

    return answer


def answer_forever(part: bytes) -> Callable[[asyncio.StreamWriter], Any]:
    """Return an answer that never ends."""
    async def answer(writer: asyncio.StreamWriter) -> None:
        async for more in _endless_parts(part):
            writer.write(more)
            await writer.drain()

    return answer


async def _endless_parts(part: bytes) -> AsyncIterator[bytes]:
    yield SSE_HEADER
    while True:
        yield part
