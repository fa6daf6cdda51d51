"""The timed decode runs, and the check that their steps give the looped path's bits.

Every slot's cache is filled with random values up to the context, and with NaN after it. Row i
uses slot m - 1 - i.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.errors import InputError
from engine.model import Model
from engine.ops import argmax
from engine.path import Path, Rows
from engine.state import Pool
from falsifiers.gate.benchmark_records import BitsDifferError

SEQUENCES = 5
"""Different sequences, assigned to rows in turn; no tile of rows is a multiple of 5."""
STATE_KINDS = ("conv", "delta", "k", "v")


@dataclass
class DecodeRun:
    """One path's decode of m rows; each step is fed the tokens that the last one chose."""

    model: Model
    path: Path
    pool: Pool
    m: int
    context: int
    steps_done: int = 0
    tokens: list[int] = field(default_factory=list)

    @property
    def rows(self) -> Rows:
        """The rows of the next step, slots in descending order."""
        return Rows.decode(range(self.m)[::-1], (self.context + self.steps_done,) * self.m)

    def describe_row(self, row: int) -> str:
        """Return a row's location for a message."""
        return (f"[row {row}, slot {self.rows.slots[row]}] of {self.path.name}, m = {self.m}, "
                f"context {self.context:,}")

    def run_step(self, traced: Path | None = None) -> None:
        """Run the next step, or its traced form, and choose each row's token."""
        if traced is not None:  # `decode_greedy` need not report its ops
            self.tokens = traced.forward_batch_greedy(self.model, self.pool, self.tokens, self.rows)
        else:
            chosen = self.path.decode_greedy(self.model, self.pool, self.tokens, self.rows, 1)
            self.tokens = [row[0] for row in chosen]
        self.steps_done += 1


@dataclass(frozen=True)
class ExpectedStep:
    """The state of sequences before a step, and the looped path's state and logits after it."""

    before: Pool
    after: Pool
    logits: Tensor
    """f32[sequences, vocab]."""
    context: int

    @staticmethod
    def compute(looped: Path, oracle: Model, context: int, room: int, widest: int) -> ExpectedStep:
        """Draw sequences for up to `widest` rows, and run the looped step on each.

        A slot has space for `room` tokens after the context.
        """
        count = min(SEQUENCES, widest)
        before, after = (oracle.new_pool(count, context + room) for _ in range(2))
        fill_state(before, context)
        for kind in STATE_KINDS:
            for layer, state in getattr(before, kind).items():
                getattr(after, kind)[layer].copy_(state)
        tokens = [first_token(oracle, i) for i in range(count)]
        logits = looped.step(oracle, after, tokens,
                             Rows.decode(range(count), (context,) * count))
        if not bool(torch.isfinite(logits).all()):
            raise InputError(f"the looped path's logits at context {context} are not finite, so "
                             f"they cannot be compared: use another model")
        return ExpectedStep(before, after, logits, context)

    def sequence_in(self, slot: int) -> int:
        """Return the index of a slot's sequence."""
        return slot % len(self.logits)

    def make_pool(self, model: Model, m: int) -> Pool:
        """Return a pool of m slots, filled with the sequences in turn."""
        pool = model.new_pool(m, self.before.capacity)
        self.refill(pool)
        return pool

    def refill(self, pool: Pool) -> None:
        """Restore every slot to its state before the step."""
        owners = torch.tensor([self.sequence_in(slot) for slot in range(pool.slots)],
                              device=pool.device)
        for kind in STATE_KINDS:
            for layer, state in getattr(pool, kind).items():
                torch.index_select(getattr(self.before, kind)[layer], 0, owners, out=state)

    def check_step(self, run: DecodeRun) -> int:
        """Compare one step with the looped one, and then a greedy step, which is what is timed.

        Return the number of compared values. The run has then done one step. Raise
        `BitsDifferError` at the first difference.
        """
        slots = run.rows.slots
        first = [first_token(run.model, self.sequence_in(slot)) for slot in slots]
        logits = run.path.step(run.model, run.pool, first, run.rows)
        compared = self._check_state(run)
        for row, slot in enumerate(slots):
            compared += check_equal(f"logits{run.describe_row(row)}", logits[row],
                                    self.logits[self.sequence_in(slot)])
        self.refill(run.pool)
        run.tokens = first
        run.run_step()
        best = torch.empty(len(self.logits), dtype=torch.int64, device=logits.device)
        argmax(self.logits, best)
        for row, slot in enumerate(slots):
            want = int(best[self.sequence_in(slot)])
            if run.tokens[row] != want:
                raise BitsDifferError(f"the greedy token{run.describe_row(row)} is "
                                      f"{run.tokens[row]}, but should be {want}")
        return compared + run.m + self._check_state(run)

    def _check_state(self, run: DecodeRun) -> int:
        compared = 0
        for row, slot in enumerate(run.rows.slots):
            expected = self.after.slot(self.sequence_in(slot)).named()
            for name, view in run.pool.slot(slot).named().items():
                compared += check_equal(f"{name}{run.describe_row(row)}", view, expected[name])
        return compared


def fill_state(pool: Pool, context: int) -> None:
    """Fill every slot with random values, and its cache after `context` tokens with NaN."""
    draw = torch.Generator(pool.device).manual_seed(17)
    for kind in STATE_KINDS:
        for state in getattr(pool, kind).values():
            state.normal_(generator=draw).mul_(0.1 if kind == "delta" else 1.0)
            if kind in ("k", "v"):
                state[:, context:] = torch.nan


def first_token(model: Model, sequence: int) -> int:
    """Return the first token of a sequence."""
    return (7919 * sequence + 101) % model.config.vocab


def check_equal(name: str, got: Tensor, want: Tensor) -> int:
    """Return the number of equal values; raise `BitsDifferError` where bits differ.

    Every NaN equals every other. The comparison runs on the device: a cache is too large to copy.
    """
    if got.shape != want.shape:
        raise BitsDifferError(f"{name} has shape {list(got.shape)}, but should have "
                              f"{list(want.shape)}")
    if got.dtype != want.dtype:
        raise BitsDifferError(f"{name} is {got.dtype}, but should be {want.dtype}")
    width = got.element_size()
    a, b = (x.contiguous().view({4: torch.int32, 2: torch.int16}[width]) for x in (got, want))
    if torch.equal(a, b):
        return got.numel()
    wrong = ((a != b) & ~(torch.isnan(got) & torch.isnan(want))).flatten().nonzero().flatten()
    if not len(wrong):
        return got.numel()
    at = int(wrong[0])
    bits = [f"0x{int(x.flatten()[at]) % (1 << 8 * width):0{2 * width}x}" for x in (a, b)]
    raise BitsDifferError(f"{name}, value {at}, is {bits[0]}, but should be {bits[1]}; "
                          f"{len(wrong):,} of {got.numel():,} values differ")
