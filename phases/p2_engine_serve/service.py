"""Between the API and the engine's thread: bodies in, replies out, never waiting for a step."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from engine.errors import InputError
from engine.tokenizer import Tokenizer
from phases.p0_scheduler.increment import ClosedError, QueueFullError, Request, Settings
from phases.p2_engine_serve.api_error import Refused
from phases.p2_engine_serve.hybrid_engine import HybridEngine
from phases.p2_engine_serve.metrics import Metrics
from phases.p2_engine_serve.request_schema import ChatAsked, CompletionAsked, Options
from phases.p2_engine_serve.request_stream import Reply
from phases.p2_engine_serve.response_format import ChatShape, CompletionShape, Shape
from phases.p2_engine_serve.sampling import SEEDS, Sampling
from phases.p2_engine_serve.template import Template

if TYPE_CHECKING:
    from phases.p2_engine_serve.increment import Stack


T = TypeVar("T")
Left = Callable[[], Awaitable[bool]]
"""Tells whether a client is gone."""


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms a server takes requests."""

    name: str
    """What the model is called."""
    queue: int = 64
    """Requests that may wait."""
    chunk: int = 64
    """The most prompt tokens of one request in a step."""
    key: str | None = None
    """What clients must show; None for nothing."""
    body: int = 1 << 22
    """The most bytes of a request."""
    grace: float = 30.0
    """Seconds that accepted requests get at shutdown."""


class Turnstile:
    """Lets one piece of work at a time onto a thread, and none whose client left meanwhile."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def run(self, work: Callable[[], T], left: Left) -> T:
        """Return what the work does, or raise `Refused`."""
        async with self._lock:
            if await left():
                raise gone()
            return await asyncio.to_thread(work)


def gone() -> Refused:
    """Return the refusal that nobody is there to read."""
    return Refused(499, "the client left before its request was read", code="client_left")


class Service:
    """One model behind one engine thread."""

    counting = Metrics

    def __init__(self, stack: Stack, engine: HybridEngine, tokenizer: Tokenizer,
                 terms: Terms) -> None:
        """Start the engine's thread."""
        self.stack, self.terms, self.tokenizer = stack, terms, tokenizer
        self.capacity = engine.limits.capacity
        self.vocab = engine.model.config.vocab
        self.most = self.capacity * tokenizer.max_token_bytes
        """Bytes that no text which fits the context can have more of."""
        self.reading = Turnstile()
        self._templating, self._encoding = Turnstile(), Turnstile()
        self.started = int(time.time())
        self.template: Template = stack.template(tokenizer.chat_template)
        self.metrics = self.counting(engine.limits.slots)
        self.scheduler = stack.scheduler(engine, Settings(
            slots=engine.limits.slots, queue=terms.queue, chunk=terms.chunk,
            context=self.capacity, eos=tokenizer.end_ids))
        self.driver = stack.driver(self.scheduler, self.metrics.observe)

    @property
    def trouble(self) -> str:
        """Why requests are not served; empty while they are."""
        return self.scheduler.closed

    def close(self) -> None:
        """Serve what was accepted, for at most the grace, and stop."""
        self.driver.close(self.terms.grace)
        self.template.close()

    async def complete(self, asked: CompletionAsked, left: Left) -> tuple[Reply, Shape]:
        """Accept a completion, or raise `Refused`."""
        self._hold_model(asked)
        prompt = await self._encoding.run(partial(self.prompt_of, asked), left)
        return self._open(asked, prompt, "prompt", CompletionShape)

    async def chat(self, asked: ChatAsked, left: Left) -> tuple[Reply, Shape]:
        """Accept a chat's next turn, or raise `Refused`."""
        self._hold_model(asked)
        text = await self._templating.run(partial(self.chat_text_of, asked), left)
        prompt = await self._encoding.run(partial(self._encode, text, "messages"), left)
        return self._open(asked, prompt, "messages", ChatShape)

    def prompt_of(self, asked: CompletionAsked) -> list[int]:
        """Return a completion's prompt as tokens."""
        if isinstance(asked.prompt, str):
            return self._encode(asked.prompt, "prompt")
        for token in asked.prompt:
            if not 0 <= token < self.vocab:
                raise Refused(400, f"prompt: token {token} is outside the vocabulary of "
                                   f"{self.vocab}", "prompt", "invalid_value")
        return list(asked.prompt)

    def chat_text_of(self, asked: ChatAsked) -> str:
        """Return a chat as one text, by the template of the model's file."""
        try:
            return self.template.render([message.plain() for message in asked.messages])
        except InputError as error:
            raise Refused(400, str(error), "messages", "chat_template") from None

    def _hold_size(self, text: str, field: str) -> None:
        """Refuse a text that cannot fit, before seconds are spent on its tokens."""
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > self.most:
            raise Refused(400, f"{field}: {size:,} bytes do not fit the context of "
                               f"{self.capacity} tokens", field, "context_length_exceeded")

    def _encode(self, text: str, field: str) -> list[int]:
        self._hold_size(text, field)
        try:
            tokens = self.tokenizer.encode(text)
        except InputError as error:
            raise Refused(400, f"{field}: {error}", field, "invalid_value") from None
        if not tokens:
            raise Refused(400, f"{field}: an empty prompt is refused", field, "invalid_value")
        return tokens

    def _hold_model(self, asked: Options) -> None:
        if asked.model != self.terms.name:
            raise Refused(404, f"the model {asked.model[:100]!r} is not served here: "
                               f"{self.terms.name} is", "model", "model_not_found")

    def _open(self, asked: Options, prompt: Sequence[int], field: str,
              shape: type[Shape]) -> tuple[Reply, Shape]:
        id = secrets.token_hex(12)
        request = Request(id, tuple(prompt), self._limit(asked, len(prompt), field),
                          frozenset() if asked.ignore_eos else self.tokenizer.end_ids,
                          self.sampling_of(asked))
        reply: Reply = self.stack.reply(request, self.stack.text(self.tokenizer, asked.stops),
                                        self.driver)
        try:
            reply.send()
        except QueueFullError as error:
            raise Refused(429, str(error), code="queue_full", retry_after=1) from None
        except ClosedError as error:
            raise Refused(503, str(error), code="closed", retry_after=1) from None
        except InputError as error:
            raise Refused(400, str(error), field, "invalid_value") from None
        return reply, shape(self.tokenizer, id, int(time.time()), self.terms.name, top=asked.top,
                            prompt=prompt if asked.return_token_ids else None)

    def _limit(self, asked: Options, prompt: int, field: str) -> int:
        room = self.capacity - prompt + 1  # the last token is never fed back
        if room < 1:
            raise Refused(400, f"{field}: {prompt} tokens do not fit the context of "
                               f"{self.capacity}", field, "context_length_exceeded")
        if asked.limit is not None and asked.limit > room:
            raise Refused(400, f"max_tokens: {asked.limit} new tokens behind {prompt} of prompt "
                               f"do not fit the context of {self.capacity}, {room} do",
                          "max_tokens", "context_length_exceeded")
        return asked.limit or room

    @staticmethod
    def sampling_of(asked: Options) -> Sampling:
        """Return how a request's tokens are drawn; without a seed it gets one of its own."""
        seed = secrets.randbits(64) if asked.seed is None else asked.seed % SEEDS
        return Sampling(asked.temperature, max(asked.top_k, 0), asked.top_p, seed, asked.top or 0)
