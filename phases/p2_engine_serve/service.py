"""Turns parsed bodies into requests and replies, without waiting for a step."""

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
from phases.p2_engine_serve.api_error import ApiError
from phases.p2_engine_serve.hybrid_engine import HybridEngine
from phases.p2_engine_serve.metrics import Metrics
from phases.p2_engine_serve.request_schema import ChatRequest, CommonRequest, CompletionRequest
from phases.p2_engine_serve.request_stream import Reply
from phases.p2_engine_serve.response_format import ChatFormat, CompletionFormat, ReplyFormat
from phases.p2_engine_serve.sampling import SEED_COUNT, Sampling
from phases.p2_engine_serve.template import Template

if TYPE_CHECKING:
    from phases.p2_engine_serve.increment import Stack


T = TypeVar("T")
IsDisconnected = Callable[[], Awaitable[bool]]
"""Returns whether the client disconnected."""


@dataclass(frozen=True, slots=True)
class Terms:
    """A server's settings."""

    name: str
    """The name of the model."""
    queue: int = 64
    """Requests that may wait."""
    chunk: int = 64
    """Maximum prompt tokens of one request in a step."""
    key: str | None = None
    """The API key that clients must send; None for no key."""
    body: int = 1 << 22
    """Maximum bytes of a body."""
    grace: float = 30.0
    """Seconds that accepted requests get at shutdown."""


