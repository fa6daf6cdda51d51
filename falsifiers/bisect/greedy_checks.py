"""Check a path's argmax and greedy runs after a step.

After each step, argmax runs on the step's logits and on logits with many ties. Then greedy runs
start from the state of the step; each is followed by restoring that state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from falsifiers.bisect.divergence import Location
from falsifiers.bisect.paired_runs import (
    BatchRun,
    SoloRun,
    StateDigests,
    Step,
    clone_states,
    digest_states,
    restore_states,
)

MAX_RUN_TOKENS = 3
"""Tokens of the longest greedy run; runs of every length up to it are checked."""
GUARD_VALUES = 64
"""Infinite values after each row of logits, outside the row."""
LOGIT_INPUTS = "logits", "logits in few values"
GREEDY_OP = "greedy_rows"
"""The field of a path that executes a greedy run."""
GREEDY_KINDS = ("choice", "run", "refusal")
"""Kinds of locations that are found after a step."""


@dataclass(frozen=True)
class ExpectedChoices:
    """The greedy continuation of one solo row after a step, each token chosen by the host."""

    choices: tuple[int, ...]
    """The argmax of each of `LOGIT_INPUTS`."""
    tokens: list[int]
    """`MAX_RUN_TOKENS` tokens that follow `choices[0]`."""
    states: list[dict[str, bytes]]
    """Digests of the slot's state after each."""


@dataclass(frozen=True)
class Divergence:
    """Where a batch differs from its solo rows."""

    place: Location
    stray: tuple[str, ...] = ()
    """State that the step wrote in slots that it does not name."""
    note: str = ""
    """The tokens that were chosen, as a sentence."""


def make_tied_logits(logits: Tensor) -> Tensor:
    """Return logits f32[m, vocab] with many ties at the maximum, 0, and zeros of both signs.

    Each row is followed by infinities in memory, so that a read past its end is seen.
    """
    m, vocab = logits.shape
    room = torch.full((m, vocab + GUARD_VALUES), torch.inf)
    # one row at a time: the mean of a batch could depend on m
    for row, source in zip(room, logits.detach().cpu(), strict=True):
        row[:vocab] = ((source - source.max()) / (source.max() - source.mean())).ceil()
    return room.to(logits.device)[:, :vocab]


def expected_choices(run: SoloRun, step: Step, logits: Tensor) -> list[ExpectedChoices]:
    """Return the greedy continuation of each solo row after a step; restore its state."""
    expected = []
    for row, (slot, position, tokens) in enumerate(step.spans()):
        row_logits = logits[row:row + 1]
        choices = tuple(run.choose_token(x) for x in (row_logits, make_tied_logits(row_logits)))
        copies, chosen, states = clone_states(run, (slot,)), [choices[0]], []
        for at in range(MAX_RUN_TOKENS):
            after = run.run_tokens(slot, chosen[-1:], position + len(tokens) + at)
            chosen.append(run.choose_token(after[None]))
            states.append(digest_states(run, (slot,))[slot])
        restore_states(run, copies)
        expected.append(ExpectedChoices(choices, chosen[1:], states))
    return expected


