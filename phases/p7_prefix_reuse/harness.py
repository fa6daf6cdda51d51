"""The harness of the attacks: an engine with a store, driven by the stack's scheduler.

Every request that runs to its limit is compared with a solo cold start on P2's engine. Computed
tokens are counted in the path, by slot, independent of any report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from contracts.schema import Case
from engine.path import Path, Rows
from engine.state import Pool, State
from falsifiers.judging.batch_driver import make_prompt
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from phases.p2_engine_serve.increment import (
    Emitted,
    Ended,
    Limits,
    Request,
    Row,
    Sampling,
    Seat,
    Settings,
    Token,
)
from phases.p7_prefix_reuse.cold_baseline import get_baseline

AMPLE_BUDGET = 1 << 40


@dataclass
class Tenancy:
    """One use of a slot by a request."""

    request: Request
    slot: int
    reused: int
    expected_reuse: int
    """Length of the longest stored proper prefix of its prompt when it got its slot."""
    computed: int = 0


class RecordingEngine:
    """The seven methods of an engine, with a record of every tenancy."""

    def __init__(self, harness: Harness) -> None:
        self.harness, self.engine = harness, harness.engine
        self.live: dict[int, Tenancy] = {}
        self.finished: list[Tenancy] = []
        self.digests: dict[str, str] = {}
        self.unowned_tokens = 0  # tokens computed in free slots

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def start_batch(self, requests: Sequence[Request]) -> list[Seat]:
        """Add requests one by one, so that the store is inspected before each."""
        return [self.add_slot(request) for request in requests]

    def add_slot(self, request: Request) -> Seat:
        """Add a request."""
        expected = self.harness.longest_kept_prefix(request.tokens)
        seat: Seat = self.engine.add_slot(request)
        self.live[seat.slot] = Tenancy(request, seat.slot, seat.reused, expected)
        return seat

    def decode_step(self, plan: Sequence[Row]) -> list[Emitted]:
        """Do a step."""
        return list(self.engine.decode_step(plan))

    def recycle_slot(self, slot: int) -> None:
        """Store the digest of a slot's state, free the slot, and poison it."""
        tenancy, tenant = self.live.pop(slot), self.engine.tenants[slot]
        self.finished.append(tenancy)
        self.digests[tenancy.request.id] = self.engine.pool.slot(slot).digest(tenant.fed)
        self.engine.recycle_slot(slot)
        poison_slot(self.engine.pool.slot(slot))

    def reset(self) -> None:
        """Drop every live tenancy after an error."""
        self.live.clear()
        self.engine.reset()


