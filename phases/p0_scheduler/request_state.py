"""The scheduler's own records: its settings, a request on its way, and what was counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.errors import InputError
from phases.p0_scheduler.protocol import Ending, Request, Seat


@dataclass(frozen=True, slots=True)
class Settings:
    """What a scheduler is told once; refuses numbers that cannot work."""

    slots: int
    """How many requests run at once: the engine's slots, without any it keeps as padding."""
    queue: int
    """How many more may wait; the next one is refused."""
    chunk: int
    """The most prompt tokens of one row in one step, so a step has at most slots x chunk."""
    context: int | None = None
    """How many tokens a slot holds; a request that could need more is refused."""
    eos: frozenset[int] = frozenset()
    """Which stop ids are called `eos` when they end a request; they stop only who asks for it."""

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
    """Tokens sampled since it was seated; below len(tokens) while a lost slot is replayed."""
    tokens: list[int] = field(default_factory=list)
    """Every token that was handed out."""
    ending: Ending | None = None
    """Set once, by whichever ending comes first."""
    detail: str = ""
    reused: int = 0
    """Prompt tokens its newest seat held already."""
    failed_at: int = -1
    """Its progress when a step with several rows failed, until it is known not to be at fault."""

    @property
    def progress(self) -> int:
        """How many tokens it has got through since it was seated."""
        return self.prefilled + self.sampled

    @property
    def is_suspect(self) -> bool:
        """Whether it must pass the point of the failure alone before it shares a step again."""
        return self.progress <= self.failed_at

    @property
    def prompt_left(self) -> int:
        """Prompt tokens still to compute."""
        return len(self.request.tokens) - self.prefilled

    def assign_seat(self, seat: Seat) -> None:
        """Begin in a slot, behind what its state holds; what was handed out stays so."""
        self.seat, self.sampled = seat, 0
        self.prefilled = self.reused = seat.reused


@dataclass(frozen=True, slots=True)
class Counts:
    """A snapshot for metrics and for accounts that must balance."""

    waiting: int
    """Accepted and not seated."""
    live: int
    """Slots taken now."""
    batch: int
    """Rows of the newest step."""
    formed: int
    """The largest batch so far."""
    steps: int
    admitted: int
    """Seats taken."""
    released: int
    """Seats given back, one by one or by a reset."""
    prefilled: int
    """Prompt tokens computed."""
    reused: int
    """Prompt tokens not computed because a slot held them."""
    ended: Mapping[str, int]
    """Endings by reason."""
