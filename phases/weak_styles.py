"""What common styles of test miss: each style weakens the strict scenario in one way.

The strict scenario has rows with different prompts and lengths, slots that hold NaN before they
are cleared, two widths, and steps that leave a row out. It compares the bits of every row's logits
with the correct path run on that sequence by itself. A mutant passes a style that sees no
difference.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from contracts.schema import Case
from engine.candidate import engine_of
from engine.path import Rows
from falsifiers.judging.batch_driver import BatchDriver, make_prompt, run_solo
from falsifiers.judging.errors import ParityBroken
from falsifiers.judging.judge import Judge, as_bits
from falsifiers.judging.matrix import Bank
from falsifiers.judging.subject import Mutant, Subject
from falsifiers.judging.verdict import Finding

PHASES = ("p1", "p4", "p5", "p6", "p8")
"""The phases whose mutants are wrong paths; other faults do not show in a step's logits."""
MODEL, CAPACITY, DECODE_STEPS = "nano", 64, 4
NAN = float("nan")
Comparison = Callable[[Tensor, Tensor], bool]
"""Compares one step's logits, f32[rows, vocab], with the expected ones."""


@dataclass(frozen=True)
class BatchScenario:
    """What a test puts into its batches."""

    widths: tuple[int, ...] = (2, 5)
    distinct: bool = True
    """Whether the prompts differ."""
    ragged: bool = True
    """Whether the lengths of the prompts differ."""
    stale_value: float = NAN
    """What slots hold before they are cleared for a sequence."""


def same_bits(got: Tensor, want: Tensor) -> bool:
    """Return whether every bit is the same."""
    return got.shape == want.shape and torch.equal(as_bits(got), as_bits(want))


def same_tokens(got: Tensor, want: Tensor) -> bool:
    """Return whether each row's likeliest token is the same."""
    return torch.equal(got.argmax(-1), want.argmax(-1))


def close_cosine(got: Tensor, want: Tensor) -> bool:
    """Return whether the cosine of the step's logits, as one vector, is 0.999 or more."""
    a, b = got.double().flatten(), want.double().flatten()
    return bool(a @ b >= 0.999 * a.norm() * b.norm())


def small_nmse(got: Tensor, want: Tensor) -> bool:
    """Return whether the squared error is at most 5e-4 of the squared logits of the step."""
    a, b = got.double(), want.double()
    return bool((a - b).square().sum() <= 5e-4 * b.square().sum())


STRICT, STRICT_STYLE = BatchScenario(), "strict scene, bits"
STYLES: dict[str, tuple[BatchScenario, Comparison]] = {
    "tokens only": (STRICT, same_tokens),
    "cosine 0.999": (STRICT, close_cosine),
    "NMSE 5e-4": (STRICT, small_nmse),
    "identical prompts": (BatchScenario(distinct=False, ragged=False), same_bits),
    "m = 2 only": (BatchScenario(widths=(2,)), same_bits),
    "zeroed pool": (BatchScenario(stale_value=0.0), same_bits),
    "aligned lengths": (BatchScenario(ragged=False), same_bits),
    "all of these": (BatchScenario((2,), distinct=False, ragged=False, stale_value=0.0),
                     same_tokens),
}
"""Each weakens the strict scenario or its comparison in one way; the last combines all."""


class WeakJudge(Judge):
    """A judge that sees only logits, and applies weak comparisons to all rows of a step."""

    def __init__(self, case: Case, comparisons: dict[str, Comparison]) -> None:
        super().__init__(case)
        self.passing = dict(comparisons)
        self._rows: list[tuple[Tensor, Tensor]] = []

    def equal(self, name: str, got: Tensor, want: Tensor, **options: Any) -> None:
        """Record one row of the step."""
        self._rows.append((got, want))

    def law(self, *args: Any, **options: Any) -> None:
        """Ignore state."""

    unchanged = law

    def end_step(self) -> None:
        """Drop each comparison that sees a difference; raise when none is left."""
        got, want = map(torch.stack, zip(*self._rows, strict=True))
        self._rows.clear()
        self.passing = {name: same for name, same in self.passing.items() if same(got, want)}
        if not self.passing:
            raise ParityBroken(Finding(rule="twin", rung="bits", where={},
                                       sentence="every comparison sees a difference"))


@dataclass(frozen=True)
class MissedMutant:
    """A mutant that the strict scenario detects, and the styles that it passes."""

    phase: str
    name: str
    styles: tuple[str, ...]


def try_styles(bank: Bank, mutant: Mutant,
               names: Collection[str] = tuple(STYLES)) -> MissedMutant | None:
    """Return which of `names` a mutant passes; None if the strict scenario sees no fault."""
    case = next(c for c in bank.contract.expand() if c.tier == "cpu")
    right = bank.subject_for(case)
    if mutant.device != "cpu" or mutant.build(right).candidate is not None:
        return None
    chosen = {STRICT_STYLE: (STRICT, same_bits), **{n: STYLES[n] for n in STYLES if n in names}}
    passing = set[str]()
    for scenario, group in groupby(chosen.items(), lambda item: item[1][0]):
        judge = WeakJudge(case, {name: same for name, (_, same) in group})
        try:
            _run_scenario(mutant.build(right), right, scenario, judge)
        except Exception:  # any test of this scenario detects a path that raises
            continue
        if STRICT_STYLE in judge.passing:
            return None
        passing |= set(judge.passing)
    return MissedMutant(bank.contract.phase, mutant.name, tuple(n for n in STYLES if n in passing))


def format_table(found: Sequence[MissedMutant]) -> Iterator[str]:
    """Yield the lines of a Markdown table: how many mutants pass each style, by phase."""
    phases = list(dict.fromkeys(missed.phase for missed in found))
    yield f"| {' | '.join(['what a test does', 'lets pass', *phases])} |"
    yield "|---" * (2 + len(phases)) + "|"
    for style in (STRICT_STYLE, *STYLES):
        passed = [missed.phase for missed in found if style in missed.styles]
        counts = [str(passed.count(phase)) for phase in phases]
        yield f"| {' | '.join([style, f'{len(passed)} of {len(found)}', *counts])} |"


def _run_scenario(wrong: Subject, right: Subject, scenario: BatchScenario,
                  judge: WeakJudge) -> None:
    """Run prompts in two chunks, then all rows in both orders, all but one, and all."""
    engine = engine_of(wrong.path, wrong.candidate, wrong.models(MODEL))
    model = right.models(MODEL)
    solo = engine_of(right.path, None, model)
    for width in scenario.widths:
        driver = BatchDriver(engine, Rows, judge, width, CAPACITY)
        lengths = [1 + (5 * row + 2) % 7 if scenario.ragged else 4 for row in range(width)][::-1]
        for slot, length in enumerate(lengths):  # row i sits in slot width - 1 - i
            seed = 200 + (width - 1 - slot if scenario.distinct else 0)
            prompt = make_prompt(seed, length, model.config.vocab)
            driver.poison(slot, scenario.stale_value)
            driver.join(slot, run_solo(solo, Rows, prompt, DECODE_STEPS, CAPACITY, right.path))
        slots = list(range(width))[::-1]
        first = [(lengths[slot] + 1) // 2 for slot in slots]
        rest = {slot: lengths[slot] // 2 for slot in slots if lengths[slot] // 2}
        steps = [(slots, first), (list(rest), list(rest.values()))]
        steps += [(order, [1] * len(order))
                  for order in (slots, slots[::-1], slots[:-1][::-1], slots)]
        for order, counts in steps:
            driver.step(order, counts)
            judge.end_step()
