"""Find the first place where a batch differs from its solo rows, and the op that heals it.

Digests of every tensor locate the step, op and slot. Then both runs are repeated up to there,
and the tensors of that one place are copied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from falsifiers.bisect.divergence import (
    MODES,
    Location,
    Mode,
    Report,
    ReturnedLogits,
    diff_values,
    split_op_id,
    state_writer,
    suspect_ops,
)
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

NOT_OPS, GREEDY_OPS = ("name",), ("greedy_rows", "argmax")
AFTER_LAST_OP = "after the last op"
RECHECKED_STEPS = 2
"""Steps after which returned logits are compared again with their first digests."""


@dataclass
class StepResult:
    """The digests of one step of a run."""

    trace: Trace
    states: StateDigests
    logits: list[bytes]
    expected: list[ExpectedChoices] = field(default_factory=list)
    """Each row's greedy tokens and states after the step; empty unless greedy."""


class SoloReference:
    """The results of the solo rows, computed step by step on demand and cached."""

    def __init__(self, setup: Setup, path: Any, steps: Sequence[Step],
                 silent: bool = False, greedy: bool = False) -> None:
        self.runner, self.steps = SoloRun(setup, path, steps), steps
        self.silent, self.greedy = silent, greedy
        self.results: list[StepResult] = []

    def step(self, number: int) -> StepResult:
        """Return the result of step `number`."""
        while len(self.results) <= number:
            step, trace = self.steps[len(self.results)], Trace(digest_tokens)
            self.runner.join(step)
            logits = self.runner.advance(step, None if self.silent else trace)
            self.results.append(StepResult(
                trace, digest_states(self.runner, step.slots), digest_tokens(logits),
                expected_choices(self.runner, step, logits) if self.greedy else []))
        return self.results[number]


