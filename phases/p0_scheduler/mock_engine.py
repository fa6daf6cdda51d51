"""A mock engine that does no inference and records every protocol violation.

A token is a pure function of the tokens fed to its slot, their order and the sampler, so a
request's stream must not depend on other requests. Every call is checked against the protocol and
logged. A step's results are written to the slots only when its answer was read to the end, whoever
owns those slots by then, like an asynchronous copy.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from phases.p0_scheduler.protocol import Emitted, Request, Row, Seat

VOCAB = 1_000_003
POISON = 0x7FF8_0000_DEAD_BEEF
"""The state of a free slot, and of every slot after a failed step."""


def next_state(state: int, token: int) -> int:
    """Return the state after one more token."""
    return (state * 6364136223846793005 + 2 * token + 1442695040888963407) % 2**64


def sample_token(state: int, slot: int, sampler: object) -> Emitted:
    """Return the token that follows a state; an integer sampler is a seed."""
    seed = sampler if isinstance(sampler, int) else 0
    mixed = next_state(next_state(state, seed), 0x5EED) >> 24
    token, logprob = mixed % VOCAB, -((mixed >> 8) % 4096) / 512
    return Emitted(slot, token, logprob, ((token, logprob), ((token + 1) % VOCAB, logprob - 1)))


def prompt_state(tokens: Sequence[int]) -> int:
    """Return the state after a prompt."""
    state = 1
    for token in tokens:
        state = next_state(state, token)
    return state


@dataclass(frozen=True)
class EngineCall:
    """One call the engine got."""

    name: str
    ids: tuple[str, ...] = ()
    """The requests it names, row by row; empty where a slot had no owner."""
    rows: tuple[Row, ...] = ()
    """The plan of a step; the slots, with count 0, of other calls."""
    clock: int = 0
    """The scheduler step of the call, as set by the test."""
    failed: bool = False


@dataclass
class Tenant:
    """A request in a slot."""

    request: Request
    slot: int
    prefilled: int
    fed: int = 0
    """Tokens in its state, including sampled ones."""
    last_token: int = -1
    released: int = 0
    """How often its slot was freed; exactly once is correct."""

    @property
    def prompt_left(self) -> int:
        """Prompt tokens still to be fed."""
        return len(self.request.tokens) - self.prefilled


class StepAnswer(list[Emitted]):
    """A step's answer, still in flight until an iteration over it ends."""

    def __init__(self, emitted: Sequence[Emitted], landed: Callable[[], None]) -> None:
        super().__init__(emitted)
        self._on_read = landed

    def __iter__(self) -> Iterator[Emitted]:
        yield from super().__iter__()
        self._on_read()