class SerialWorker:
    """Runs one task at a time on a thread, and none whose client disconnected while it waited."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def run(self, work: Callable[[], T], is_disconnected: IsDisconnected) -> T:
        """Return the result of the work, or raise `ApiError` if the client disconnected."""
        async with self._lock:
            if await is_disconnected():
                raise client_left_error()
            return await asyncio.to_thread(work)


def client_left_error() -> ApiError:
    """Return the error of a request whose client disconnected; nobody reads it."""
    return ApiError(499, "the client disconnected before its request was read",
                    code="client_left")


class Service:
    """One model, served by one engine thread."""

    metrics_class = Metrics

    def __init__(self, stack: Stack, engine: HybridEngine, tokenizer: Tokenizer,
                 terms: Terms) -> None:
        """Start the engine thread."""
        self.stack, self.terms, self.tokenizer = stack, terms, tokenizer
        self.capacity = engine.limits.capacity
        self.vocab = engine.model.config.vocab
        self.max_text_bytes = self.capacity * tokenizer.max_token_bytes
        """Maximum bytes of a text that fits the context."""
        self.body_reader = SerialWorker()
        self._template_worker, self._encode_worker = SerialWorker(), SerialWorker()
        self.started_at = int(time.time())
        self.template: Template = stack.template(tokenizer.chat_template)
        self.metrics = self.metrics_class(engine.limits.slots)
        self.scheduler = stack.scheduler(engine, Settings(
            slots=engine.limits.slots, queue=terms.queue, chunk=terms.chunk,
            context=self.capacity, eos=tokenizer.end_ids))
        self.driver = stack.driver(self.scheduler, self.metrics.observe)

    @property
    def unavailable_reason(self) -> str:
        """Why requests are refused; empty while they are accepted."""
        return self.scheduler.close_reason

    def close(self) -> None:
        """Serve the accepted requests for at most the grace, and stop."""
        self.driver.close(self.terms.grace)
        self.template.close()

    async def complete(self, params: CompletionRequest, is_disconnected: IsDisconnected) -> tuple[
            Reply, ReplyFormat]:
        """Accept a completion, or raise `ApiError`."""
        self._check_model(params)
        prompt = await self._encode_worker.run(partial(self.encode_prompt, params), is_disconnected)
        return self._submit_request(params, prompt, "prompt", CompletionFormat)

    async def chat(self, params: ChatRequest,
                   is_disconnected: IsDisconnected) -> tuple[Reply, ReplyFormat]:
        """Accept a chat, or raise `ApiError`."""
        self._check_model(params)
        text = await self._template_worker.run(partial(self.render_chat, params), is_disconnected)
        prompt = await self._encode_worker.run(partial(self._encode, text, "messages"),
                                               is_disconnected)
        return self._submit_request(params, prompt, "messages", ChatFormat)

    def encode_prompt(self, params: CompletionRequest) -> list[int]:
        """Return a completion's prompt as tokens."""
        if isinstance(params.prompt, str):
            return self._encode(params.prompt, "prompt")
        for token in params.prompt:
            if not 0 <= token < self.vocab:
                raise ApiError(400, f"prompt: token {token} is outside the vocabulary of "
                               f"{self.vocab}", "prompt", "invalid_value")
        return list(params.prompt)

    def render_chat(self, params: ChatRequest) -> str:
        """Render a chat with the template of the model's file."""
        try:
            return self.template.render([message.as_template_input()
                                         for message in params.messages])
        except InputError as error:
            raise ApiError(400, str(error), "messages", "chat_template") from None

    def _check_size(self, text: str, field: str) -> None:
        """Refuse a text that cannot fit, before it is tokenised, which may take seconds."""
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > self.max_text_bytes:
            raise ApiError(400, f"{field}: {size:,} bytes do not fit the context of "
                           f"{self.capacity} tokens", field, "context_length_exceeded")

    def _encode(self, text: str, field: str) -> list[int]:
        self._check_size(text, field)
        try:
            tokens = self.tokenizer.encode(text)
        except InputError as error:
            raise ApiError(400, f"{field}: {error}", field, "invalid_value") from None
        if not tokens:
            raise ApiError(400, f"{field}: the prompt is empty", field, "invalid_value")
        return tokens

    def _check_model(self, params: CommonRequest) -> None:
        if params.model != self.terms.name:
            raise ApiError(404, f"the model {params.model[:100]!r} is not served here: "
                           f"{self.terms.name} is", "model", "model_not_found")

    def _submit_request(self, params: CommonRequest, prompt: Sequence[int], field: str,
                        reply_format: type[ReplyFormat]) -> tuple[Reply, ReplyFormat]:
        id = secrets.token_hex(12)
        request = Request(id, tuple(prompt), self._max_tokens(params, len(prompt), field),
                          frozenset() if params.ignore_eos else self.tokenizer.end_ids,
                          self.sampling_options(params))
        reply: Reply = self.stack.reply(request, self.stack.text(self.tokenizer, params.stops),
                                        self.driver)
        try:
            reply.send()
        except QueueFullError as error:
            raise ApiError(429, str(error), code="queue_full", retry_after=1) from None
        except ClosedError as error:
            raise ApiError(503, str(error), code="closed", retry_after=1) from None
        except InputError as error:
            raise ApiError(400, str(error), field, "invalid_value") from None
        return reply, reply_format(self.tokenizer, id, int(time.time()), self.terms.name,
                                   top=params.top, prompt=prompt if params.return_token_ids
                                   else None)

    def _max_tokens(self, params: CommonRequest, prompt: int, field: str) -> int:
        room = self.capacity - prompt + 1  # the last token is never fed back
        if room < 1:
            raise ApiError(400, f"{field}: {prompt} tokens do not fit the context of "
                           f"{self.capacity}", field, "context_length_exceeded")
        if params.limit is not None and params.limit > room:
            raise ApiError(400, f"max_tokens: {params.limit} new tokens after {prompt} of prompt "
                           f"do not fit the context of {self.capacity}, {room} do", "max_tokens",
                           "context_length_exceeded")
        return params.limit or room

    @staticmethod
    def sampling_options(params: CommonRequest) -> Sampling:
        """Return how a request's tokens are drawn; without a seed it gets a random one."""
        seed = secrets.randbits(64) if params.seed is None else params.seed % SEED_COUNT
        return Sampling(params.temperature, max(params.top_k, 0), params.top_p, seed,
                        params.top or 0)
