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

from falsifiers.bisect.divergence import Place
from falsifiers.bisect.paired_runs import Alone, Batched, States, Step, copied, put_back, states_of

RUN = 3
"""Tokens of the longest run; a run of each length up to it is taken."""
BEHIND = 64
"""Values behind a row of logits, infinite, that are none of its own."""
LOGITS = "logits", "logits in few values"
RUNS = "greedy_rows"
"""The part of a path that takes a run."""
KINDS = ("choice", "run", "refusal")
"""Kinds of places that are found behind a step."""


@dataclass(frozen=True)
class Due:
    """What one row does alone behind a step, the host choosing each token by the row's argmax."""

    choices: tuple[int, ...]
    """What it chooses of each of LOGITS."""
    tokens: list[int]
    """RUN tokens, the first fed being what it chose."""
    states: list[dict[str, bytes]]
    """Digests of what its slot holds after each."""


@dataclass(frozen=True)
class Found:
    """Where a bisection found two runs to part."""

    place: Place
    stray: tuple[str, ...] = ()
    """State of slots not named in the step, written by it all the same."""
    note: str = ""
    """What was chosen, in words."""


def in_few_values(logits: Tensor) -> Tensor:
    """Return logits f32[m, vocab] of which many are largest, zeros of both signs; none above 0.

    Behind each row stand infinities, which are none of its own.
    """
    m, vocab = logits.shape
    room = torch.full((m, vocab + BEHIND), torch.inf)
    for row, own in zip(room, logits.detach().cpu(), strict=True):  # so that m changes no sum
        row[:vocab] = ((own - own.max()) / (own.max() - own.mean())).ceil()
    return room.to(logits.device)[:, :vocab]


def due(lane: Alone, step: Step, logits: Tensor) -> list[Due]:
    """Return what each row does alone behind a step; its state is as it was."""
    made = []
    for row, (slot, position, tokens) in enumerate(step.spans()):
        own = logits[row:row + 1]
        choices = tuple(lane.choice(x) for x in (own, in_few_values(own)))
        held, chosen, states = copied(lane, (slot,)), [choices[0]], []
        for at in range(RUN):
            after = lane.one(slot, chosen[-1:], position + len(tokens) + at)
            chosen.append(lane.choice(after[None]))
            states.append(states_of(lane, (slot,))[slot])
        put_back(lane, held)
        made.append(Due(choices, chosen[1:], states))
    return made


