"""Run the same planned steps twice: as a batch, and as one run for each of its sequences.

Each run advances one planned step at a time. Models, pools and paths come from the caller as
objects; this module only calls their methods.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from falsifiers.bisect.trace import digest_tensor
from falsifiers.judging.batch_driver import MakeRows, make_prompt
from falsifiers.judging.errors import SuiteError

TAIL_ROWS = 17
"""Cache rows after the longest sequence; a read past its end reads poison."""
IDLE_SLOTS = 2
"""Slots that no sequence uses; one holds random numbers, one NaN."""
StateDigests = dict[int, dict[str, bytes]]
"""Digests of the state tensors, by slot and name."""


@dataclass(frozen=True)
class Step:
    """One step: its rows, their tokens, and the slots that are cleared before it."""

    slots: tuple[int, ...]
    positions: tuple[int, ...]
    counts: tuple[int, ...]
    tokens: tuple[int, ...]
    joins: tuple[int, ...]

    def spans(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """Return each row's slot, position and tokens."""
        ends = [sum(self.counts[:i + 1]) for i in range(len(self.counts))]
        return [(slot, position, self.tokens[end - count:end]) for slot, position, count, end
                in zip(self.slots, self.positions, self.counts, ends, strict=True)]


def plan(m: int, steps: int, prompt: int, vocab: int, seed: int = 0) -> list[Step]:
    """Return steps of up to `m` rows on m + 2 slots: ragged chunks, then decoding.

    The first row's prompt has `prompt` tokens. Rows change order from step to step, one sits a
    step out, and a slot is taken over by a new sequence of one token.
    """
    draw = random.Random(seed)
    slots = draw.sample(range(m + IDLE_SLOTS), m)
    texts = {slot: (make_prompt(1000 * seed + i, prompt + 5 * steps + 8, vocab), 0)
             for i, slot in enumerate(slots)}
    planned = []
    for number in range(steps):
        joins: tuple[int, ...] = tuple(slots) if number == 0 else ()
        if number == 4:
            joins = (slots[-1],)
            texts[slots[-1]] = (make_prompt(1000 * seed + m, 5 * steps + 8, vocab), 0)
        active = slots[1:] if number == 3 and m > 1 else list(slots)
        counts = [_token_count(number, i, slot == slots[0], prompt)
                  for i, slot in enumerate(active)]
        spans = [(texts[s], c) for s, c in zip(active, counts, strict=True)]
        planned.append(Step(tuple(active), tuple(at for (_, at), _ in spans), tuple(counts),
                            tuple(t for (text, at), c in spans for t in text[at:at + c]), joins))
        texts.update({s: (text, at + c) for s, ((text, at), c) in zip(active, spans, strict=True)})
        draw.shuffle(slots)
    return planned


def _token_count(number: int, row: int, first: bool, prompt: int) -> int:
    if number == 0:
        return prompt if first else 1 + (5 * row + 2) % 7
    return 1 + (3 * row + 1) % 5 if number == 1 else 1


def capacity_of(steps: Sequence[Step]) -> int:
    """Return how many cache rows a slot needs for the steps, plus `TAIL_ROWS`."""
    return TAIL_ROWS + max(p + c for s in steps for p, c in zip(s.positions, s.counts, strict=True))


@dataclass(frozen=True)
class Setup:
    """The models and paths that a bisection compares."""

    name: str
    """The batched path, for messages."""
    against: str
    """What each row is compared with, for messages."""
    model: Any
    """The model on the device of the batch."""
    path: Callable[[], Any]
    """Returns a new path under test; a wrong path may carry state from one run to the next."""
    solo_path: Callable[[], Any] | None
    """Returns a new path for the solo rows, or None for the oracle, `forward_single`."""
    oracle: Any
    """The model that runs the solo rows."""
    trusted_path: Any
    """A path with correct ops, from which ops are swapped back."""
    rows: MakeRows

    @property
    def is_self_compared(self) -> bool:
        """Whether the solo rows run on the path under test."""
        return self.solo_path is self.path


