"""The first place where a batch parts from its rows alone, and the op that heals it.

A cheap trail of digests finds the step, op and slot; then both lanes run again up to there and
the tensors of that one place are kept whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from falsifiers.bisect.divergence import MODES, Location, Mode, Report, diff_values, split_op_id
from falsifiers.bisect.greedy_checks import (
    GREEDY_KINDS,
    Divergence,
    ExpectedChoices,
    GreedyCheck,
    expected_choices,
)
from falsifiers.bisect.paired_runs import (
    BatchRun,
    Setup,
    SoloRun,
    StateDigests,
    Step,
    digest_states,
)
from falsifiers.bisect.trace import Trace, digest_tensor, digest_tokens
from falsifiers.judging.errors import SuiteError

STATE_WRITERS = {"conv": "conv_step", "delta": "delta_step", "k": "attend", "v": "attend"}
"""Which op writes a kind of state."""
NOT_OPS, GREEDY_OPS = ("name",), ("greedy_rows", "argmax")
AFTER_LAST_OP = "after the last op"
RECHECKED_STEPS = 2
"""Steps behind a step in which what it returned is looked at again."""


@dataclass
class StepResult:
    """What a lane left of one step."""

    trace: Trace
    states: StateDigests
    logits: list[bytes]
    expected: list[ExpectedChoices] = field(default_factory=list)
    """What each row does behind the step, if that was asked."""


@dataclass(frozen=True)
class ReturnedLogits:
    """The very logits f32[m, vocab] that a step returned, and what they were then."""

    step: int
    slots: tuple[int, ...]
    logits: Tensor
    digests: list[bytes]

    def find_overwritten(self, number: int) -> Location | None:
        """Return the first row that is no longer what it was at the end of a later step."""
        now = zip(self.slots, digest_tokens(self.logits), self.digests, strict=True)
        return next((Location(number, "handed", "logits", slot, f"logits of step {self.step}")
                     for slot, left, held in now if left != held), None)


class SoloReference:
    """The rows alone, run as far as somebody asked and remembered from then on."""

    def __init__(self, setup: Setup, path: Any, steps: Sequence[Step],
                 silent: bool = False, greedy: bool = False) -> None:
        self.runner, self.steps = SoloRun(setup, path, steps), steps
        self.silent, self.greedy = silent, greedy
        self.results: list[StepResult] = []

    def step(self, number: int) -> StepResult:
        """Return what step `number` left."""
        while len(self.results) <= number:
            step, trace = self.steps[len(self.results)], Trace(digest_tokens)
            self.runner.join(step)
            logits = self.runner.advance(step, None if self.silent else trace)
            self.results.append(StepResult(
                trace, digest_states(self.runner, step.slots), digest_tokens(logits),
                expected_choices(self.runner, step, logits) if self.greedy else []))
        return self.results[number]


class Bisection:
    """One search, in greedy runs too if that is asked; `run` makes the report."""

    def __init__(self, setup: Setup, steps: Sequence[Step], m: int,
                 reference: SoloReference | None = None, greedy: bool = False) -> None:
        self.setup, self.steps, self.m = setup, steps, m
        self.modes = MODES if greedy else MODES[:-1]
        self.reference = reference or SoloReference(
            setup, setup.solo_path and setup.solo_path(), steps, greedy=greedy
        )
        self.compared = 0
        self.not_compared: dict[str, None] = {}

    def run(self) -> Report:
        """Find the first divergence, its values and what heals it.

        A path may run a step that reports its ops in another way than one that nobody listens to,
        as graphs do; so steps that agree are run once more in silence, told by their state.
        """
        told: dict[str, Any] = {}
        for mode in self.modes:
            if (found := self.find_first(self.setup.path(), mode=mode)) is not None:
                told = {"seen": mode, "stray": list(found.stray), **self._locate(found, mode)}
                told["healed_by"] = self._find_healing_ops(told["place"], mode)
                break
        return Report(self.setup.name, self.setup.against, len(self.steps), self.compared,
                      list(self.not_compared), **told)

    def find_first(
        self, path: Any, alone: Any = None, mode: Mode = "reported"
    ) -> Divergence | None:
        """Return the first place where a path parts from the rows alone, and what it strayed to."""
        reference, silent = self.reference, mode != "reported"
        if alone is not None or (silent and self.setup.solo_path is not None):
            again = alone or (self.setup.solo_path and self.setup.solo_path())
            reference = SoloReference(self.setup, again, self.steps, silent, mode == "greedy")
        lane = BatchRun(self.setup, path, self.steps, self.m)
        before = digest_states(lane, lane.slots)
        returned: deque[ReturnedLogits] = deque(maxlen=RECHECKED_STEPS)
        for number, step in enumerate(self.steps):
            lane.join(step)
            before.update(digest_states(lane, step.joins))
            trace = Trace(digest_tokens)
            logits = lane.advance(step, None if silent else trace)
            after = digest_states(lane, lane.slots)
            kept = StepResult(trace, after, digest_tokens(logits))
            stray = [(slot, name) for slot in lane.slots if slot not in step.slots
                     for name, held in after[slot].items() if held != before[slot][name]]
            want = reference.step(number)
            if silent:
                want = replace(want, trace=Trace())
            place = next(self._differences(number, step, kept, want), None)
            if place is None and stray:
                slot, name = stray[0]
                place = Location(number, "stray", _state_writer(name), slot, name)
            for one in returned:
                self.compared += len(one.slots)
                place = place or one.find_overwritten(number)
            returned.append(ReturnedLogits(number, step.slots, logits, kept.logits))
            if place is not None:
                return Divergence(place, tuple(f"{name} of slot {slot}" for slot, name in stray))
            if mode == "greedy":
                behind = GreedyCheck(lane, number, step, logits, want.expected)
                found = next(behind.find_divergences(), None)
                self.compared += behind.compared
                if found is not None:
                    return found
            before = after
        return None

    def _differences(
        self, number: int, step: Step, got: StepResult, want: StepResult
    ) -> Iterator[Location]:
        lost = [*got.trace.missing_keys(want.trace), *want.trace.missing_keys(got.trace)]
        self.not_compared.update(dict.fromkeys(op for op, _ in lost))
        seen: set[tuple[int, str]] = set()
        for op, slot in got.trace.order:
            if (op, slot) not in want.trace.reports:
                continue
            right = want.trace.tensors_of((op, slot))
            for name, tokens in got.trace.tensors_of((op, slot)).items():
                self.compared += len(tokens)
                if tokens != right.get(name):
                    yield Location(number, name.split()[0], op, slot, name)
            mine = [n for n in got.states[slot] if _state_writer(n) == op]
            seen.update((slot, name) for name in mine)
            yield from self._state_differences(number, got, want, [(slot, name) for name in mine])
        left = sorted(((s, n) for s in step.slots for n in got.states[s] if (s, n) not in seen),
                      key=lambda one: split_op_id(one[1])[0] or 0)
        yield from self._state_differences(number, got, want, left)
        for row, slot in enumerate(step.slots):
            self.compared += 1
            if got.logits[row:row + 1] != want.logits[row:row + 1]:
                yield Location(number, "logits", "logits", slot, "logits")

    def _state_differences(self, number: int, got: StepResult, want: StepResult,
                       named: list[tuple[int, str]]) -> Iterator[Location]:
        for slot, name in named:
            self.compared += 1
            if got.states[slot][name] != want.states[slot][name]:
                yield Location(number, "state", _state_writer(name), slot, name)

    def _locate(self, found: Divergence, mode: Mode) -> dict[str, Any]:
        """Run both lanes again up to a place and return it with its values."""
        place, silent = found.place, mode != "reported"
        if place.kind in GREEDY_KINDS:
            slots = self.steps[place.step].slots
            row = slots.index(place.slot) if place.slot in slots else None
            return {"place": place, "row": row, "note": found.note}
        batch = BatchRun(self.setup, self.setup.path(), self.steps, self.m)
        alone = SoloRun(self.setup, self.setup.solo_path and self.setup.solo_path(), self.steps)
        returned: deque[tuple[ReturnedLogits, Tensor]] = deque(maxlen=RECHECKED_STEPS)
        for number, step in enumerate(self.steps[:place.step]):
            batch.join(step)
            left = batch.advance(step, None)
            returned.append(
                (ReturnedLogits(number, step.slots, left, digest_tokens(left)), left.clone())
            )
            alone.join(step)
            alone.advance(step, None, place.slot)
            if mode == "greedy":
                list(
                    GreedyCheck(
                        batch, number, step, left, self.reference.step(number).expected
                    ).find_divergences()
                )
        step = self.steps[place.step]
        batch.join(step)
        alone.join(step)
        held = {name: x.clone() for name, x in batch.state(place.slot).items()}
        watch = LocationSink(batch, place)
        logits = batch.advance(step, None if silent else watch)
        watch.note_change(AFTER_LAST_OP)
        named, right = place.slot in step.slots, Trace(only=(place.op, place.slot))
        row = step.slots.index(place.slot) if named else None
        other = alone.advance(step, None if silent else right, place.slot)
        if place.kind == "handed":
            one, was = next(one for one in returned if one[0].find_overwritten(place.step) == place)
            row = one.slots.index(place.slot)
            got, want = one.logits[row], was[row]
        elif place.kind in ("state", "stray"):
            got = batch.state(place.slot)[place.name]
            want = alone.state(place.slot)[place.name] if named else held[place.name]
            place = place if silent else replace(place, op=watch.last_writer(place.op))
        elif place.kind == "logits":
            assert row is not None
            got, want = logits[row], other[0]
        else:
            got, want = (torch.stack(t.tensors_of((place.op, place.slot))[place.name])
                         for t in (watch.trace, right))
        values, note = diff_values(got, want)
        return {"place": place, "row": row, "values": values, "note": note}

    def _find_healing_ops(self, place: Location, mode: Mode) -> list[str]:
        """Return the ops that heal the run when they are swapped back; none if no op does."""
        own, left = self.setup.path(), NOT_OPS if mode == "greedy" else NOT_OPS + GREEDY_OPS
        names = [f.name for f in fields(own) if f.name not in left
                 and getattr(own, f.name) is not getattr(self.setup.trusted_path, f.name)]
        swapped: list[str] = []
        found: Location | None = place
        while found and (new := [n for n in names if n not in swapped
                                 and n in suspect_ops(found.op)]):
            swapped += new
            found = self._first_with_swapped(swapped, mode)
        if found is None:
            for name in list(swapped):
                rest = [n for n in swapped if n != name]
                if rest and self._first_with_swapped(rest, mode) is None:
                    swapped = rest
            return swapped
        return next(([name] for name in names if [name] != swapped
                     and self._first_with_swapped([name], mode) is None), [])

    def _first_with_swapped(self, names: Sequence[str], mode: Mode) -> Location | None:
        back = {name: getattr(self.setup.trusted_path, name) for name in names}
        alone = replace(self.setup.path(), **back) if self.setup.is_self_compared else None
        try:
            found = self.find_first(replace(self.setup.path(), **back), alone, mode)
        except SuiteError as error:  # it does not run at all, which heals nothing
            return Location(0, "error", str(error), 0, "")
        return None if found is None else found.place


class LocationSink:
    """A sink that keeps one place whole, and sees after which ops one tensor of state changed."""

    def __init__(self, lane: BatchRun, place: Location) -> None:
        self.runner, self.place = lane, place
        self.trace = Trace(only=(place.op, place.slot))
        self.last = self._digest()
        self.changes: list[str] = []

    def __call__(self, op: str, slot: int, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Take one report."""
        self.trace(op, slot, inputs, output)
        self.note_change(op)

    def note_change(self, op: str) -> None:
        """Note the op if the tensor is not what it was."""
        now = self._digest()
        if now != self.last:
            self.changes.append(op)
        self.last = now

    def last_writer(self, owner: str) -> str:
        """Return the op that wrote the tensor last, or its owner when nobody was seen to."""
        return self.changes[-1] if self.changes else owner

    def _digest(self) -> bytes:
        if self.place.kind not in ("state", "stray"):
            return b""
        return digest_tensor(self.runner.state(self.place.slot)[self.place.name])


def _state_writer(name: str) -> str:
    layer, kind = name.rsplit(".", 1)
    return f"{layer}.{STATE_WRITERS.get(kind, kind)}"


def suspect_ops(op: str) -> tuple[str, ...]:
    """Return the parts of a path that run an op of that id."""
    name = split_op_id(op)[1]
    if name.endswith("_norm") and name != "gated_norm":
        return ("add_norm", "norm")
    return {"project": ("project", "project_all"), "head": ("project",),
            "norm": ("norm_rotate", "norm"), "rotate": ("norm_rotate", "rotate")}.get(
        name.split(".")[0], (name.split(".")[0],))
