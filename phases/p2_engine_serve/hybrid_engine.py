"""The hybrid engine: the scheduler's seven methods over a path and a pool of per-slot states.

One request takes the same code path as many: m = 1 is a batch of one row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from engine.config import Config
from engine.errors import InputError
from engine.model import Model
from engine.path import Path, Rows, check_token
from engine.state import Pool, State
from phases.p0_scheduler.increment import Emitted, Request, Row, RowError, Seat
from phases.p2_engine_serve.sampling import Sampling, draw


@dataclass(frozen=True, slots=True)
class Limits:
    """The size of an engine's pool."""

    slots: int
    """Requests that run at once."""
    capacity: int
    """Maximum tokens of one request, including its prompt."""
    budget: int | None = None
    """Maximum bytes of state; a larger pool is refused before it is allocated."""


class Prefixes(Protocol):
    """A cache of states of earlier prompts; the engine calls it at admission and after steps."""

    def admit(self, tokens: Sequence[int], state: State) -> int:
        """Write the longest cached proper prefix of a prompt into a fresh slot; return its length.

        Return 0 and write nothing if no prefix is cached.
        """

    def on_advance(self, tokens: Sequence[int], state: State) -> None:
        """Note that a slot's state is now after exactly these tokens; it may only be read."""

    def on_release(self, tokens: Sequence[int], state: State) -> None:
        """Note that a slot is released with the state after exactly these tokens."""


class NoPrefixes:
    """Caches nothing, so that every prompt is computed."""

    def admit(self, tokens: Sequence[int], state: State) -> int:
        """Return 0."""
        return 0

    def on_advance(self, tokens: Sequence[int], state: State) -> None:
        """Do nothing."""

    def on_release(self, tokens: Sequence[int], state: State) -> None:
        """Do nothing."""


@dataclass(slots=True)
class Tenant:
    """A request in its slot."""

    request: Request
    tokens: list[int]
    """The prompt and the sampled tokens."""
    fed: int
    """How many of them are in the slot's state."""
    drawn_count: int = 0
    """How many tokens were sampled."""

    @property
    def state_tokens(self) -> list[int]:
        """The tokens in the slot's state."""
        return self.tokens[:self.fed]

    @property
    def sampling(self) -> Sampling:
        """How its tokens are drawn."""
        sampler = self.request.sampler
        return sampler if isinstance(sampler, Sampling) else Sampling()


@dataclass
class LastSlot:
    """The slot that was released last, and the tokens in its state."""

    slot: int = -1
    tokens: list[int] = field(default_factory=list)

    def is_extended_by(self, prompt: Sequence[int]) -> bool:
        """Return whether a prompt extends exactly these tokens."""
        n = len(self.tokens)
        return 0 < n < len(prompt) and list(prompt[:n]) == self.tokens


