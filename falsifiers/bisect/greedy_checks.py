"""What a path chooses behind a step, and the greedy runs that it goes on with by itself.

Behind each step its argmax chooses, of the step's logits and of logits that weights seldom give;
then runs begin where the step ended, and the state is put back behind each of them.
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
"""Tokens of the longest run; a run of each length up to it is taken."""
GUARD_VALUES = 64
"""Values behind a row of logits, infinite, that are none of its own."""
LOGIT_INPUTS = "logits", "logits in few values"
GREEDY_OP = "greedy_rows"
"""The part of a path that takes a run."""
GREEDY_KINDS = ("choice", "run", "refusal")
"""Kinds of places that are found behind a step."""


@dataclass(frozen=True)
class ExpectedChoices:
    """What one row does alone behind a step, the host choosing each token by the row's argmax."""

    choices: tuple[int, ...]
    """What it chooses of each of LOGITS."""
    tokens: list[int]
    """RUN tokens, the first fed being what it chose."""
    states: list[dict[str, bytes]]
    """Digests of what its slot holds after each."""


@dataclass(frozen=True)
class Divergence:
    """Where a bisection found two runs to part."""

    place: Location
    stray: tuple[str, ...] = ()
    """State of slots not named in the step, written by it all the same."""
    note: str = ""
    """What was chosen, in words."""


def make_tied_logits(logits: Tensor) -> Tensor:
    """Return logits f32[m, vocab] of which many are largest, zeros of both signs; none above 0.

    Behind each row stand infinities, which are none of its own.
    """
    m, vocab = logits.shape
    room = torch.full((m, vocab + GUARD_VALUES), torch.inf)
    for row, own in zip(room, logits.detach().cpu(), strict=True):  # so that m changes no sum
        row[:vocab] = ((own - own.max()) / (own.max() - own.mean())).ceil()
    return room.to(logits.device)[:, :vocab]


def expected_choices(lane: SoloRun, step: Step, logits: Tensor) -> list[ExpectedChoices]:
    """Return what each row does alone behind a step; its state is as it was."""
    made = []
    for row, (slot, position, tokens) in enumerate(step.spans()):
        own = logits[row:row + 1]
        choices = tuple(lane.choose_token(x) for x in (own, make_tied_logits(own)))
        held, chosen, states = clone_states(lane, (slot,)), [choices[0]], []
        for at in range(MAX_RUN_TOKENS):
            after = lane.run_tokens(slot, chosen[-1:], position + len(tokens) + at)
            chosen.append(lane.choose_token(after[None]))
            states.append(digest_states(lane, (slot,))[slot])
        restore_states(lane, held)
        made.append(ExpectedChoices(choices, chosen[1:], states))
    return made


