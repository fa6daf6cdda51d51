"""What passes between the engine, the scheduler and those who wait for tokens.

An engine holds slots and samples; it never decides that a request has ended. The scheduler
decides, and is the only one to call the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from engine.errors import InputError

Ending = Literal["eos", "stop", "length", "cancel", "disconnect", "error"]
FromOutside = Literal["cancel", "disconnect", "stop"]


class QueueFullError(InputError):
    """The request is refused now and may be sent again later; nothing was kept of it."""


class ClosedError(InputError):
    """The scheduler takes no more requests."""


class RowError(Exception):
    """An engine raises this when it knows which slot's row made a step fail."""

    def __init__(self, slot: int, message: str) -> None:
        super().__init__(message)
        self.slot = slot


@dataclass(frozen=True, slots=True)
class Request:
    """What one caller wants; refuses an empty prompt and a limit below one."""

    id: str
    """Unique among the requests now in the scheduler."""
    tokens: tuple[int, ...]
    """The prompt."""
    limit: int
    """The most tokens to emit, a stop token included."""
    stop_ids: frozenset[int] = frozenset()
    """Tokens that end the request once emitted; without the end-of-text ids, those are ignored."""
    sampler: Any = None
    """The engine's own business; the scheduler hands it through."""

    def __post_init__(self) -> None:
        if not self.tokens:
            raise InputError(f"request {self.id!r} has an empty prompt")
        if self.limit < 1:
            raise InputError(f"request {self.id!r} has limit {self.limit}, but needs 1 or more")


@dataclass(frozen=True, slots=True)
class Seat:
    """A slot taken for a request."""

    slot: int
    reused: int = 0
    """How many prompt tokens the slot's state already holds; fewer than the prompt has."""


@dataclass(frozen=True, slots=True)
class Emitted:
    """One sampled token of one slot."""

    slot: int
    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest (token, log-probability) pairs, best first."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a step: how many tokens of that slot it computes."""

    slot: int
    count: int
    """A prefill chunk's length while the prompt lasts, then 1."""


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
    """Prompt tokens that were not computed because the slot's state held them."""
    detail: str = ""
    """What went wrong, for the reason `error`."""


Event = Token | Ended


class BatchEngine(Protocol):
    """Seven methods; all but `run_single` are called by one thread, never one inside another."""

    def run_single(self, request: Request) -> Iterator[Emitted]:
        """Yield the request's tokens alone and without end; a generator, freed by `close()`."""

    def start_batch(self, requests: Sequence[Request]) -> list[Seat]:
        """Take a slot for each request while no slot is taken; first chunks follow in a step.

        Returns the seats in the order of the requests. An engine that raises has taken none.
        """

    def add_slot(self, request: Request) -> Seat:
        """Take a slot for a request that joins others; an engine that raises has taken none."""

    def decode_step(self, plan: Sequence[Row]) -> list[Emitted]:
        """Compute every row, and sample one token for each row that has its whole prompt.

        The answer may come in any order, and may still be in flight: the slots it names are
        written to until it was read to its end. After a raise only `reset` may follow.
        """

    def recycle_slot(self, slot: int) -> None:
        """Free a slot; its next tenant must find nothing of this one."""

    def cleanup(self) -> None:
        """Give back what the engine holds; the last call it gets."""

    def reset(self) -> None:
        """Free every slot after an error, whatever state they are in."""