class Behind:
    """One step's end, from which a batch goes on by its own choices."""

    def __init__(self, lane: Batched, number: int, step: Step, logits: Tensor,
                 rows: Sequence[Due]) -> None:
        self.lane, self.number, self.slots, self.logits, self.due = (
            lane, number, step.slots, logits, rows)
        ends = tuple(p + c for p, c in zip(step.positions, step.counts, strict=True))
        self.rows = lane.setup.rows(step.slots, ends, (1,) * len(ends))
        self.fed = [one.choices[0] for one in rows]
        self.compared = 0
        self.past = lane.pool.capacity - max(ends) + 1
        """Steps of the shortest run that does not fit into the state."""

    def wrong(self) -> Iterator[Found]:
        """Yield what the batch does otherwise than its rows alone; state is as it was."""
        yield from self._choices()
        yield from self._runs()
        yield from self._refusals()

    def _choices(self) -> Iterator[Found]:
        given = dict(zip(LOGITS, (self.logits, in_few_values(self.logits)), strict=True))
        for at, (name, logits) in enumerate(given.items()):
            got = outcome(partial(self._chosen, logits))
            for row, one in enumerate(self.due):
                self.compared += 1
                if isinstance(got, str) or got[row] != one.choices[at]:
                    yield self._found("choice", "argmax", row, name,
                                      f"{_said(got)}, but should choose {one.choices[at]} for the "
                                      f"row")

    def _runs(self) -> Iterator[Found]:
        for steps in range(1, RUN + 1):
            got, before, after = self._kept(self._run(steps))
            if isinstance(got, str):
                yield self._found("run", RUNS, 0, f"all of a run of {steps}", _said(got))
                return
            for at in range(steps):
                for row, one in enumerate(self.due):
                    self.compared += 1
                    if got[row][at:at + 1] != one.tokens[at:at + 1]:
                        yield self._found("run", RUNS, row, f"token {at + 1}",
                                          f"it chooses {got[row]}, but should choose "
                                          f"{one.tokens[:steps]}")
            want = before | {slot: one.states[steps - 1]
                             for slot, one in zip(self.slots, self.due, strict=True)}
            yield from self._moved("run", RUNS, after, want, f"after a run of {steps}")

    def _refusals(self) -> Iterator[Found]:
        """Yield what is not refused as it must be, the last row being the one to blame."""
        lane, vocab = self.lane, self.lane.setup.model.config.vocab
        last = len(self.due) - 1
        with_nan = self.logits.clone()
        with_nan[last, -1] = torch.nan
        for op, name, got in (
                ("argmax", "NaN in logits", outcome(partial(self._chosen, with_nan))),
                (RUNS, "NaN in a state", self._kept(self._run(2), self.slots[last])[0])):
            self.compared += 1
            if not _refused(got) or f"row {last} " not in got:
                yield self._found("refusal", op, last, name,
                                  f"{_said(got)}, but should be refused for row {last}")
        step = partial(lane.path.step, lane.setup.model, lane.pool, [*self.fed[:-1], vocab],
                       self.rows)
        for op, name, call in (("step", f"token {vocab}, past the vocabulary", step),
                               (RUNS, f"a run of {self.past}, past the end of the state",
                                self._run(self.past))):
            self.compared += 1
            got, before, after = self._kept(call)
            if not _refused(got):
                yield self._found("refusal", op, last, name, _said(got))
            yield from self._moved("refusal", op, after, before, f"after the refusal of {name}")

    def _run(self, steps: int) -> Callable[[], Any]:
        return partial(self.lane.path.decode_greedy, self.lane.setup.model, self.lane.pool,
                       self.fed, self.rows, steps)

    def _kept(self, call: Callable[[], Any],
              poisoned: int | None = None) -> tuple[Any, States, States]:
        """Return what a call gives, and the states before and after it; put them back."""
        lane = self.lane
        held = copied(lane, lane.slots)
        if poisoned is not None:
            for view in lane.state(poisoned).values():
                view.fill_(torch.nan)
        before, got = states_of(lane, lane.slots), outcome(call)
        after = states_of(lane, lane.slots)
        put_back(lane, held)
        return got, before, after

    def _moved(self, kind: str, op: str, after: States, want: States,
               when: str) -> Iterator[Found]:
        for slot in (*self.slots, *(slot for slot in want if slot not in self.slots)):
            for name, digest in want[slot].items():
                self.compared += 1
                if after[slot][name] != digest:
                    told = f"{name} is changed" if kind == "refusal" else name
                    yield Found(Place(self.number, kind, op, slot, told), note=f"seen {when}")

    def _chosen(self, logits: Tensor) -> list[int]:
        out = torch.full((len(logits),), -1, dtype=torch.int64, device=logits.device)
        self.lane.path.argmax(logits, out)
        chosen: list[int] = out.tolist()
        return chosen

    def _found(self, kind: str, op: str, row: int, name: str, note: str) -> Found:
        return Found(Place(self.number, kind, op, self.slots[row], name), note=note)


def outcome(call: Callable[[], Any]) -> Any:
    """Return what a call gives, or in words how it ended."""
    try:
        return call()
    except ValueError as error:
        return f"is refused: {error}"
    except Exception as error:
        return f"ends in {type(error).__name__}: {error}"


def _refused(got: Any) -> bool:
    return isinstance(got, str) and got.startswith("is refused")


def _said(got: Any) -> str:
    if isinstance(got, Tensor):
        return "it is taken"
    return f"it {got}" if isinstance(got, str) else f"it chooses {got}"
