"""The JSON of replies, whole and in chunks, for both endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.tokenizer import Tokenizer
from phases.p0_scheduler.increment import Emitted
from phases.p2_engine_serve.request_stream import Done, Piece

Json = dict[str, Any]


def spoken(tokenizer: Tokenizer, token: int) -> str:
    """Return a token as text that no other has: part of a character in hexadecimal."""
    raw = tokenizer.piece(token)
    if not raw:
        return tokenizer.tokens[token]
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class Shape:
    """One endpoint's way to tell a reply."""

    prefix, whole_object, chunk_object = "", "", ""

    def __init__(self, tokenizer: Tokenizer, id: str, created: int, model: str, *,
                 top: int | None, prompt: Sequence[int] | None) -> None:
        """Tell log-probs with `top` of the likeliest tokens, and ids if given the prompt's."""
        self.tokenizer, self.top, self.prompt = tokenizer, top, prompt
        self.head: Json = {"id": f"{self.prefix}{id}", "created": created, "model": model}

    def whole(self, pieces: Sequence[Piece], done: Done) -> Json:
        """Return the reply as one object."""
        choice = {**self._said("".join(piece.text for piece in pieces)),
                  **self._told(pieces), "finish_reason": done.reason}
        return {**self.head, "object": self.whole_object, "choices": [self._choice(choice)],
                "usage": done.usage, **self._asked()}

    def opening(self) -> list[Json]:
        """Return the chunks that come before the first token."""
        return []

    def chunk(self, piece: Piece) -> Json | None:
        """Return a piece as a chunk, or None when it would tell nothing."""
        if not piece.text and (piece.emitted is None or
                               (self.top is None and self.prompt is None)):
            return None
        return self._chunk({**self._delta(piece.text), **self._told([piece]),
                            "finish_reason": None})

    def closing(self, done: Done, *, usage: bool) -> list[Json]:
        """Return the chunks that come after the last token."""
        last = self._chunk({**self._delta(None), "logprobs": None, "finish_reason": done.reason})
        told = {**self.head, "object": self.chunk_object, "choices": [], "usage": done.usage}
        return [last, told] if usage else [last]

    def _chunk(self, choice: Json) -> Json:
        return {**self.head, "object": self.chunk_object, "choices": [self._choice(choice)]}

    @staticmethod
    def _choice(choice: Json) -> Json:
        return {"index": 0, **choice}

    def _asked(self) -> Json:
        return {} if self.prompt is None else {"prompt_token_ids": list(self.prompt)}

    def _told(self, pieces: Sequence[Piece]) -> Json:
        """Return what is told of tokens beside their text."""
        came = [piece for piece in pieces if piece.emitted is not None]
        ids = {} if self.prompt is None else \
            {"token_ids": [p.emitted.token for p in came if p.emitted is not None]}
        return {"logprobs": None if self.top is None else self._logprobs(came), **ids}

    def _said(self, text: str) -> Json:
        return {"text": text}

    def _delta(self, text: str | None) -> Json:
        return {"text": text or ""}

    def _logprobs(self, pieces: Sequence[Piece]) -> Json:
        emitted = [piece.emitted for piece in pieces if piece.emitted is not None]
        return {"tokens": [spoken(self.tokenizer, one.token) for one in emitted],
                "token_logprobs": [one.logprob for one in emitted],
                "top_logprobs": [{spoken(self.tokenizer, token): value for token, value in one.top}
                                 for one in emitted],
                "text_offset": [piece.offset for piece in pieces]}


class CompletionShape(Shape):
    """/v1/completions."""

    prefix, whole_object, chunk_object = "cmpl-", "text_completion", "text_completion"


class ChatShape(Shape):
    """/v1/chat/completions."""

    prefix, whole_object = "chatcmpl-", "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self) -> list[Json]:
        """Return the chunk that says who speaks."""
        return [self._chunk({"delta": {"role": "assistant", "content": ""}, "logprobs": None,
                             "finish_reason": None})]

    def _said(self, text: str) -> Json:
        return {"message": {"role": "assistant", "content": text}}

    def _delta(self, text: str | None) -> Json:
        return {"delta": {} if text is None else {"content": text}}

    def _logprobs(self, pieces: Sequence[Piece]) -> Json:
        return {"content": [self._one(piece.emitted) for piece in pieces
                            if piece.emitted is not None]}

    def _one(self, emitted: Emitted) -> Json:
        return {**self._token(emitted.token, emitted.logprob),
                "top_logprobs": [self._token(*pair) for pair in emitted.top]}

    def _token(self, token: int, logprob: float) -> Json:
        raw = self.tokenizer.piece(token)
        return {"token": spoken(self.tokenizer, token), "logprob": logprob,
                "bytes": list(raw)}