class BatchRun:
    """Runs all rows together, on a pool whose unwritten state is poison."""

    def __init__(self, setup: Setup, path: Any, steps: Sequence[Step], m: int) -> None:
        self.setup, self.path = setup, path
        self.pool = setup.model.new_pool(m + IDLE_SLOTS, capacity_of(steps))
        named = {slot for step in steps for slot in step.joins}
        idle = [slot for slot in range(m + IDLE_SLOTS) if slot not in named]
        draw = torch.Generator().manual_seed(1)
        for slot in range(m + IDLE_SLOTS):
            for view in self.pool.slot(slot).named().values():
                numbers = slot in idle[:1]
                view.copy_(torch.randn(view.shape, generator=draw) if numbers
                           else torch.full(view.shape, torch.nan))

    def join(self, step: Step) -> None:
        """Clear the slots whose sequences begin with this step."""
        for slot in step.joins:
            self.pool.slot(slot).clear()

    def advance(self, step: Step, sink: Any) -> Tensor:
        """Run the step; return logits f32[m, vocab]."""
        rows = self.setup.rows(step.slots, step.positions, step.counts)
        try:
            logits: Tensor = self.path.step(self.setup.model, self.pool, list(step.tokens), rows,
                                            sink)
        except Exception as error:
            raise SuiteError(f"a step of {len(step.slots)} rows on {self.setup.name} raised "
                             f"{type(error).__name__}: {error}") from error
        return logits

    def state(self, slot: int) -> dict[str, Tensor]:
        """Return views of a slot's state tensors, by name."""
        named: dict[str, Tensor] = self.pool.slot(slot).named()
        return named

    @property
    def slots(self) -> range:
        """Every slot of the pool."""
        return range(self.pool.slots)


def digest_states(run: BatchRun | SoloRun, slots: Sequence[int]) -> StateDigests:
    """Return digests of the slots' state tensors."""
    return {slot: {name: digest_tensor(x) for name, x in run.state(slot).items()}
            for slot in slots}


def clone_states(run: BatchRun | SoloRun, slots: Sequence[int]) -> dict[int, dict[str, Tensor]]:
    """Return copies of the slots' state tensors."""
    return {slot: {name: x.clone() for name, x in run.state(slot).items()} for slot in slots}


def restore_states(run: BatchRun | SoloRun, copies: dict[int, dict[str, Tensor]]) -> None:
    """Write back copies of the slots' state tensors."""
    for slot, named in copies.items():
        for name, view in run.state(slot).items():
            view.copy_(named[name])


class SoloRun:
    """Runs each row by itself, in a pool of one slot with the same first contents as the batch."""

    def __init__(self, setup: Setup, path: Any, steps: Sequence[Step]) -> None:
        self.setup, self.path, self.capacity = setup, path, capacity_of(steps)
        self.pools: dict[int, Any] = {}

    def join(self, step: Step) -> None:
        """Give each sequence that begins a cleared slot, with poison past its end as in a batch."""
        for slot in step.joins:
            if slot not in self.pools:
                self.pools[slot] = self.setup.oracle.new_pool(1, self.capacity)
                for view in self.state(slot).values():
                    view.fill_(torch.nan)
            self.pools[slot].slot(0).clear()

    def advance(self, step: Step, sink: Any, only: int | None = None) -> Tensor:
        """Run the step's rows one after another; return logits f32[m, vocab].

        `only` names the one slot whose row is run.
        """
        logits = []
        for slot, position, tokens in step.spans():
            if only not in (None, slot):
                continue

            def report(op: str, _: int, inputs: tuple[Tensor, ...], output: Tensor,
                       slot: int = slot) -> None:
                sink(op, slot, inputs, output)

            logits.append(self.run_tokens(slot, list(tokens), position, sink and report))
        return torch.stack(logits) if logits else torch.empty(0)

    def run_tokens(self, slot: int, tokens: list[int], position: int, sink: Any = None) -> Tensor:
        """Run tokens of one sequence; return the logits f32[vocab] of the last."""
        model, pool = self.setup.oracle, self.pools[slot]
        if self.path is None:
            logits: Tensor = model.prefill(tokens, pool.slot(0), position, sink)
            return logits
        rows = self.setup.rows((0,), (position,), (len(tokens),))
        try:
            row_logits: Tensor = self.path.step(model, pool, tokens, rows, sink)[0]
        except Exception as error:
            raise SuiteError(f"a solo row on {self.setup.against} raised "
                             f"{type(error).__name__}: {error}") from error
        return row_logits

    def choose_token(self, logits: Tensor) -> int:
        """Return the argmax of logits f32[1, vocab]."""
        path = self.path or self.setup.oracle.ops
        out = torch.empty(1, dtype=torch.int64, device=logits.device)
        try:
            path.argmax(logits, out)
        except Exception as error:
            raise SuiteError(f"argmax of a solo row on {self.setup.against} raised "
                             f"{type(error).__name__}: {error}") from error
        return int(out[0])

    def state(self, slot: int) -> dict[str, Tensor]:
        """Return views of the state tensors of a sequence's slot, by name."""
        named: dict[str, Tensor] = self.pools[slot].slot(0).named()
        return named
