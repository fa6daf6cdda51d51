"""The harness of the attacks: a server on the loopback, its clients, and a step barrier."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Self

import httpx2
import openai

from engine.gguf_file import open_gguf
from engine.tokenizer import Tokenizer
from engine.vocabulary import END_TOKEN, PAD_TOKEN
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from phases.p2_engine_serve.client_reply import ClientReply, ClientRequest, parse_reply
from phases.p2_engine_serve.fake_path import make_fake_path
from phases.p2_engine_serve.hybrid_engine import Limits
from phases.p2_engine_serve.server import Server, address, bound
from phases.p2_engine_serve.service import Terms
from phases.p2_engine_serve.step_barrier import WAIT_SECONDS, StepBarrier, WatchedStep

EXTRA_FIELDS = ("top_k", "ignore_eos", "return_token_ids")


@dataclass
class Harness:
    """One server of the subject's stack, its clients, and the checks on its replies."""

    subject: Subject
    judge: Judge
    slots: int = 4
    queue: int = 64
    context: int = 128
    chunk: int = 8
    model: str = ""
    """A model that runs on the subject's path; if empty, `nano` runs on the fake path."""
    key: str | None = None
    body: int = 1 << 20
    template: str | None = None
    """Replaces the chat template of the model's file."""
    _exit_stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        stack, name = self.subject.stack, self.model or "nano"
        self.weights = self.subject.models(name)
        self.tokenizer = load_tokenizer(self.weights.path)
        if self.template is not None:
            self.tokenizer = with_template(self.tokenizer, self.template)
        path = self.subject.path if self.model else self.fake_path()
        self.steps = WatchedStep(path.step_rows)
        self.engine = stack.engine(self.weights, replace(path, step_rows=self.steps),
                                   Limits(self.slots, self.context))
        terms = Terms(name, queue=self.queue, chunk=self.chunk, key=self.key, body=self.body,
                      grace=WAIT_SECONDS)
        self.service = stack.service(stack, self.engine, self.tokenizer, terms)
        self.barrier = StepBarrier(self.service.scheduler)
        self._listen()
        self.http = self._exit_stack.enter_context(httpx2.Client(
            base_url=self.url, timeout=60.0 if self.model else WAIT_SECONDS,
            trust_env=False, verify=False, limits=httpx2.Limits(max_connections=None)))
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.key or "none",
                                    max_retries=0, http_client=self.http)
        self.executor = self._exit_stack.enter_context(ThreadPoolExecutor(64))
        self._exit_stack.callback(self._release_steps)
        return self

    def __exit__(self, *_: object) -> None:
        self._exit_stack.close()
        self.stop()
        self.socket.close()

    def _release_steps(self) -> None:
        self.steps.resume.set()
        self.barrier.release()
        self.service.scheduler.abort()  # only a failed check leaves requests to serve

    def stop(self) -> None:
        """Shut the server down, like a signal."""
        self.server.should_exit = True
        self.thread.join(3 * WAIT_SECONDS)

    def fake_path(self) -> Any:
        """Return the fake path for this tokenizer."""
        ids = self.tokenizer.tokens
        return make_fake_path(self.subject.path, ids.index(PAD_TOKEN), ids.index(END_TOKEN))

    def _listen(self) -> None:
        self.socket = bound("127.0.0.1", 0)
        self.url = address(self.socket)
        self.server = Server(self.service)
        self.thread = threading.Thread(target=self.server.run, daemon=True,
                                       kwargs={"sockets": [self.socket]})
        self.thread.start()

    # Requests.

    def ask(self, request: ClientRequest) -> ClientReply:
        """Send a request with the official client and return its reply."""
        body: dict[str, Any] = {"model": self.service.terms.name, **request.body}
        api: Any = self.client.completions
        if request.endpoint == "chat":
            api = self.client.chat.completions
            body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
        body["extra_body"] = {name: body.pop(name) for name in EXTRA_FIELDS if name in body}
        if not request.stream:
            return parse_reply([api.create(**body).model_dump(exclude_unset=True)])
        with api.create(**body, stream=True, stream_options={"include_usage": True}) as stream:
            return parse_reply([chunk.model_dump(exclude_unset=True) for chunk in stream])

    def ask_all(self, requests: Sequence[ClientRequest]) -> list[ClientReply]:
        """Send requests at once; no step begins before all were accepted."""
        futures = self.hold(requests)
        self.barrier.release()
        return [self.result(future) for future in futures]

    def hold(self, requests: Sequence[ClientRequest]) -> list[Future[ClientReply]]:
        """Send requests in order, each accepted before the next; no step begins."""
        self.barrier.hold()
        return [self.accepted(partial(self.ask, request)) for request in requests]

    def accepted(self, call: Callable[[], Any]) -> Future[Any]:
        """Make a call on another thread and wait until its request is accepted."""
        expected = self.barrier.accepted + 1
        future = self.executor.submit(call)
        arrived = self.barrier.wait_for(lambda: self.barrier.accepted >= expected)
        self.law(arrived, "a request is not accepted while no step runs")
        return future

    @staticmethod
    def result(future: Future[ClientReply]) -> ClientReply:
        """Return a client's reply."""
        return future.result(60.0)

    def ask_over_socket(self, request: ClientRequest) -> socket.socket:
        """Send a request over a bare socket, which can be closed at any time."""
        body = json.dumps({"model": self.service.terms.name, "stream": request.stream,
                           **request.body})
        text = (f"POST /v1/{request.endpoint} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json"
                f"\r\nContent-Length: {len(body)}\r\n\r\n{body}")
        expected = self.barrier.accepted + 1
        line = socket.create_connection(self.socket.getsockname(), WAIT_SECONDS)
        line.sendall(text.encode())
        arrived = self.barrier.wait_for(lambda: self.barrier.accepted >= expected)
        self.law(arrived, "a request is not accepted while no step runs")
        return line

    def post(self, body: Any, path: str = "completions", **headers: str) -> httpx2.Response:
        """Post a body: text or bytes unchanged, anything else as JSON."""
        content = body if isinstance(body, str | bytes) else json.dumps(body)
        return self.http.post(f"/v1/{path}", content=content,
                              headers={"content-type": "application/json", **headers})

    # Checks.

    def law(self, holds: bool, sentence: str, **where: int | str) -> None:
        """Report a broken law to the judge unless `holds`."""
        self.judge.law(holds, sentence, rung="law", **where)

    def check_equal(self, name: str, got: object, want: object, **where: int | str) -> None:
        """Compare a value with the expected one."""
        check_equal(self.judge, name, got, want, **where)

    def read_metric(self, name: str) -> float:
        """Return a metric of the server, or -1."""
        for line in self.http.get("/metrics").text.splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
        return -1.0

    def idle(self) -> None:
        """Check that every slot is free, and that the metrics say so."""
        counts = self.service.scheduler.counts
        self.check_equal("slots taken", (counts.live, len(self.engine.tenants)), (0, 0))
        self.check_equal("slots released", counts.released, counts.admitted)
        self.check_equal("rowtwin_live", self.read_metric("rowtwin_live"), 0.0)
        self.check_equal("rowtwin_waiting", self.read_metric("rowtwin_waiting"), 0.0)


def check_equal(judge: Judge, name: str, got: object, want: object, **where: int | str) -> None:
    """Compare a value with the expected one."""
    place = ", ".join(f"{key} {value}" for key, value in where.items())
    at = f"{name}[{place}]" if place else name
    judge.law(got == want, f"{at}={got!r}, but should be {want!r}", rung="law", **where)


@cache
def load_tokenizer(file: Path) -> Tokenizer:
    """Return the tokenizer of a model's file."""
    metadata = open_gguf(file).metadata
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    return Tokenizer.from_metadata(metadata, len(tokens))


def with_template(tokenizer: Tokenizer, template: str) -> Tokenizer:
    """Return the tokenizer with another chat template."""
    copy = object.__new__(Tokenizer)
    copy.__dict__.update(tokenizer.__dict__)
    copy.chat_template = template
    return copy
