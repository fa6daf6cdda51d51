"""Locate a mutant's fault without the bisection.

Each op that the mutant replaces runs next to the right op on the same operands; the first call
with another result is the place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Any

from torch import Tensor

from falsifiers.bisect.paired_runs import BatchRun, Setup, Step
from falsifiers.judging.judge import as_bits

FUSED_OPS = ("project_all", "add_norm", "norm_rotate")
"""Ops that call other ops, which are compared instead."""


@dataclass(frozen=True)
class MutantLocation:
    """The first call of a wrong op whose result differs from the right op's."""

    op: str
    """The field of the path."""
    layer: int | None
    step: int
    slots: frozenset[int]
    """Slots whose rows or state differ after the call."""


def changed_ops(path: Any, right: Any) -> set[str]:
    """Return the ops of a path that differ from the right path's."""
    return {f.name for f in fields(path)
            if f.name not in ("name", "step_rows", "greedy_rows")
            and getattr(path, f.name) is not getattr(right, f.name)}


def locate_mutant(setup: Setup, steps: Sequence[Step], m: int) -> MutantLocation | None:
    """Run the batch with every wrong op next to its right one; return where the first differs."""
    return _SideBySide(setup).run(steps, m)


class _SideBySide:
    def __init__(self, setup: Setup) -> None:
        self.setup, self.path = setup, setup.path()
        self.pending: tuple[str, frozenset[int]] | None = None
        self.found: MutantLocation | None = None
        self.number, self.step = 0, Step((), (), (), (), ())

    def run(self, steps: Sequence[Step], m: int) -> MutantLocation | None:
        right = self.setup.trusted_path
        both = {name: self._run_both(name, getattr(self.path, name), getattr(right, name))
                for name in changed_ops(self.path, right) if name not in FUSED_OPS}
        run = BatchRun(self.setup, replace(self.path, **both), steps, m)
        for self.number, self.step in enumerate(steps):
            run.join(self.step)
            run.advance(self.step, self._on_report)
            if self.found is not None:
                return self.found
        return None

    def _on_report(self, op: str, slot: int, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Take the layer from the first report after a call that differed."""
        if self.pending is not None and self.found is None:
            head = op.split(".")[0]
            self.found = MutantLocation(self.pending[0], int(head) if head.isdigit() else None,
                                        self.number, self.pending[1])

    def _run_both(self, name: str, wrong: Callable[..., None],
                  right: Callable[..., None]) -> Callable[..., None]:
        def run(*args: Any, **options: Any) -> None:
            operands = [x for arg in args if (x := _operand_tensor(arg)) is not None]
            before = [x.clone() for x in operands]
            right(*args, **options)
            want = [x.clone() for x in operands]
            for x, copy in zip(operands, before, strict=True):
                x.copy_(copy)
            wrong(*args, **options)
            if self.pending is None and self.found is None:
                slots = frozenset(slot for arg, good in zip(
                    [arg for arg in args if _operand_tensor(arg) is not None], want, strict=True)
                    for slot in self._differing_slots(arg, good))
                self.pending = (name, slots) if slots else None

        return run

    def _differing_slots(self, arg: Any, want: Tensor) -> list[int]:
        got = _operand_tensor(arg)
        assert got is not None
        bad = (as_bits(got) != as_bits(want)).reshape(len(got), -1).any(1)
        if not isinstance(arg, Tensor):  # a pool's state, slot after slot
            return [int(i) for i in bad.nonzero().flatten()]
        ends = list(accumulate(self.step.counts))
        owner = self.step.slots if len(got) == len(self.step.slots) else [
            slot for slot, count in zip(self.step.slots, self.step.counts, strict=True)
            for _ in range(count)]
        assert len(owner) in (len(got), ends[-1])
        return [owner[int(i)] for i in bad.nonzero().flatten() if len(owner) == len(got)]


def _operand_tensor(arg: Any) -> Tensor | None:
    """Return a tensor operand, or the pool's state that an operand points into."""
    if isinstance(arg, Tensor):
        return arg
    state = getattr(arg, "whole", None)
    return state if isinstance(state, Tensor) else None


