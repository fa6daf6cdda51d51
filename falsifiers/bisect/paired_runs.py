"""The same tokens on two lanes: a batch, and each of its sequences alone.

A lane advances by one planned step at a time. Nothing here knows more of models, pools and paths
than their methods; whoever wires the suite hands them over.
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
"""Cache rows behind the longest sequence, so that a read past its end meets poison."""
IDLE_SLOTS = 2
"""Slots that no sequence takes; one holds numbers, one NaN."""
StateDigests = dict[int, dict[str, bytes]]
"""Digests of what slots hold, by slot and name."""


@dataclass(frozen=True)
class Step:
    """What one step advances: rows, their tokens, and the slots that begin anew before it."""

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
    made = []
    for number in range(steps):
        joins: tuple[int, ...] = tuple(slots) if number == 0 else ()
        if number == 4:
            joins = (slots[-1],)
            texts[slots[-1]] = (make_prompt(1000 * seed + m, 5 * steps + 8, vocab), 0)
        active = slots[1:] if number == 3 and m > 1 else list(slots)
        counts = [
            _token_count(number, i, slot == slots[0], prompt) for i, slot in enumerate(active)
        ]
        spans = [(texts[s], c) for s, c in zip(active, counts, strict=True)]
        made.append(Step(tuple(active), tuple(at for (_, at), _ in spans), tuple(counts),
                         tuple(t for (text, at), c in spans for t in text[at:at + c]), joins))
        texts.update({s: (text, at + c) for s, ((text, at), c) in zip(active, spans, strict=True)})
        draw.shuffle(slots)
    return made


def _token_count(number: int, row: int, first: bool, prompt: int) -> int:
    if number == 0:
        return prompt if first else 1 + (5 * row + 2) % 7
    return 1 + (3 * row + 1) % 5 if number == 1 else 1


def capacity_of(steps: Sequence[Step]) -> int:
    """Return how many cache rows a slot needs for the steps, with a tail behind them."""
    return TAIL_ROWS + max(p + c for s in steps for p, c in zip(s.positions, s.counts, strict=True))


@dataclass(frozen=True)
class Setup:
    """What is compared, as whoever wires the suite hands it over."""

    name: str
    """The batched path, in words."""
    against: str
    """What each row is held to, in words."""
    model: Any
    """The model on the device of the batch."""
    path: Callable[[], Any]
    """Makes the path under test; anew, as a wrong one may keep something between steps."""
    solo_path: Callable[[], Any] | None
    """Makes the path that runs each row alone, or None for the oracle, `forward_single`."""
    oracle: Any
    """The model that runs the rows alone."""
    trusted_path: Any
    """A path whose ops are known to be right, to swap back."""
    rows: MakeRows

    @property
    def is_self_compared(self) -> bool:
        """Whether the rows alone run on the very path under test."""
        return self.solo_path is self.path


class BatchRun:
    """The lane of all rows together, on a pool where what nobody wrote is poison."""

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
        """Make the slots fresh that begin anew in this step."""
        for slot in step.joins:
            self.pool.slot(slot).clear()

    def advance(self, step: Step, sink: Any) -> Tensor:
        """Run the step; return logits f32[m, vocab]."""
        rows = self.setup.rows(step.slots, step.positions, step.counts)
        try:
            logits: Tensor = self.path.step(self.setup.model, self.pool, list(step.tokens), rows,
                                            sink)
        except Exception as error:
            raise SuiteError(f"a step of {len(step.slots)} rows on {self.setup.name} ended in "
                             f"{type(error).__name__}: {error}") from error
        return logits

    def state(self, slot: int) -> dict[str, Tensor]:
        """Return views of everything that a slot holds."""
        named: dict[str, Tensor] = self.pool.slot(slot).named()
        return named

    @property
    def slots(self) -> range:
        """Every slot of the pool."""
        return range(self.pool.slots)


def digest_states(lane: BatchRun | SoloRun, slots: Sequence[int]) -> StateDigests:
    """Return digests of everything that the slots hold."""
    return {
        slot: {name: digest_tensor(x) for name, x in lane.state(slot).items()} for slot in slots
    }


def clone_states(lane: BatchRun | SoloRun, slots: Sequence[int]) -> dict[int, dict[str, Tensor]]:
    """Return copies of everything that the slots hold."""
    return {slot: {name: x.clone() for name, x in lane.state(slot).items()} for slot in slots}


def restore_states(lane: BatchRun | SoloRun, held: dict[int, dict[str, Tensor]]) -> None:
    """Make the slots hold again what was copied of them."""
    for slot, named in held.items():
        for name, view in lane.state(slot).items():
            view.copy_(named[name])


class SoloRun:
    """The lane of each row by itself, in a pool of one slot that began as the batch's slot."""

    def __init__(self, setup: Setup, path: Any, steps: Sequence[Step]) -> None:
        self.setup, self.path, self.capacity = setup, path, capacity_of(steps)
        self.pools: dict[int, Any] = {}

    def join(self, step: Step) -> None:
        """Give sequences that begin anew a slot: poison behind their end, as in the batch."""
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

            def told(op: str, _: int, inputs: tuple[Tensor, ...], output: Tensor,
                     slot: int = slot) -> None:
                sink(op, slot, inputs, output)

            logits.append(self.run_tokens(slot, list(tokens), position, sink and told))
        return torch.stack(logits) if logits else torch.empty(0)

    def run_tokens(self, slot: int, tokens: list[int], position: int, sink: Any = None) -> Tensor:
        """Run tokens of one sequence; return the logits f32[vocab] of the last."""
        model, pool = self.setup.oracle, self.pools[slot]
        if self.path is None:
            logits: Tensor = model.prefill(tokens, pool.slot(0), position, sink)
            return logits
        rows = self.setup.rows((0,), (position,), (len(tokens),))
        try:
            one: Tensor = self.path.step(model, pool, tokens, rows, sink)[0]
        except Exception as error:
            raise SuiteError(f"a row alone on {self.setup.against} ended in "
                             f"{type(error).__name__}: {error}") from error
        return one

    def choose_token(self, logits: Tensor) -> int:
        """Return the token that is chosen of logits f32[1, vocab]."""
        path = self.path or self.setup.oracle.ops
        out = torch.empty(1, dtype=torch.int64, device=logits.device)
        try:
            path.argmax(logits, out)
        except Exception as error:
            raise SuiteError(f"argmax of a row alone on {self.setup.against} ended in "
                             f"{type(error).__name__}: {error}") from error
        return int(out[0])

    def state(self, slot: int) -> dict[str, Tensor]:
        """Return views of everything that a sequence's slot holds."""
        named: dict[str, Tensor] = self.pools[slot].slot(0).named()
        return named
