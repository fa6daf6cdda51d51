"""What the attacks share: a real server on the loopback, real clients, and a gate on its engine."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self

import httpx
import openai

from engine.gguf_file import open_gguf
from engine.tokenizer import END_OF_TEXT, Tokenizer
from engine.vocabulary import END, PAD
from falsifiers.judge import Judge
from falsifiers.subject import Subject
from phases.p0_scheduler.increment import Event, Request, Scheduler
from phases.p2_engine_serve.hybrid import Limits
from phases.p2_engine_serve.server import address, bound, uvicorn_of
from phases.p2_engine_serve.service import Terms
from phases.p2_engine_serve.toy import toy

PATIENCE = 10.0
"""Seconds without what must come, after which it counts as never coming."""
BEYOND_OPENAI = ("top_k", "ignore_eos", "return_token_ids")


@dataclass(frozen=True)
class Ask:
    """One request of a client."""

    endpoint: str
    """`completions` or `chat`."""
    stream: bool
    body: dict[str, Any]
    """Without the model; `prompt` stands for both endpoints."""


@dataclass(frozen=True)
class Heard:
    """What a client got."""

    raw: str
    """All of it as JSON, without what differs from request to request: ids and times."""
    texts: list[str]
    """The text of each chunk that had one; a whole reply is one."""
    reason: str | None
    usage: dict[str, Any]
    ids: list[int]
    logprobs: list[float]
    tops: list[int]
    """How many likely tokens were told with each."""

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.texts)


class Gate:
    """Holds an engine's thread between two steps, and counts what was accepted."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._step, self._submit = scheduler.step, scheduler.submit
        self._open, self._busy = threading.Event(), threading.Lock()
        self._open.set()
        self._changed = threading.Condition()
        self.accepted = 0
        scheduler.step = self._gated_step  # type: ignore[method-assign]
        scheduler.submit = self._counted_submit  # type: ignore[method-assign]

    def hold(self) -> None:
        """Let no step begin; when this returns, none is running."""
        self._open.clear()
        with self._busy:
            self.accepted = 0

    def release(self) -> None:
        """Let steps begin again."""
        self._open.set()

    def wait_for(self, count: int) -> bool:
        """Wait until so many requests were accepted since `hold`; False when they do not come."""
        with self._changed:
            return self._changed.wait_for(lambda: self.accepted >= count, PATIENCE)

    def _gated_step(self) -> list[Event]:
        while True:
            self._open.wait()
            with self._busy:
                if self._open.is_set():
                    return self._step()

    def _counted_submit(self, request: Request) -> None:
        self._submit(request)
        with self._changed:
            self.accepted += 1
            self._changed.notify_all()


