"""The JSON of replies and of their chunks, for both endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.tokenizer import Tokenizer
from phases.p0_scheduler.increment import Emitted
from phases.p2_engine_serve.request_stream import Piece, ReplyEnd

Json = dict[str, Any]


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """Return a token's text; incomplete characters are written in hexadecimal."""
    raw = tokenizer.piece(token)
    if not raw:
        return tokenizer.tokens[token]
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class ReplyFormat:
    """The reply format of one endpoint."""

    prefix, full_object, chunk_object = "", "", ""

    def __init__(self, tokenizer: Tokenizer, id: str, created: int, model: str, *,
                 top: int | None, prompt: Sequence[int] | None) -> None:
        """Report log-probs with `top` likely tokens unless None, and ids if `prompt` is set."""
        self.tokenizer, self.top, self.prompt = tokenizer, top, prompt
        self.common_fields: Json = {"id": f"{self.prefix}{id}", "created": created, "model": model}

    def full_reply(self, pieces: Sequence[Piece], done: ReplyEnd) -> Json:
        """Return the reply as one object."""
        choice = {**self._text_field("".join(piece.text for piece in pieces)),
                  **self._token_fields(pieces), "finish_reason": done.reason}
        return {**self.common_fields, "object": self.full_object,
                "choices": [self._choice(choice)], "usage": done.usage, **self._prompt_ids()}

    def first_chunks(self) -> list[Json]:
        """Return the chunks before the first token."""
        return []

    def chunk(self, piece: Piece) -> Json | None:
        """Return a piece as a chunk, or None if it would be empty."""
        if not piece.text and (piece.emitted is None or
                               (self.top is None and self.prompt is None)):
            return None
        return self._chunk({**self._delta_field(piece.text), **self._token_fields([piece]),
                            "finish_reason": None})

    def last_chunks(self, done: ReplyEnd, *, usage: bool) -> list[Json]:
        """Return the chunks after the last token."""
        last = self._chunk({**self._delta_field(None), "logprobs": None,
                            "finish_reason": done.reason})
        usage_chunk = {**self.common_fields, "object": self.chunk_object, "choices": [],
                       "usage": done.usage}
        return [last, usage_chunk] if usage else [last]

    def _chunk(self, choice: Json) -> Json:
        return {**self.common_fields, "object": self.chunk_object,
                "choices": [self._choice(choice)]}

    @staticmethod
    def _choice(choice: Json) -> Json:
        return {"index": 0, **choice}

    def _prompt_ids(self) -> Json:
        return {} if self.prompt is None else {"prompt_token_ids": list(self.prompt)}

    def _token_fields(self, pieces: Sequence[Piece]) -> Json:
        """Return the log-probs and ids of the pieces' tokens."""
        sampled = [piece for piece in pieces if piece.emitted is not None]
        ids = {} if self.prompt is None else \
            {"token_ids": [p.emitted.token for p in sampled if p.emitted is not None]}
        return {"logprobs": None if self.top is None else self._logprobs(sampled), **ids}

    def _text_field(self, text: str) -> Json:
        return {"text": text}

    def _delta_field(self, text: str | None) -> Json:
        return {"text": text or ""}

    def _logprobs(self, pieces: Sequence[Piece]) -> Json:
        emitted = [piece.emitted for piece in pieces if piece.emitted is not None]
        return {"tokens": [token_text(self.tokenizer, one.token) for one in emitted],
                "token_logprobs": [one.logprob for one in emitted],
                "top_logprobs": [{token_text(self.tokenizer, token): value for token,
                                  value in one.top} for one in emitted],
                "text_offset": [piece.offset for piece in pieces]}


class CompletionFormat(ReplyFormat):
    """/v1/completions."""

    prefix, full_object, chunk_object = "cmpl-", "text_completion", "text_completion"


class ChatFormat(ReplyFormat):
    """/v1/chat/completions."""

    prefix, full_object = "chatcmpl-", "chat.completion"
    chunk_object = "chat.completion.chunk"

    def first_chunks(self) -> list[Json]:
        """Return the chunk with the assistant's role."""
        return [self._chunk({"delta": {"role": "assistant", "content": ""}, "logprobs": None,
                             "finish_reason": None})]

    def _text_field(self, text: str) -> Json:
        return {"message": {"role": "assistant", "content": text}}

    def _delta_field(self, text: str | None) -> Json:
        return {"delta": {} if text is None else {"content": text}}

    def _logprobs(self, pieces: Sequence[Piece]) -> Json:
        return {"content": [self._token_logprobs(piece.emitted) for piece in pieces
                            if piece.emitted is not None]}

    def _token_logprobs(self, emitted: Emitted) -> Json:
        return {**self._format_token(emitted.token, emitted.logprob),
                "top_logprobs": [self._format_token(*pair) for pair in emitted.top]}

    def _format_token(self, token: int, logprob: float) -> Json:
        raw = self.tokenizer.piece(token)
        return {"token": token_text(self.tokenizer, token), "logprob": logprob,
                "bytes": list(raw)}