class Bisection:
    """One search, with greedy runs on request; `run` returns the report."""

    def __init__(self, setup: Setup, steps: Sequence[Step], m: int,
                 reference: SoloReference | None = None, greedy: bool = False) -> None:
        self.setup, self.steps, self.m = setup, steps, m
        self.modes = MODES if greedy else MODES[:-1]
        self.reference = reference or SoloReference(
            setup, setup.solo_path and setup.solo_path(), steps, greedy=greedy)
        self.compared = 0
        self.not_compared: dict[str, None] = {}

    def run(self) -> Report:
        """Find the first divergence, its values and the ops that heal it.

        A path may run a step without a sink in another way, as graphs do. So steps that agree
        run again silently, and only their state and logits are compared.
        """
        result: dict[str, Any] = {}
        for mode in self.modes:
            if (found := self.find_first(self.setup.path(), mode=mode)) is not None:
                result = {"seen": mode, "stray": list(found.stray), **self._locate(found, mode)}
                result["healed_by"] = self._find_healing_ops(result["place"], mode)
                break
        return Report(self.setup.name, self.setup.against, len(self.steps), self.compared,
                      list(self.not_compared), **result)

    def find_first(self, path: Any, solo_path: Any = None,
                   mode: Mode = "reported") -> Divergence | None:
        """Return the first place where a path differs from the solo rows, and its stray writes."""
        reference, silent = self.reference, mode != "reported"
        if solo_path is not None or (silent and self.setup.solo_path is not None):
            solo_path = solo_path or (self.setup.solo_path and self.setup.solo_path())
            reference = SoloReference(self.setup, solo_path, self.steps, silent, mode == "greedy")
        run = BatchRun(self.setup, path, self.steps, self.m)
        before = digest_states(run, run.slots)
        returned: deque[ReturnedLogits] = deque(maxlen=RECHECKED_STEPS)
        for number, step in enumerate(self.steps):
            run.join(step)
            before.update(digest_states(run, step.joins))
            trace = Trace(digest_tokens)
            logits = run.advance(step, None if silent else trace)
            after = digest_states(run, run.slots)
            got = StepResult(trace, after, digest_tokens(logits))
            stray = [(slot, name) for slot in run.slots if slot not in step.slots
                     for name, digest in after[slot].items() if digest != before[slot][name]]
            want = reference.step(number)
            if silent:
                want = replace(want, trace=Trace())
            place = next(self._differences(number, step, got, want), None)
            if place is None and stray:
                slot, name = stray[0]
                place = Location(number, "stray", state_writer(name), slot, name)
            for earlier in returned:
                self.compared += len(earlier.slots)
                place = place or earlier.find_overwritten(number)
            returned.append(ReturnedLogits(number, step.slots, logits, got.logits))
            if place is not None:
                return Divergence(place, tuple(f"{name} of slot {slot}" for slot, name in stray))
            if mode == "greedy":
                check = GreedyCheck(run, number, step, logits, want.expected)
                found = next(check.find_divergences(), None)
                self.compared += check.compared
                if found is not None:
                    return found
            before = after
        return None

    def _differences(self, number: int, step: Step, got: StepResult,
                     want: StepResult) -> Iterator[Location]:
        unpaired = [*got.trace.missing_keys(want.trace), *want.trace.missing_keys(got.trace)]
        self.not_compared.update(dict.fromkeys(op for op, _ in unpaired))
        seen: set[tuple[int, str]] = set()
        for op, slot in got.trace.order:
            if (op, slot) not in want.trace.reports:
                continue
            expected = want.trace.tensors_of((op, slot))
            for name, tokens in got.trace.tensors_of((op, slot)).items():
                self.compared += len(tokens)
                if tokens != expected.get(name):
                    yield Location(number, name.split()[0], op, slot, name)
            written = [(slot, n) for n in got.states[slot] if state_writer(n) == op]
            seen.update(written)
            yield from self._state_differences(number, got, want, written)
        rest = sorted(((s, n) for s in step.slots for n in got.states[s] if (s, n) not in seen),
                      key=lambda state: split_op_id(state[1])[0] or 0)
        yield from self._state_differences(number, got, want, rest)
        for row, slot in enumerate(step.slots):
            self.compared += 1
            if got.logits[row:row + 1] != want.logits[row:row + 1]:
                yield Location(number, "logits", "logits", slot, "logits")

    def _state_differences(self, number: int, got: StepResult, want: StepResult,
                           states: list[tuple[int, str]]) -> Iterator[Location]:
        for slot, name in states:
            self.compared += 1
            if got.states[slot][name] != want.states[slot][name]:
                yield Location(number, "state", state_writer(name), slot, name)

    def _locate(self, found: Divergence, mode: Mode) -> dict[str, Any]:
        """Run batch and solo rows again up to a place; return the place with its values."""
        place, silent = found.place, mode != "reported"
        if place.kind in GREEDY_KINDS:
            slots = self.steps[place.step].slots
            row = slots.index(place.slot) if place.slot in slots else None
            return {"place": place, "row": row, "note": found.note}
        batch = BatchRun(self.setup, self.setup.path(), self.steps, self.m)
        solo = SoloRun(self.setup, self.setup.solo_path and self.setup.solo_path(), self.steps)
        returned: deque[tuple[ReturnedLogits, Tensor]] = deque(maxlen=RECHECKED_STEPS)
        for number, step in enumerate(self.steps[:place.step]):
            batch.join(step)
            logits = batch.advance(step, None)
            returned.append((ReturnedLogits(number, step.slots, logits, digest_tokens(logits)),
                             logits.clone()))
            solo.join(step)
            solo.advance(step, None, place.slot)
            if mode == "greedy":  # its calls advance the path as they did in the search
                expected = self.reference.step(number).expected
                list(GreedyCheck(batch, number, step, logits, expected).find_divergences())
        step = self.steps[place.step]
        batch.join(step)
        solo.join(step)
        before = {name: x.clone() for name, x in batch.state(place.slot).items()}
        sink = LocationSink(batch, place)
        logits = batch.advance(step, None if silent else sink)
        sink.note_change(AFTER_LAST_OP)
        has_row, solo_trace = place.slot in step.slots, Trace(only=(place.op, place.slot))
        row = step.slots.index(place.slot) if has_row else None
        solo_logits = solo.advance(step, None if silent else solo_trace, place.slot)
        if place.kind == "handed":
            earlier, copy = next(pair for pair in returned
                                 if pair[0].find_overwritten(place.step) == place)
            row = earlier.slots.index(place.slot)
            got, want = earlier.logits[row], copy[row]
        elif place.kind in ("state", "stray"):
            got = batch.state(place.slot)[place.name]
            want = solo.state(place.slot)[place.name] if has_row else before[place.name]
            place = place if silent else replace(place, op=sink.last_writer(place.op))
        elif place.kind == "logits":
            assert row is not None
            got, want = logits[row], solo_logits[0]
        else:
            got, want = (torch.stack(t.tensors_of((place.op, place.slot))[place.name])
                         for t in (sink.trace, solo_trace))
        values, note = diff_values(got, want)
        return {"place": place, "row": row, "values": values, "note": note}

    def _find_healing_ops(self, place: Location, mode: Mode) -> list[str]:
        """Return the ops that heal the run when they are swapped back; none if no op does."""
        path, excluded = self.setup.path(), NOT_OPS if mode == "greedy" else NOT_OPS + GREEDY_OPS
        names = [f.name for f in fields(path) if f.name not in excluded
                 and getattr(path, f.name) is not getattr(self.setup.trusted_path, f.name)]
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
        ops = {name: getattr(self.setup.trusted_path, name) for name in names}
        solo_path = replace(self.setup.path(), **ops) if self.setup.is_self_compared else None
        try:
            found = self.find_first(replace(self.setup.path(), **ops), solo_path, mode)
        except SuiteError as error:  # the mixed path does not run, so these ops heal nothing
            return Location(0, "error", str(error), 0, "")
        return None if found is None else found.place


class LocationSink:
    """A sink that copies the tensors of one place and lists the ops that changed its state."""

    def __init__(self, run: BatchRun, place: Location) -> None:
        self.run, self.place = run, place
        self.trace = Trace(only=(place.op, place.slot))
        self.last = self._digest()
        self.changes: list[str] = []

    def __call__(self, op: str, slot: int, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Store one report."""
        self.trace(op, slot, inputs, output)
        self.note_change(op)

    def note_change(self, op: str) -> None:
        """Note the op if the state tensor differs from the last call."""
        digest = self._digest()
        if digest != self.last:
            self.changes.append(op)
        self.last = digest

    def last_writer(self, owner: str) -> str:
        """Return the op that wrote the tensor last, or `owner` when no write was seen."""
        return self.changes[-1] if self.changes else owner

    def _digest(self) -> bytes:
        if self.place.kind not in ("state", "stray"):
            return b""
        return digest_tensor(self.run.state(self.place.slot)[self.place.name])