class HybridEngine:
    """A `BatchEngine` over a model, a decode path and a pool of per-slot states."""

    draw = staticmethod(draw)

    def __init__(self, model: Model, path: Path, limits: Limits,
                 prefixes: Prefixes | None = None) -> None:
        """Allocate the pool; raise `InputError` if it exceeds the budget."""
        check_budget(model.config, limits, model.kv)
        self.model, self.path, self.limits = model, path, limits
        self.pool = model.new_pool(limits.slots, limits.capacity)
        self.prefixes = prefixes if prefixes is not None else NoPrefixes()
        self.tenants: dict[int, Tenant] = {}
        self.last_slot = LastSlot()

    def run_single(self, request: Request) -> Iterator[Emitted]:
        """Yield the request's tokens, run alone and without end, in a slot of the pool."""
        if self.tenants:
            raise InputError(f"request {request.id!r} cannot run alone: "
                             f"{len(self.tenants)} slots are in use")
        seat = self.add_slot(request)
        try:
            yield from self.decode_step([Row(seat.slot, len(request.tokens) - seat.reused)])
            while True:
                yield from self.decode_step([Row(seat.slot, 1)])
        finally:
            self.recycle_slot(seat.slot)

    def start_batch(self, requests: Sequence[Request]) -> list[Seat]:
        """Take a slot for each request; a single request may continue the last turn."""
        for request in requests:
            self._check_request(request)
        if len(requests) > self.limits.slots - len(self.tenants):
            raise InputError(f"{len(requests)} requests do not fit into "
                             f"{self.limits.slots - len(self.tenants)} free slots")
        return [self._assign_slot(request, alone=len(requests) == 1) for request in requests]

    def add_slot(self, request: Request) -> Seat:
        """Take a slot for a request that joins others."""
        return self.start_batch([request])[0]

    def decode_step(self, plan: Sequence[Row]) -> list[Emitted]:
        """Compute every row in one step of the path, and sample where a prompt is complete."""
        parts = [self._next_tokens(row) for row in plan]
        rows = Rows(tuple(row.slot for row in plan),
                    tuple(self.tenants[row.slot].fed for row in plan),
                    tuple(row.count for row in plan))
        tokens = [token for part in parts for token in part]
        logits = self.path.step(self.model, self.pool, tokens, rows)
        for row in plan:
            self.tenants[row.slot].fed += row.count
        emitted = self._sample(plan, logits)
        for row in plan:  # not reached by a step that failed
            self.prefixes.on_advance(self.tenants[row.slot].state_tokens, self.pool.slot(row.slot))
        return emitted

    def recycle_slot(self, slot: int) -> None:
        """Free a slot; its state stays for a prompt that extends exactly its tokens."""
        tenant = self.tenants.pop(slot)
        self.last_slot = LastSlot(slot, tenant.state_tokens)
        self.prefixes.on_release(tenant.state_tokens, self.pool.slot(slot))

    def cleanup(self) -> None:
        """Free the pool's memory."""
        self.reset()
        self.pool = Pool(self.model.config, 1, 1, "meta")

    def reset(self) -> None:
        """Free every slot and reuse none of their states."""
        self.tenants.clear()
        self.last_slot = LastSlot()

    def _check_request(self, request: Request) -> None:
        for token in request.tokens:
            check_token(self.model, token)
        if len(request.tokens) > self.limits.capacity:
            raise InputError(f"a prompt of {len(request.tokens)} tokens does not fit a slot of "
                             f"{self.limits.capacity}")

    def _assign_slot(self, request: Request, *, alone: bool) -> Seat:
        slot, reused = self._find_extended_slot(request) if alone and not self.tenants else (-1, 0)
        if not reused:
            slot = min(set(range(self.limits.slots)) - set(self.tenants))
            state = self.pool.slot(slot)
            state.clear()
            reused = self.prefixes.admit(request.tokens, state)
        self.last_slot = LastSlot()  # only the next request may continue a turn
        self.tenants[slot] = Tenant(request, list(request.tokens), reused)
        return Seat(slot, reused)

    def _find_extended_slot(self, request: Request) -> tuple[int, int]:
        """Return the slot whose tokens this prompt extends and their count, or (-1, 0)."""
        if self.last_slot.is_extended_by(request.tokens):
            return self.last_slot.slot, len(self.last_slot.tokens)
        return -1, 0

    def _next_tokens(self, row: Row) -> list[int]:
        tenant = self.tenants[row.slot]
        return tenant.tokens[tenant.fed:tenant.fed + row.count]

    def _sample(self, plan: Sequence[Row], logits: Tensor) -> list[Emitted]:
        """Draw a token for each row whose tokens are all computed."""
        complete = [i for i, row in enumerate(plan)
                    if self.tenants[row.slot].fed == len(self.tenants[row.slot].tokens)]
        if not complete:
            return []
        slots, logits = [plan[i].slot for i in complete], logits[complete]
        self._check_finite(slots, logits)
        tenants = [self.tenants[slot] for slot in slots]
        choices = torch.empty(len(complete), dtype=torch.int64, device=logits.device)
        self.path.argmax(logits, choices)
        drawn = self.draw(logits, choices.tolist(), [t.sampling for t in tenants],
                          [t.drawn_count for t in tenants])
        for tenant, one in zip(tenants, drawn, strict=True):
            tenant.tokens.append(one.token)
            tenant.drawn_count += 1
        return [Emitted(slot, one.token, one.logprob, one.top)
                for slot, one in zip(slots, drawn, strict=True)]

    @staticmethod
    def _check_finite(slots: Sequence[int], logits: Tensor) -> None:
        """Raise `RowError` for a row whose logits are not finite, so that only its request ends."""
        fine = torch.isfinite(logits).all(-1).tolist()
        for slot, good in zip(slots, fine, strict=True):
            if not good:
                raise RowError(slot, "the logits are not finite")


def check_budget(config: Config, limits: Limits, kv: str) -> None:
    """Raise `InputError` if a pool needs more bytes than the budget, before it is allocated."""
    one = Pool(config, 1, limits.capacity, "meta", kv).nbytes
    if limits.budget is not None and limits.slots * one > limits.budget:
        raise InputError(
            f"{limits.slots} slots of {limits.capacity} tokens need {limits.slots * one:,} bytes "
            f"of state, but the budget of {limits.budget:,} is enough for {limits.budget // one}")
