"""A recording engine that does no inference and forgives nothing.

A token is a pure function of the tokens its own slot was fed, of their order and of the sampler,
so a request's stream in any company must be its stream alone. Every call is checked against the
protocol and logged; what a step computes lands in the slots only when its answer was read to the
end, in whoever's slot that is by then, as a copy still in flight would.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from phases.p0_scheduler.protocol import Emitted, Request, Row, Seat

VOCAB = 1_000_003
POISON = 0x7FF8_0000_DEAD_BEEF
"""The state of a slot nobody owns, and of every slot after a failed step."""


def fold(state: int, token: int) -> int:
    """Return the state after one more token."""
    return (state * 6364136223846793005 + 2 * token + 1442695040888963407) % 2**64


def sample(state: int, slot: int, sampler: object) -> Emitted:
    """Return the token that follows a state; an integer sampler is a seed."""
    seed = sampler if isinstance(sampler, int) else 0
    mixed = fold(fold(state, seed), 0x5EED) >> 24
    token, logprob = mixed % VOCAB, -((mixed >> 8) % 4096) / 512
    return Emitted(slot, token, logprob, ((token, logprob), ((token + 1) % VOCAB, logprob - 1)))


def fold_all(tokens: Sequence[int]) -> int:
    """Return the state after a prompt, from nothing."""
    state = 1
    for token in tokens:
        state = fold(state, token)
    return state


@dataclass(frozen=True)
class Call:
    """One call the engine got."""

    name: str
    ids: tuple[str, ...] = ()
    """The requests it names, row by row; empty where a slot had no owner."""
    rows: tuple[Row, ...] = ()
    """The plan of a step; the slots, with count 0, of other calls."""
    clock: int = 0
    """The scheduler's step it came in, as far as the test tells the engine."""
    failed: bool = False


@dataclass
class Tenant:
    """A request in a slot."""

    request: Request
    slot: int
    done: int
    fed: int = 0
    """Tokens its state holds, sampled ones included."""
    last: int = -1
    released: int = 0
    """How often its slot was freed; once is right."""

    @property
    def left(self) -> int:
        """Prompt tokens still to be fed."""
        return len(self.request.tokens) - self.done


class Answer(list[Emitted]):
    """A step's answer, still in flight until an iteration over it ends."""

    def __init__(self, emitted: Sequence[Emitted], landed: Callable[[], None]) -> None:
        super().__init__(emitted)
        self._landed = landed

    def __iter__(self) -> Iterator[Emitted]:
        yield from super().__iter__()
        self._landed()