@dataclass
class Site:
    """One server of the subject's stack, its clients, and the laws they hold it to."""

    subject: Subject
    judge: Judge
    slots: int = 4
    queue: int = 64
    context: int = 128
    chunk: int = 8
    model: str = ""
    """A model whose real path is run; the toy's when empty."""
    key: str | None = None
    body: int = 1 << 20
    template: str | None = None
    """Stands for the chat template of the model's file."""
    _left: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        stack, name = self.subject.stack, self.model or "nano"
        self.weights = self.subject.models(name)
        self.tokenizer = tokenizer_of(self.weights)
        if self.template is not None:
            self.tokenizer = with_template(self.tokenizer, self.template)
        path = self.subject.path if self.model else self.toy_path()
        self.engine = stack.engine(self.weights, path, Limits(self.slots, self.context))
        terms = Terms(name, queue=self.queue, chunk=self.chunk, key=self.key, body=self.body,
                      grace=1.0)
        self.service = stack.service(stack, self.engine, self.tokenizer, terms)
        self.gate = Gate(self.service.scheduler)
        self._listen()
        self.http = self._left.enter_context(httpx.Client(
            base_url=self.url, timeout=PATIENCE, trust_env=False, verify=False,
            limits=httpx.Limits(max_connections=None)))
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key=self.key or "none",
                                    max_retries=0, http_client=self.http)
        self.crowd = self._left.enter_context(ThreadPoolExecutor(64))
        self._left.callback(self.gate.release)
        return self

    def __exit__(self, *_: object) -> None:
        self._left.close()
        self.stop()
        self.socket.close()

    def stop(self) -> None:
        """Shut the server down, as a signal would."""
        self.gate.release()
        self.server.should_exit = True
        self.thread.join(3 * PATIENCE)

    def toy_path(self) -> Any:
        """Return the toy for this tokenizer."""
        ids = self.tokenizer.tokens
        return toy(self.subject.path, ids.index(PAD), ids.index(END))

    def _listen(self) -> None:
        self.socket = bound("127.0.0.1", 0)
        self.url = address(self.socket)
        self.server = uvicorn_of(self.service)
        self.thread = threading.Thread(target=self.server.run, daemon=True,
                                       kwargs={"sockets": [self.socket]})
        self.thread.start()

    # Asking.

    def ask(self, ask: Ask) -> Heard:
        """Send a request with the official client and return what came."""
        body: dict[str, Any] = {"model": self.service.terms.name, **ask.body}
        api: Any = self.client.completions
        if ask.endpoint == "chat":
            api = self.client.chat.completions
            body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
        body["extra_body"] = {name: body.pop(name) for name in BEYOND_OPENAI if name in body}
        if not ask.stream:
            return heard([api.create(**body).model_dump(exclude_unset=True)])
        with api.create(**body, stream=True, stream_options={"include_usage": True}) as stream:
            return heard([chunk.model_dump(exclude_unset=True) for chunk in stream])

    def together(self, asks: Sequence[Ask]) -> list[Heard]:
        """Send requests at once: no step begins before all of them were accepted."""
        return self.at_once([lambda ask=ask: self.ask(ask) for ask in asks])  # type: ignore[misc]

    def at_once(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Make calls on threads of their own, all accepted before a step begins."""
        self.gate.hold()
        futures: list[Future[Any]] = []
        for number, call in enumerate(calls, 1):  # one after another, so that their order is known
            futures.append(self.crowd.submit(call))
            came = self.gate.wait_for(number)
            self.law(came, f"of {len(calls)} requests at once only {self.gate.accepted} were "
                           f"accepted before a step was done")
        self.gate.release()
        return [future.result(3 * PATIENCE) for future in futures]

    def post(self, body: Any, path: str = "completions", **headers: str) -> httpx.Response:
        """Post a body as it is, if it is text or bytes, or as JSON."""
        content = body if isinstance(body, str | bytes) else json.dumps(body)
        return self.http.post(f"/v1/{path}", content=content,
                              headers={"content-type": "application/json", **headers})

    # Holding.

    def law(self, holds: bool, sentence: str, **where: int | str) -> None:
        """Hold a law through the judge."""
        self.judge.law(holds, sentence, **where)

    def same(self, name: str, got: object, want: object, **where: int | str) -> None:
        """Hold a value to its peer, in the suite's words."""
        place = ", ".join(f"{key} {value}" for key, value in where.items())
        at = f"{name}[{place}]" if place else name
        self.law(got == want, f"{at}={got!r}, but should be {want!r}", **where)

    def metric(self, name: str) -> float:
        """Return a figure as the server tells it."""
        for line in self.http.get("/metrics").text.splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
        return -1.0

    def idle(self) -> None:
        """Hold the server to have every slot free, and to say so."""
        counts = self.service.scheduler.counts
        self.same("slots taken", (counts.live, len(self.engine.tenants)), (0, 0))
        self.same("slots given back", counts.released, counts.admitted)
        self.same("rowtwin_live", self.metric("rowtwin_live"), 0.0)
        self.same("rowtwin_waiting", self.metric("rowtwin_waiting"), 0.0)


@cache
def tokenizer_of(model: Any) -> Tokenizer:
    """Return the tokenizer of a loaded model's file."""
    return Tokenizer.from_metadata(open_gguf(model.path).metadata, model.config.vocab)


def with_template(tokenizer: Tokenizer, template: str) -> Tokenizer:
    """Return the tokenizer with another chat template."""
    made = object.__new__(Tokenizer)
    made.__dict__.update(tokenizer.__dict__)
    made.chat_template = template
    return made


def heard(parts: list[dict[str, Any]]) -> Heard:
    """Read a whole reply, or the chunks of one."""
    texts: list[str] = []
    reasons: list[str] = []
    ids: list[int] = []
    logprobs: list[float] = []
    tops: list[int] = []
    for part in parts:
        for choice in part["choices"]:
            said = choice.get("message") or choice.get("delta") or choice
            texts += [text] if (text := said.get("text") or said.get("content")) else []
            reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
            ids += choice.get("token_ids") or []
            told = choice.get("logprobs") or {}
            logprobs += told.get("token_logprobs") or []
            logprobs += [one["logprob"] for one in told.get("content") or []]
            tops += [len(one) for one in told.get("top_logprobs") or []]
            tops += [len(one["top_logprobs"]) for one in told.get("content") or []]
    usage = next((part["usage"] for part in parts if part.get("usage")), {})
    plain = [{k: v for k, v in part.items() if k not in ("id", "created")} for part in parts]
    return Heard(json.dumps(plain), texts, reasons[0] if len(reasons) == 1 else None, usage, ids,
                 logprobs, tops)


def ends(tokenizer: Tokenizer) -> tuple[int, int]:
    """Return the ids of the end of a turn and of a text."""
    return tokenizer.tokens.index(END), tokenizer.tokens.index(END_OF_TEXT)