@dataclass
class MockEngine:
    """Seven methods over integer states; `violations` must be empty at the end."""

    slots: int
    seed: int = 0
    on_call: Callable[[EngineCall], None] | None = None
    """Called inside every engine call, before it takes effect; a test may cancel here."""
    fail_call: Callable[[EngineCall], Exception | None] | None = None
    """Returns what a call raises instead of working."""
    reuse_length: Callable[[Request], int] | None = None
    """Returns how many prompt tokens are already in a new slot's state."""
    clock: int = 0
    log: list[EngineCall] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    tenants: list[Tenant] = field(default_factory=list)
    """Every request that ever had a slot."""

    def __post_init__(self) -> None:
        self.free_slots = list(range(self.slots))
        random.Random(self.seed).shuffle(self.free_slots)
        self.owners: dict[int, Tenant] = {}
        self.state = [POISON] * self.slots
        self._in_flight: object = None
        self._current_plan: tuple[Row, ...] = ()
        self.current_call = ""  # the call being served
        self._failed = self._cleaned_up = False
        self._thread = 0

    def run_single(self, request: Request) -> Iterator[Emitted]:
        """Yield the request's tokens by the definition of the mock, without slots or steps."""
        state = prompt_state(request.tokens)
        while True:
            emitted = sample_token(state, 0, request.sampler)
            yield emitted
            state = next_state(state, emitted.token)

    def start_batch(self, requests: Sequence[Request]) -> list[Seat]:
        """Give every request a slot; no slot may be taken before."""
        self._check_protocol(not requests, "start_batch was called without requests")
        self._check_protocol(bool(self.owners), "start_batch was called while slots were taken")
        self._begin_call(EngineCall("start_batch", tuple(request.id for request in requests)))
        return [self._assign_slot(request) for request in requests]

    def add_slot(self, request: Request) -> Seat:
        """Give a request the slot that was freed last."""
        self._begin_call(EngineCall("add_slot", (request.id,)))
        return self._assign_slot(request)

    def decode_step(self, plan: Sequence[Row]) -> list[Emitted]:
        """Feed every row and sample; the states are written once the answer was read."""
        rows = tuple(plan)
        self._check_plan(rows)
        self._current_plan = rows
        try:
            self._begin_call(EngineCall("decode_step", self._owner_ids(rows), rows))
        except Exception:
            self.state = [POISON] * self.slots
            raise
        work = [(self.owners[row.slot], row.count) for row in rows if row.slot in self.owners]
        fed = [(tenant, self._feed(tenant, count)) for tenant, count in work]
        emitted = [sample_token(state, tenant.slot, tenant.request.sampler)
                   for tenant, state in fed if tenant.prompt_left == 0]
        for one in emitted:
            self.owners[one.slot].last_token = one.token
        self._in_flight = flight = object()
        return StepAnswer(emitted[::-1], lambda: self._write_states(flight, fed))

    def recycle_slot(self, slot: int) -> None:
        """Free a slot and poison it."""
        row = Row(slot, 0)
        self._check_protocol(slot not in self.owners, f"slot {slot} was released, but has no owner")
        early = slot in [row.slot for row in self._current_plan] and (
            self._in_flight is not None or self.current_call == "decode_step")
        self._check_protocol(early,
                             f"slot {slot} was released before the step that names it was read")
        self._begin_call(EngineCall("recycle_slot", self._owner_ids((row,)), (row,)), quiet=early)
        if slot in self.owners:
            self._vacate(slot)

    def cleanup(self) -> None:
        """End the engine; no slot may be taken."""
        self._check_protocol(bool(self.owners), "cleanup was called while slots were taken")
        self._failed = False
        self._begin_call(EngineCall("cleanup"))
        self._cleaned_up = True

    def reset(self) -> None:
        """Free every slot and drop a step in flight."""
        self._failed, self._in_flight, self._current_plan = False, None, ()
        self._begin_call(EngineCall("reset",
                                    tuple(tenant.request.id for tenant in self.owners.values())))
        for slot in list(self.owners):
            self._vacate(slot)

    def steps(self) -> list[EngineCall]:
        """Return the successful steps, in order."""
        return [call for call in self.log if call.name == "decode_step" and not call.failed]

    def calls_naming(self, id: str) -> list[EngineCall]:
        """Return every call that names a request, in order."""
        return [call for call in self.log if id in call.ids]

    def computed_tokens(self, id: str) -> int:
        """Return how many tokens of a request the successful steps computed."""
        return sum(row.count for call in self.steps()
                   for name, row in zip(call.ids, call.rows, strict=True) if name == id)

    def _check_protocol(self, wrong: bool, sentence: str) -> None:
        if wrong:
            self.violations.append(f"{sentence} (call {len(self.log)})")

    def _begin_call(self, call: EngineCall, quiet: bool = False) -> None:
        """Log a call, run `on_call` inside it, and raise what `fail_call` returns."""
        here = threading.get_ident()
        self._thread = self._thread or here
        self._check_protocol(here != self._thread, f"{call.name} was called from a second thread")
        self._check_protocol(self._cleaned_up, f"{call.name} was called after cleanup")
        self._check_protocol(self._failed,
                             f"{call.name} was called after a failed step, before reset")
        if not quiet:
            self._check_protocol(bool(self.current_call),
                                 f"{call.name} was called inside {self.current_call}")
            self._check_protocol(self._in_flight is not None,
                                 f"{call.name} was called before the step in flight was read")
        outer, self.current_call = self.current_call, call.name
        call = replace(call, clock=self.clock)
        at = len(self.log)
        self.log.append(call)
        try:
            if self.on_call is not None:
                self.on_call(call)
            error = self.fail_call(call) if self.fail_call is not None else None
        finally:
            self.current_call = outer
        if error is not None:
            self.log[at] = replace(call, failed=True)
            self._failed = call.name not in ("start_batch", "add_slot")
            raise error

    def _owner_ids(self, rows: Sequence[Row]) -> tuple[str, ...]:
        return tuple(self.owners[row.slot].request.id if row.slot in self.owners else ""
                     for row in rows)

    def _check_plan(self, rows: Sequence[Row]) -> None:
        """Check a plan: owned slots, each once, with counts that fit the prompt."""
        self._check_protocol(not rows, "decode_step was called with no row")
        slots = [row.slot for row in rows]
        self._check_protocol(len(set(slots)) < len(slots), f"slots {slots} are not distinct")
        for row in rows:
            tenant = self.owners.get(row.slot)
            self._check_protocol(tenant is None,
                                 f"a step names slot {row.slot}, which has no owner")
            if tenant is not None:
                most = tenant.prompt_left or 1
                self._check_protocol(not 1 <= row.count <= most,
                                     f"slot {row.slot} was planned with {row.count} tokens, "
                                     f"but has {most}")

    def _assign_slot(self, request: Request) -> Seat:
        names = [tenant.request.id for tenant in self.owners.values()]
        self._check_protocol(request.id in names, f"request {request.id!r} got two slots")
        self._check_protocol(not self.free_slots, "a request was added, but every slot is taken")
        if not self.free_slots:
            raise RuntimeError("no slot is free")
        slot = self.free_slots.pop()
        reused = self.reuse_length(request) if self.reuse_length is not None else 0
        self.state[slot] = prompt_state(request.tokens[:reused])
        self.owners[slot] = Tenant(request, slot, reused, reused)
        self.tenants.append(self.owners[slot])
        return Seat(slot, reused)

    def _feed(self, tenant: Tenant, count: int) -> int:
        tokens = tenant.request.tokens[tenant.prefilled : tenant.prefilled + count] or (
            tenant.last_token,
        )
        tenant.prefilled = min(tenant.prefilled + count, len(tenant.request.tokens))
        tenant.fed += len(tokens)
        state = self.state[tenant.slot]
        for token in tokens:
            state = next_state(state, token)
        return state

    def _write_states(self, flight: object, fed: Sequence[tuple[Tenant, int]]) -> None:
        """Write a step's states into its slots, whoever owns them by now."""
        if self._in_flight is not flight:  # read twice, or dropped by a reset
            return
        self._in_flight, self._current_plan = None, ()
        for tenant, state in fed:
            self.state[tenant.slot] = state

    def _vacate(self, slot: int) -> None:
        tenant = self.owners.pop(slot)
        tenant.released += 1
        self.state[slot] = POISON
        self.free_slots.append(slot)
