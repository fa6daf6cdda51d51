"""The scheduler's records: settings, the state of a request, and counters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.errors import InputError
from phases.p0_scheduler.protocol import Ending, Request, Seat


@dataclass(frozen=True, slots=True)
class Settings:
    """A scheduler's settings; raises `InputError` for numbers out of range."""

    slots: int
    """Requests that run at once: the engine's slots, not counting padding."""
    queue: int
    """Requests that may wait; the next one is refused."""
    chunk: int
    """Maximum prompt tokens of one row in a step; a step has at most slots * chunk tokens."""
    context: int | None = None
    """Tokens that fit a slot; a request that may need more is refused."""
    eos: frozenset[int] = frozenset()
    """Stop ids that are reported as `eos`; they end only requests that list them."""

    def __post_init__(self) -> None:
        for name, value, least in (("slots", self.slots, 1), ("queue", self.queue, 0),
                                   ("chunk", self.chunk, 1)):
            if value < least:
                raise InputError(f"{name} is {value}, but must be at least {least}")


@dataclass(slots=True, eq=False)
class RequestState:
    """One request between `submit` and `Ended`."""

    request: Request
    seat: Seat | None = None
    prefilled: int = 0
    """Prompt tokens in the slot's state."""
    sampled: int = 0
    """Tokens sampled since it got its slot; below len(tokens) during a replay."""
    tokens: list[int] = field(default_factory=list)
    """Every token that was delivered."""
    ending: Ending | None = None
    """Set once, by whichever ending comes first."""
    detail: str = ""
    reused: int = 0
    """Prompt tokens that were already in its newest slot's state."""
    failed_at: int = -1
    """Its progress when a step of several rows failed; -1 when no such step is pending."""

    @property
    def progress(self) -> int:
        """Tokens prefilled and sampled since it got its slot."""
        return self.prefilled + self.sampled

    @property
    def is_suspect(self) -> bool:
        """Whether it must run alone past the point of failure before it shares a step again."""
        return self.progress <= self.failed_at

    @property
    def prompt_left(self) -> int:
        """Prompt tokens still to compute."""
        return len(self.request.tokens) - self.prefilled

    def assign_seat(self, seat: Seat) -> None:
        """Start in a slot, after the reused tokens; delivered tokens stay delivered."""
        self.seat, self.sampled = seat, 0
        self.prefilled = self.reused = seat.reused


@dataclass(frozen=True, slots=True)
class Counts:
    """A snapshot of the counters, for metrics and checks."""

    waiting: int
    """Accepted requests without a slot."""
    live: int
    """Slots in use."""
    batch: int
    """Rows of the newest step."""
    formed: int
    """The largest batch so far."""
    steps: int
    admitted: int
    """Slots assigned."""
    released: int
    """Slots released, one by one or by a reset."""
    prefilled: int
    """Prompt tokens computed."""
    reused: int
    """Prompt tokens not computed because they were in the slot's state."""
    ended: Mapping[str, int]
    """Endings by reason."""