@dataclass
class MockEngine:
    """Seven methods over integer states; `violations` must be empty at the end."""

    slots: int
    seed: int = 0
    during: Callable[[Call], None] | None = None
    """Called inside every call, before it takes effect: where a cancel may arrive."""
    trouble: Callable[[Call], Exception | None] | None = None
    """Returns what a call raises instead of working."""
    reuse: Callable[[Request], int] | None = None
    """How many prompt tokens a new seat holds already."""
    clock: int = 0
    log: list[Call] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    tenants: list[Tenant] = field(default_factory=list)
    """Everyone who ever had a slot."""

    def __post_init__(self) -> None:
        self.free = list(range(self.slots))
        random.Random(self.seed).shuffle(self.free)
        self.owner: dict[int, Tenant] = {}
        self.state = [POISON] * self.slots
        self._flying: object = None
        self._step: tuple[Row, ...] = ()
        self.inside = ""  # the call being served
        self._broken = self._gone = False
        self._thread = 0

    def run_single(self, request: Request) -> Iterator[Emitted]:
        """Yield the request's tokens by the definition of the mock, without slots or steps."""
        state = fold_all(request.tokens)
        while True:
            emitted = sample(state, 0, request.sampler)
            yield emitted
            state = fold(state, emitted.token)

    def start_batch(self, requests: Sequence[Request]) -> list[Seat]:
        """Seat all of them in an engine that has no tenant."""
        self._blame(not requests, "start_batch was called for nobody")
        self._blame(bool(self.owner), "start_batch was called while slots were taken")
        self._enter(Call("start_batch", tuple(request.id for request in requests)))
        return [self._seat(request) for request in requests]

    def add_slot(self, request: Request) -> Seat:
        """Seat one in a free slot, the one freed last before others."""
        self._enter(Call("add_slot", (request.id,)))
        return self._seat(request)

    def decode_step(self, plan: Sequence[Row]) -> list[Emitted]:
        """Feed every row and sample; the states land once the answer was read."""
        rows = tuple(plan)
        self._check(rows)
        self._step = rows
        try:
            self._enter(Call("decode_step", self._ids(rows), rows))
        except Exception:
            self.state = [POISON] * self.slots
            raise
        work = [(self.owner[row.slot], row.count) for row in rows if row.slot in self.owner]
        fed = [(tenant, self._feed(tenant, count)) for tenant, count in work]
        emitted = [sample(state, tenant.slot, tenant.request.sampler)
                   for tenant, state in fed if tenant.left == 0]
        for one in emitted:
            self.owner[one.slot].last = one.token
        self._flying = flight = object()
        return Answer(emitted[::-1], lambda: self._land(flight, fed))

    def recycle_slot(self, slot: int) -> None:
        """Free a slot and poison it."""
        row = Row(slot, 0)
        self._blame(slot not in self.owner, f"slot {slot} was released, but has no owner")
        early = slot in [row.slot for row in self._step] and (
            self._flying is not None or self.inside == "decode_step")
        self._blame(early, f"slot {slot} was released before the step that names it was read")
        self._enter(Call("recycle_slot", self._ids((row,)), (row,)), quiet=early)
        if slot in self.owner:
            self._vacate(slot)

    def cleanup(self) -> None:
        """End; no slot may be taken."""
        self._blame(bool(self.owner), "cleanup was called while slots were taken")
        self._broken = False
        self._enter(Call("cleanup"))
        self._gone = True

    def reset(self) -> None:
        """Free every slot; a step in flight is void."""
        self._broken, self._flying, self._step = False, None, ()
        self._enter(Call("reset", tuple(tenant.request.id for tenant in self.owner.values())))
        for slot in list(self.owner):
            self._vacate(slot)

    def steps(self) -> list[Call]:
        """Return the steps that worked, in order."""
        return [call for call in self.log if call.name == "decode_step" and not call.failed]

    def naming(self, id: str) -> list[Call]:
        """Return every call that names a request, in order."""
        return [call for call in self.log if id in call.ids]

    def computed(self, id: str) -> int:
        """Return how many tokens of a request the steps that worked computed."""
        return sum(row.count for call in self.steps()
                   for name, row in zip(call.ids, call.rows, strict=True) if name == id)

    def _blame(self, wrong: bool, sentence: str) -> None:
        if wrong:
            self.violations.append(f"{sentence} (call {len(self.log)})")

    def _enter(self, call: Call, quiet: bool = False) -> None:
        """Log a call, let the test act inside it, and raise what the test wants raised."""
        here = threading.get_ident()
        self._thread = self._thread or here
        self._blame(here != self._thread, f"{call.name} was called from a second thread")
        self._blame(self._gone, f"{call.name} was called after cleanup")
        self._blame(self._broken, f"{call.name} was called after a failed step, before reset")
        if not quiet:
            self._blame(bool(self.inside), f"{call.name} was called inside {self.inside}")
            self._blame(self._flying is not None, f"{call.name} was called before the step "
                                                  f"in flight was read")
        outer, self.inside = self.inside, call.name
        call = replace(call, clock=self.clock)
        at = len(self.log)
        self.log.append(call)
        try:
            if self.during is not None:
                self.during(call)
            error = self.trouble(call) if self.trouble is not None else None
        finally:
            self.inside = outer
        if error is not None:
            self.log[at] = replace(call, failed=True)
            self._broken = call.name not in ("start_batch", "add_slot")
            raise error

    def _ids(self, rows: Sequence[Row]) -> tuple[str, ...]:
        return tuple(self.owner[row.slot].request.id if row.slot in self.owner else ""
                     for row in rows)

    def _check(self, rows: Sequence[Row]) -> None:
        """Hold a plan to the protocol: owned slots, each once, counts that fit the prompt."""
        self._blame(not rows, "decode_step was called with no row")
        slots = [row.slot for row in rows]
        self._blame(len(set(slots)) < len(slots), f"slots {slots} are not distinct")
        for row in rows:
            tenant = self.owner.get(row.slot)
            self._blame(tenant is None, f"a step names slot {row.slot}, which has no owner")
            if tenant is not None:
                most = tenant.left or 1
                self._blame(not 1 <= row.count <= most, f"slot {row.slot} was asked for "
                                                        f"{row.count} tokens, but has {most}")

    def _seat(self, request: Request) -> Seat:
        names = [tenant.request.id for tenant in self.owner.values()]
        self._blame(request.id in names, f"request {request.id!r} was seated twice")
        self._blame(not self.free, "a seat was asked for, but every slot is taken")
        if not self.free:
            raise RuntimeError("no slot is free")
        slot = self.free.pop()
        reused = self.reuse(request) if self.reuse is not None else 0
        self.state[slot] = fold_all(request.tokens[:reused])
        self.owner[slot] = Tenant(request, slot, reused, reused)
        self.tenants.append(self.owner[slot])
        return Seat(slot, reused)

    def _feed(self, tenant: Tenant, count: int) -> int:
        tokens = tenant.request.tokens[tenant.done:tenant.done + count] or (tenant.last,)
        tenant.done = min(tenant.done + count, len(tenant.request.tokens))
        tenant.fed += len(tokens)
        state = self.state[tenant.slot]
        for token in tokens:
            state = fold(state, token)
        return state

    def _land(self, flight: object, fed: Sequence[tuple[Tenant, int]]) -> None:
        """Write what a step computed into its slots, whoever owns them by now."""
        if self._flying is not flight:  # read twice, or void since a reset
            return
        self._flying, self._step = None, ()
        for tenant, state in fed:
            self.state[tenant.slot] = state

    def _vacate(self, slot: int) -> None:
        tenant = self.owner.pop(slot)
        tenant.released += 1
        self.state[slot] = POISON
        self.free.append(slot)