class GreedyCheck:
    """Checks the greedy continuation of a batch after one step."""

    def __init__(self, run: BatchRun, number: int, step: Step, logits: Tensor,
                 expected: Sequence[ExpectedChoices]) -> None:
        self.run, self.number, self.slots, self.logits, self.expected = (
            run, number, step.slots, logits, expected)
        ends = tuple(p + c for p, c in zip(step.positions, step.counts, strict=True))
        self.rows = run.setup.rows(step.slots, ends, (1,) * len(ends))
        self.first_tokens = [row.choices[0] for row in expected]
        self.compared = 0
        self.overlong_steps = run.pool.capacity - max(ends) + 1
        """Steps of the shortest run that does not fit into the state."""

    def find_divergences(self) -> Iterator[Divergence]:
        """Yield every difference from the solo rows; restore the state after each call."""
        yield from self._check_choices()
        yield from self._check_runs()
        yield from self._check_refusals()

    def _check_choices(self) -> Iterator[Divergence]:
        inputs = zip(LOGIT_INPUTS, (self.logits, make_tied_logits(self.logits)), strict=True)
        for at, (name, logits) in enumerate(inputs):
            got = call_or_describe(partial(self._choose_tokens, logits))
            for row, want in enumerate(self.expected):
                self.compared += 1
                if isinstance(got, str) or got[row] != want.choices[at]:
                    yield self._divergence("choice", "argmax", row, name,
                                           f"{_format_outcome(got)}, but should choose "
                                           f"{want.choices[at]} for the row")

    def _check_runs(self) -> Iterator[Divergence]:
        for steps in range(1, MAX_RUN_TOKENS + 1):
            got, before, after = self._call_and_restore(self._greedy_call(steps))
            if isinstance(got, str):
                yield self._divergence("run", GREEDY_OP, 0, f"all of a run of {steps}",
                                       _format_outcome(got))
                return
            for at in range(steps):
                for row, want in enumerate(self.expected):
                    self.compared += 1
                    if got[row][at:at + 1] != want.tokens[at:at + 1]:
                        yield self._divergence("run", GREEDY_OP, row, f"token {at + 1}",
                                               f"it chooses {got[row]}, but should choose "
                                               f"{want.tokens[:steps]}")
            states = {slot: row.states[steps - 1]
                      for slot, row in zip(self.slots, self.expected, strict=True)}
            yield from self._compare_states("run", GREEDY_OP, after, before | states,
                                            f"after a run of {steps}")

    def _check_refusals(self) -> Iterator[Divergence]:
        """Yield each bad input that is not refused; it is always in the last row."""
        run, vocab = self.run, self.run.setup.model.config.vocab
        last = len(self.expected) - 1
        with_nan = self.logits.clone()
        with_nan[last, -1] = torch.nan
        for op, name, got in (
                ("argmax", "NaN in logits",
                 call_or_describe(partial(self._choose_tokens, with_nan))),
                (GREEDY_OP, "NaN in a state",
                 self._call_and_restore(self._greedy_call(2), self.slots[last])[0])):
            self.compared += 1
            if not _is_refusal(got) or f"row {last} " not in got:
                yield self._divergence("refusal", op, last, name, f"{_format_outcome(got)}, but "
                                       f"should be refused for row {last}")
        step = partial(run.path.step, run.setup.model, run.pool,
                       [*self.first_tokens[:-1], vocab], self.rows)
        for op, name, call in (
                ("step", f"token {vocab}, past the vocabulary", step),
                (GREEDY_OP, f"a run of {self.overlong_steps}, past the end of the state",
                 self._greedy_call(self.overlong_steps))):
            self.compared += 1
            got, before, after = self._call_and_restore(call)
            if not _is_refusal(got):
                yield self._divergence("refusal", op, last, name, _format_outcome(got))
            yield from self._compare_states("refusal", op, after, before,
                                            f"after the refusal of {name}")

    def _greedy_call(self, steps: int) -> Callable[[], Any]:
        return partial(self.run.path.decode_greedy, self.run.setup.model, self.run.pool,
                       self.first_tokens, self.rows, steps)

    def _call_and_restore(self, call: Callable[[], Any], poisoned: int | None = None
                          ) -> tuple[Any, StateDigests, StateDigests]:
        """Return a call's result and the states before and after it; restore the states."""
        run = self.run
        copies = clone_states(run, run.slots)
        if poisoned is not None:
            for view in run.state(poisoned).values():
                view.fill_(torch.nan)
        before, got = digest_states(run, run.slots), call_or_describe(call)
        after = digest_states(run, run.slots)
        restore_states(run, copies)
        return got, before, after

    def _compare_states(self, kind: str, op: str, after: StateDigests, want: StateDigests,
                        when: str) -> Iterator[Divergence]:
        for slot in (*self.slots, *(slot for slot in want if slot not in self.slots)):
            for name, digest in want[slot].items():
                self.compared += 1
                if after[slot][name] != digest:
                    shown = f"{name} is changed" if kind == "refusal" else name
                    yield Divergence(Location(self.number, kind, op, slot, shown),
                                     note=f"seen {when}")

    def _choose_tokens(self, logits: Tensor) -> list[int]:
        out = torch.full((len(logits),), -1, dtype=torch.int64, device=logits.device)
        self.run.path.argmax(logits, out)
        chosen: list[int] = out.tolist()
        return chosen

    def _divergence(self, kind: str, op: str, row: int, name: str, note: str) -> Divergence:
        return Divergence(Location(self.number, kind, op, self.slots[row], name), note=note)


def call_or_describe(call: Callable[[], Any]) -> Any:
    """Return a call's result, or its exception as a phrase."""
    try:
        return call()
    except ValueError as error:
        return f"is refused: {error}"
    except Exception as error:
        return f"raises {type(error).__name__}: {error}"


def _is_refusal(got: Any) -> bool:
    return isinstance(got, str) and got.startswith("is refused")


def _format_outcome(got: Any) -> str:
    if isinstance(got, Tensor):
        return "it is accepted"
    return f"it {got}" if isinstance(got, str) else f"it chooses {got}"
