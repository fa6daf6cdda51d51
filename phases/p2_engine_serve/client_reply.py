"""What a client asks and what it hears, read from whole replies and from streams alike."""

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
    """Without the model; `prompt` stands for both endpoints."""


@dataclass(frozen=True)
class ClientReply:
    """What a client got."""

    raw: str
    """All of it as JSON, without what differs from request to request: ids and times."""
    texts: list[str]
    """The text of each chunk that had one; a whole reply is one."""
    reason: str | None
    usage: dict[str, Any]
    ids: list[int]
    logprobs: list[float]
    top_counts: list[int]
    """How many likely tokens were told with each."""

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.texts)


def parse_reply(parts: list[dict[str, Any]]) -> ClientReply:
    """Read a whole reply, or the chunks of one."""
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