class GreedyCheck:
    """One step's end, from which a batch goes on by its own choices."""

    def __init__(self, lane: BatchRun, number: int, step: Step, logits: Tensor,
                 rows: Sequence[ExpectedChoices]) -> None:
        self.runner, self.number, self.slots, self.logits, self.expected = (
            lane, number, step.slots, logits, rows)
        ends = tuple(p + c for p, c in zip(step.positions, step.counts, strict=True))
        self.rows = lane.setup.rows(step.slots, ends, (1,) * len(ends))
        self.first_tokens = [one.choices[0] for one in rows]
        self.compared = 0
        self.overlong_steps = lane.pool.capacity - max(ends) + 1
        """Steps of the shortest run that does not fit into the state."""

    def find_divergences(self) -> Iterator[Divergence]:
        """Yield what the batch does otherwise than its rows alone; state is as it was."""
        yield from self._check_choices()
        yield from self._check_runs()
        yield from self._check_refusals()

    def _check_choices(self) -> Iterator[Divergence]:
        given = dict(zip(LOGIT_INPUTS, (self.logits, make_tied_logits(self.logits)), strict=True))
        for at, (name, logits) in enumerate(given.items()):
            got = call_or_describe(partial(self._choose_tokens, logits))
            for row, one in enumerate(self.expected):
                self.compared += 1
                if isinstance(got, str) or got[row] != one.choices[at]:
                    yield self._divergence(
                        "choice",
                        "argmax",
                        row,
                        name,
                        f"{_format_outcome(got)}, but should choose {one.choices[at]} for the row",
                    )

    def _check_runs(self) -> Iterator[Divergence]:
        for steps in range(1, MAX_RUN_TOKENS + 1):
            got, before, after = self._call_and_restore(self._greedy_call(steps))
            if isinstance(got, str):
                yield self._divergence(
                    "run", GREEDY_OP, 0, f"all of a run of {steps}", _format_outcome(got)
                )
                return
            for at in range(steps):
                for row, one in enumerate(self.expected):
                    self.compared += 1
                    if got[row][at:at + 1] != one.tokens[at:at + 1]:
                        yield self._divergence("run", GREEDY_OP, row, f"token {at + 1}",
                                          f"it chooses {got[row]}, but should choose "
                                          f"{one.tokens[:steps]}")
            want = before | {slot: one.states[steps - 1]
                             for slot, one in zip(self.slots, self.expected, strict=True)}
            yield from self._compare_states(
                "run", GREEDY_OP, after, want, f"after a run of {steps}"
            )

    def _check_refusals(self) -> Iterator[Divergence]:
        """Yield what is not refused as it must be, the last row being the one to blame."""
        lane, vocab = self.runner, self.runner.setup.model.config.vocab
        last = len(self.expected) - 1
        with_nan = self.logits.clone()
        with_nan[last, -1] = torch.nan
        for op, name, got in (
            ("argmax", "NaN in logits", call_or_describe(partial(self._choose_tokens, with_nan))),
            (
                GREEDY_OP,
                "NaN in a state",
                self._call_and_restore(self._greedy_call(2), self.slots[last])[0],
            ),
        ):
            self.compared += 1
            if not _is_refusal(got) or f"row {last} " not in got:
                yield self._divergence("refusal", op, last, name,
                                  f"{_format_outcome(got)}, but should be refused for row {last}")
        step = partial(
            lane.path.step, lane.setup.model, lane.pool, [*self.first_tokens[:-1], vocab], self.rows
        )
        for op, name, call in (
            ("step", f"token {vocab}, past the vocabulary", step),
            (
                GREEDY_OP,
                f"a run of {self.overlong_steps}, past the end of the state",
                self._greedy_call(self.overlong_steps),
            ),
        ):
            self.compared += 1
            got, before, after = self._call_and_restore(call)
            if not _is_refusal(got):
                yield self._divergence("refusal", op, last, name, _format_outcome(got))
            yield from self._compare_states(
                "refusal", op, after, before, f"after the refusal of {name}"
            )

    def _greedy_call(self, steps: int) -> Callable[[], Any]:
        return partial(self.runner.path.decode_greedy, self.runner.setup.model, self.runner.pool,
                       self.first_tokens, self.rows, steps)

    def _call_and_restore(self, call: Callable[[], Any],
              poisoned: int | None = None) -> tuple[Any, StateDigests, StateDigests]:
        """Return what a call gives, and the states before and after it; put them back."""
        lane = self.runner
        held = clone_states(lane, lane.slots)
        if poisoned is not None:
            for view in lane.state(poisoned).values():
                view.fill_(torch.nan)
        before, got = digest_states(lane, lane.slots), call_or_describe(call)
        after = digest_states(lane, lane.slots)
        restore_states(lane, held)
        return got, before, after

    def _compare_states(self, kind: str, op: str, after: StateDigests, want: StateDigests,
               when: str) -> Iterator[Divergence]:
        for slot in (*self.slots, *(slot for slot in want if slot not in self.slots)):
            for name, digest in want[slot].items():
                self.compared += 1
                if after[slot][name] != digest:
                    told = f"{name} is changed" if kind == "refusal" else name
                    yield Divergence(
                        Location(self.number, kind, op, slot, told), note=f"seen {when}"
                    )

    def _choose_tokens(self, logits: Tensor) -> list[int]:
        out = torch.full((len(logits),), -1, dtype=torch.int64, device=logits.device)
        self.runner.path.argmax(logits, out)
        chosen: list[int] = out.tolist()
        return chosen

    def _divergence(self, kind: str, op: str, row: int, name: str, note: str) -> Divergence:
        return Divergence(Location(self.number, kind, op, self.slots[row], name), note=note)


def call_or_describe(call: Callable[[], Any]) -> Any:
    """Return what a call gives, or in words how it ended."""
    try:
        return call()
    except ValueError as error:
        return f"is refused: {error}"
    except Exception as error:
        return f"ends in {type(error).__name__}: {error}"


def _is_refusal(got: Any) -> bool:
    return isinstance(got, str) and got.startswith("is refused")


def _format_outcome(got: Any) -> str:
    if isinstance(got, Tensor):
        return "it is taken"
    return f"it {got}" if isinstance(got, str) else f"it chooses {got}"