class Harness:
    """A stack of one model, one path, one store and one engine."""

    def __init__(self, case: Case, subject: Subject, judge: Judge, *, model: str = "nano",
                 slots: int = 1, chunk: int = 64, capacity: int = 64, budget: int = AMPLE_BUDGET,
                 block: int = 4, stride: int = 8, store: Any = None,
                 path: Path | None = None) -> None:
        self.case, self.subject, self.judge, self.block = case, subject, judge, block
        self.model = subject.models(case.given.get("model", model))
        self.baseline = get_baseline(self.model, path or subject.path, capacity)
        self.path = replace(path or subject.path, step_rows=self._count_step)
        self.store = store if store is not None else subject.stack.store(budget, block)
        self.reuse = subject.stack.reuse(self.store, self.model, self.path, stride)
        self.engine = subject.stack.engine(self.model, self.path, Limits(slots, capacity),
                                           self.reuse)
        self.before_step: Callable[[Rows], None] = lambda rows: None
        self.recorder = RecordingEngine(self)
        self.poison_slots()
        self.scheduler = subject.stack.scheduler(
            self.recorder, Settings(slots=slots, queue=1000, chunk=chunk, context=capacity))
        self.tokens: dict[str, list[Emitted]] = {}
        self.ended: dict[str, Ended] = {}

    def prompt(self, seed: int, length: int) -> tuple[int, ...]:
        """Return a prompt of this model's tokens."""
        return tuple(make_prompt(seed, length, self.model.config.vocab))

    def request(self, tokens: Sequence[int], limit: int = 2,
                sampler: Sampling | None = None) -> Request:
        """Return a request with its own id; it reports the top 3 tokens by default."""
        return Request(f"r{len(self.tokens)}", tuple(tokens), limit,
                       sampler=sampler or Sampling(top=3))

    def submit(self, *requests: Request) -> None:
        """Submit requests to the scheduler."""
        for request in requests:
            self.tokens[request.id] = []
            self.scheduler.submit(request)

    def ask(self, tokens: Sequence[int], limit: int = 2,
            sampler: Sampling | None = None) -> Request:
        """Submit one request."""
        request = self.request(tokens, limit, sampler)
        self.submit(request)
        return request

    def step(self, times: int = 1) -> None:
        """Step the scheduler and store its events."""
        for _ in range(times):
            for event in self.scheduler.step():
                if isinstance(event, Token):
                    self.tokens[event.id].append(event.emitted)
                else:
                    self.ended[event.id] = event

    def serve(self, *requests: Request, reused: int | None = None) -> None:
        """Serve all submitted requests to their end and compare `requests` with cold starts.

        reused: the number of reused tokens expected for each of them.
        """
        while not self.scheduler.idle:
            self.step()
        for request in requests:
            self.check_request(request)
            if reused is not None:
                got = self.ended[request.id].reused
                self.judge.law(got == reused, f"{got} tokens of a prompt of {len(request.tokens)} "
                               f"were reused, but {reused} should be", request=request.id)

    def check_request(self, request: Request) -> None:
        """Compare a request's tokens, log-probabilities and state with those of a cold start."""
        cold, name, ended = self.baseline.serve(request), request.id, self.ended[request.id]
        self.judge.law(ended.reason == "length", f"request {name!r} ended with {ended.reason} "
                       f"{ended.detail}", request=name)
        for what in ("token", "logprob", "top"):
            self.judge.equal(what, _field_tensor(self.tokens[name], what),
                             _field_tensor(cold.emitted, what), request=name)
        self.judge.law(self.recorder.digests[name] == cold.digest, f"the state that request "
                       f"{name!r} ends in is not that of a cold start ({ended.reused} tokens "
                       f"were reused)", rung="bits", request=name)

    def check_accounting(self) -> None:
        """Compare every report of reuse with the computed tokens and with the stored prefix."""
        past, meter, counts = self.recorder.finished, self.store.meter, self.scheduler.counts
        for one in [one for one in past if self.ended[one.request.id].reason == "length"]:
            name = one.request.id
            after = max(len(self.tokens[name]) - 1, 0)
            expected = len(one.request.tokens) - one.reused + after
            self.judge.law(one.computed == expected, f"{one.computed} tokens were computed, but "
                           f"{one.reused} reported as reused leave {expected}", request=name)
            self.judge.law(
                one.reused == one.expected_reuse, f"{one.reused} tokens were reused, but the "
                f"deepest state that was kept is that of {one.expected_reuse}", request=name)
        total = sum(one.reused for one in past)
        hits = sum(one.reused > 0 for one in past)
        for what, got, want in (
                ("the store's reused tokens", meter.reused, total), ("hits", meter.hits, hits),
                ("misses", meter.misses, len(past) - hits),
                ("the tokens computed in free slots", self.recorder.unowned_tokens, 0),
                ("the scheduler's reused tokens", counts.reused, total)):
            self.judge.law(got == want, f"{what} are reported as {got}, but are {want}")
        self.judge.engaged(requests=len(past), reused=total,
                           computed=sum(one.computed for one in past))

    def turn_tokens(self, request: Request) -> tuple[int, ...]:
        """Return the tokens in the state at the end of a request's turn."""
        return (*request.tokens, *(one.token for one in self.tokens[request.id][:-1]))

    def diverging_prompt(self, tokens: Sequence[int], at: int, seed: int,
                         length: int = 2) -> tuple[int, ...]:
        """Return a prompt that shares exactly `at` tokens with `tokens`, then has `length` more."""
        fresh = self.prompt(seed, length)
        if at < len(tokens) and fresh[0] == tokens[at]:
            fresh = ((fresh[0] + 1) % self.model.config.vocab, *fresh[1:])
        return (*tokens[:at], *fresh)

    def checkpoint_bytes(self, *positions: int) -> int:
        """Return the bytes of checkpoints at some positions of one sequence, the largest last."""
        state = self.engine.pool.slot(0)
        recurrent, row = (sum(x.nbytes for x in state.named(rows).values()) for rows in (0, 1))
        tails = sum(position % self.block for position in positions)
        rows = tails + max(positions) // self.block * self.block
        return int(len(positions) * recurrent + rows * (row - recurrent))

    def checkpoint_tokens(self) -> list[tuple[int, ...]]:
        """Return the tokens of this model's checkpoints."""
        return [tokens for key, tokens in self.store.contents() if key == self.reuse.source]

    def longest_kept_prefix(self, tokens: Sequence[int]) -> int:
        """Return the length of the longest stored proper prefix, by a linear search."""
        return max((len(one) for one in self.checkpoint_tokens()
                    if len(one) < len(tokens) and tuple(tokens[:len(one)]) == one), default=0)

    def restore_checkpoint(self, tokens: Sequence[int]) -> State:
        """Return a poisoned slot into which the checkpoint after tokens was restored."""
        pool = Pool(self.model.config, 1, self.engine.limits.capacity, self.model.device)
        poison_slot(pool.slot(0))
        got: int = self.store.restore(self.reuse.source, (*tokens, 0), pool.slot(0))
        self.judge.law(got == len(tokens), f"a checkpoint of {len(tokens)} tokens is listed, but "
                       f"a prompt that extends it reuses {got}")
        return pool.slot(0)

    def check_checkpoints(self) -> None:
        """Compare every checkpoint with the state of a cold start after its tokens."""
        for tokens in self.checkpoint_tokens():
            self.judge.law(self.restore_checkpoint(tokens).digest(len(tokens))
                           == self.baseline.digest(tokens),
                           f"the checkpoint after {len(tokens)} tokens is not the state after them",
                           rung="bits", position=len(tokens))

    def poison_slots(self) -> None:
        """Overwrite every slot of the pool with NaN."""
        for slot in range(self.engine.limits.slots):
            poison_slot(self.engine.pool.slot(slot))

    def _count_step(self, path: Path, model: Any, pool: Pool, tokens: Sequence[int], rows: Rows,
                    sink: Any) -> Tensor:
        self.before_step(rows)
        for slot, count in zip(rows.slots, rows.counts, strict=True):
            if slot in self.recorder.live:
                self.recorder.live[slot].computed += count
            else:
                self.recorder.unowned_tokens += count
        inner = self.baseline.path
        return inner.step_rows(replace(path, step_rows=inner.step_rows), model, pool, tokens, rows,
                               sink)


def poison_slot(slot: State) -> None:
    """Overwrite a slot's tensors with NaN."""
    for tensor in slot.named().values():
        tensor.fill_(float("nan"))


def _field_tensor(emitted: Iterable[Emitted], name: str) -> Tensor:
    """Return one field of some tokens as a tensor."""
    values = [getattr(one, name) for one in emitted]
    return torch.tensor(values, dtype=torch.float64)

