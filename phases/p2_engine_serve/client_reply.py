"""A client's request and the reply it receives, streamed or not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ClientRequest:
    """One request of a client."""

    endpoint: str
    """`completions` or `chat`."""
    stream: bool
    body: dict[str, Any]
    """Without the model; chats have a `prompt` too, which becomes their message."""


@dataclass(frozen=True)
class ClientReply:
    """What a client received."""

    raw: str
    """The complete reply as JSON, without ids and times, which differ between requests."""
    texts: list[str]
    """The text of each chunk that has one; one text for a reply that is not streamed."""
    reason: str | None
    usage: dict[str, Any]
    ids: list[int]
    logprobs: list[float]
    top_counts: list[int]
    """How many likely tokens were reported with each token."""

    @property
    def text(self) -> str:
        """The complete text."""
        return "".join(self.texts)


def parse_reply(parts: list[dict[str, Any]]) -> ClientReply:
    """Parse a complete reply (one part), or the chunks of a stream."""
    texts: list[str] = []
    reasons: list[str] = []
    ids: list[int] = []
    logprobs: list[float] = []
    tops: list[int] = []
    for part in parts:
        for choice in part["choices"]:
            message = choice.get("message") or choice.get("delta") or choice
            texts += [text] if (text := message.get("text") or message.get("content")) else []
            reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
            ids += choice.get("token_ids") or []
            field = choice.get("logprobs") or {}
            logprobs += field.get("token_logprobs") or []
            logprobs += [one["logprob"] for one in field.get("content") or []]
            tops += [len(one) for one in field.get("top_logprobs") or []]
            tops += [len(one["top_logprobs"]) for one in field.get("content") or []]
    usage: dict[str, Any] = next((part["usage"] for part in parts if part.get("usage")), {})
    plain = [{k: v for k, v in part.items() if k not in ("id", "created")} for part in parts]
    return ClientReply(json.dumps(plain), texts, reasons[0] if len(reasons) == 1 else None, usage,
                       ids, logprobs, tops)
