"""Types passed between the engine, the scheduler and its callers.

An engine owns slots and samples tokens; it never decides that a request has ended. The scheduler
decides, and is the only caller of the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from engine.errors import InputError

Ending = Literal["eos", "stop", "length", "cancel", "disconnect", "error"]
FromOutside = Literal["cancel", "disconnect", "stop"]


class QueueFullError(InputError):
    """The queue is full; nothing was stored, and the request may be sent again later."""


class ClosedError(InputError):
    """The scheduler is closed and accepts no more requests."""


class RowError(Exception):
    """An engine raises this when it knows which slot's row made a step fail."""

    def __init__(self, slot: int, message: str) -> None:
        super().__init__(message)
        self.slot = slot


@dataclass(frozen=True, slots=True)
class Request:
    """One request; raises `InputError` for an empty prompt and for a limit below 1."""

    id: str
    """Unique among the requests now in the scheduler."""
    tokens: tuple[int, ...]
    """The prompt."""
    limit: int
    """Maximum number of tokens to emit, including a stop token."""
    stop_ids: frozenset[int] = frozenset()
    """Tokens that end the request when emitted; end-of-text ids end it only if listed here."""
    sampler: Any = None
    """Sampling options; the scheduler passes them to the engine unread."""

    def __post_init__(self) -> None:
        if not self.tokens:
            raise InputError(f"request {self.id!r} has an empty prompt")
        if self.limit < 1:
            raise InputError(f"request {self.id!r} has limit {self.limit}, but needs 1 or more")


@dataclass(frozen=True, slots=True)
class Seat:
    """The slot that a request got."""

    slot: int
    reused: int = 0
    """Prompt tokens already in the slot's state; fewer than the prompt has."""


@dataclass(frozen=True, slots=True)
class Emitted:
    """One sampled token of one slot."""

    slot: int
    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The most likely (token, log-probability) pairs, best first."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a step: a slot and how many of its tokens to compute."""

    slot: int
    count: int
    """The length of a prefill chunk; 1 after the prompt."""


@dataclass(frozen=True, slots=True)
class Token:
    """A request got a token."""

    id: str
    index: int
    """0 for the first."""
    emitted: Emitted


@dataclass(frozen=True, slots=True)
class Ended:
    """A request ended and its slot is free again; the last event of that request."""

    id: str
    reason: Ending
    reused: int = 0
    """Prompt tokens that were not computed because they were in the slot's state."""
    detail: str = ""
    """The error message, for the reason `error`."""


Event = Token | Ended


class BatchEngine(Protocol):
    """Seven methods; one thread calls all but `run_single`, never one inside another."""

    def run_single(self, request: Request) -> Iterator[Emitted]:
        """Yield the request's tokens, run alone and without end; `close()` frees the generator."""

    def start_batch(self, requests: Sequence[Request]) -> list[Seat]:
        """Take a slot for each request while no slot is taken; a later step computes the chunks.

        Returns the seats in the order of the requests. If it raises, no slot is taken.
        """

    def add_slot(self, request: Request) -> Seat:
        """Take a slot for a request that joins others; if it raises, no slot is taken."""

    def decode_step(self, plan: Sequence[Row]) -> list[Emitted]:
        """Compute every row, and sample one token for each row whose prompt is complete.

        The answer may be in any order, and may still be in flight: its slots may be written until
        it was read to its end. After an error only `reset` may follow.
        """

    def recycle_slot(self, slot: int) -> None:
        """Free a slot; the next request must not see this one's state."""

    def cleanup(self) -> None:
        """Free the engine's memory; the last call it gets."""

    def reset(self) -> None:
        """Free every slot after an error, in whatever state it is."""
