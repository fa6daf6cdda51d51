"""Delta debugging: reduce a failing scenario to the smallest that still fails.

A scenario fails when it diverges in the same op of the path, so that the search does not drift
from one fault to another. A divergence in another op counts neither as failing nor as passing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from falsifiers.bisect.divergence import Location, Mode, Report, suspect_ops
from falsifiers.bisect.paired_runs import IDLE_SLOTS, Setup
from falsifiers.bisect.scenario import Scenario
from falsifiers.bisect.search import Bisection
from falsifiers.judging.errors import SuiteError

Item = TypeVar("Item")
BlamedOps = tuple[str, ...]
"""The fields of a path that a divergence is blamed on."""
SetupForLayers = Callable[[tuple[int, ...]], Setup]
"""Returns a setup whose model has only these layers."""
ELSEWHERE: BlamedOps = ("elsewhere",)
MAX_TRIES = 600
"""Scenarios tried before a search stops early and reports that."""


@dataclass(frozen=True)
class ShrinkResult:
    """The smallest failing scenario found."""

    scenario: Scenario
    report: Report
    """The report of the scenario, run once more from the start."""
    passing: Scenario | None
    """The largest scenario with one item less that passes; None when there is none."""
    tried: int
    minimal: bool
    """Whether every scenario with one item less was seen to pass."""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        both = {"failing": self.scenario, "passing": self.passing}
        return {"tried": self.tried, "minimal": self.minimal,
                **{name: scenario and {"layers": list(scenario.layers), "slots": scenario.slots,
                                       "steps": [asdict(step) for step in scenario.to_steps()]}
                   for name, scenario in both.items()}}


@dataclass
class Shrinker:
    """One search; call `run`."""

    setup_for_layers: SetupForLayers
    max_tries: int = MAX_TRIES
    tried: int = 0
    _blamed_by_scenario: dict[Scenario, BlamedOps | None] = field(default_factory=dict)
    """The ops blamed for each scenario's divergence, or None."""
    _setup_by_layers: dict[tuple[int, ...], Setup] = field(default_factory=dict)
    _target: BlamedOps = ()
    _mode: Mode = "reported"

    def run(self, scenario: Scenario, found: Report) -> ShrinkResult:
        """Shrink a scenario in which a bisection found a divergence."""
        if found.place is None:
            raise SuiteError("there is no divergence to shrink")
        self._mode = found.seen
        scenario = scenario.with_steps(range(found.place.step + 1))
        # `found` may name the last writer of a state; `_try_scenario` names its owner
        target = self._blamed_by_scenario[scenario] = self._try_scenario(scenario)
        if target is None or target == ELSEWHERE:
            raise SuiteError("the divergence did not repeat, so it cannot be shrunk: state "
                             "survives between runs")
        self._target, self.tried = target, 1
        before = None
        while scenario != before and self.tried < self.max_tries:
            before = scenario
            scenario = self._shrink_round(scenario)
        passing = [smaller for smaller in scenario.smaller_scenarios()
                   if self._blamed_by_scenario.get(smaller, ELSEWHERE) is None]
        report = self._build_bisection(scenario).run()
        if report.place is None:
            raise SuiteError("the smallest case does not differ when it runs by itself: state "
                             "survives between runs")
        return ShrinkResult(scenario, report, max(passing, key=lambda s: s.size, default=None),
                            self.tried, self.tried < self.max_tries)

    def fails(self, scenario: Scenario) -> bool:
        """Return whether a scenario diverges in the op that is searched for."""
        if scenario not in self._blamed_by_scenario:
            if self.tried >= self.max_tries:
                return False
            self.tried += 1
            self._blamed_by_scenario[scenario] = self._try_scenario(scenario)
        return self._blamed_by_scenario[scenario] == self._target

    def _try_scenario(self, scenario: Scenario) -> BlamedOps | None:
        bisection = self._build_bisection(scenario)
        try:
            found = bisection.find_first(bisection.setup.path(), mode=self._mode)
        except SuiteError:  # it does not run at all
            return ELSEWHERE
        return None if found is None else _blamed_ops(found.place)

    def _build_bisection(self, scenario: Scenario) -> Bisection:
        if scenario.layers not in self._setup_by_layers:
            self._setup_by_layers[scenario.layers] = self.setup_for_layers(scenario.layers)
        return Bisection(self._setup_by_layers[scenario.layers], scenario.to_steps(),
                         scenario.slots - IDLE_SLOTS, greedy=self._mode == "greedy")

    def _shrink_round(self, scenario: Scenario) -> Scenario:
        def reduce(items: Sequence[Item], select: Callable[[list[Item]], Scenario]) -> Scenario:
            return select(ddmin(items, lambda rest: self.fails(select(rest))))

        scenario = reduce(range(len(scenario.steps)), scenario.with_steps)
        scenario = reduce(range(len(scenario.sequences)), scenario.with_sequences)
        scenario = reduce(scenario.layers, partial(_with_layers, scenario))
        scenario = reduce(scenario.feed_positions(), scenario.with_feeds)
        for step, row in scenario.feed_positions():
            scenario = self._fewest_tokens(scenario, step, row)
        scenario = scenario.drop_unused_tokens()
        for sequence in range(len(scenario.sequences)):
            plain = scenario.repeat_first_token(sequence)
            scenario = plain if plain != scenario and self.fails(plain) else scenario
        for other in (scenario.renumber_slots(), scenario.sort_rows_by_slot(),
                      scenario.renumber_slots().sort_rows_by_slot()):
            scenario = other if other != scenario and self.fails(other) else scenario
        return next((s for s in scenario.smaller_scenarios() if self.fails(s)), scenario)

    def _fewest_tokens(self, scenario: Scenario, step: int, row: int) -> Scenario:
        """Return the scenario with the fewest tokens in one feed, found by bisection.

        Assumes that every count above a failing one fails too.
        """
        low, high = 0, scenario.steps[step][row][1]
        while high - low > 1:
            middle = (low + high) // 2 if low else 1
            if self.fails(scenario.with_count(step, row, middle)):
                high = middle
            else:
                low = middle
        return scenario.with_count(step, row, high)


def _with_layers(scenario: Scenario, layers: Sequence[int]) -> Scenario:
    return replace(scenario, layers=tuple(layers))


def _blamed_ops(place: Location) -> BlamedOps:
    return (place.kind, *suspect_ops(place.op)) if place.kind == "stray" else suspect_ops(place.op)


def ddmin(items: Sequence[Item], fails: Callable[[list[Item]], bool]) -> list[Item]:
    """Return a subset that still fails, from which no single item can be removed.

    `fails(subset)` returns whether a subset shows the fault; it must hold for all items together.
    At least one item remains.
    """
    remaining = list(items)
    size = max(1, len(remaining) // 2)
    while True:
        at, before = 0, len(remaining)
        while at < len(remaining) and len(remaining) > 1:
            rest = remaining[:at] + remaining[at + size:]
            if rest and fails(rest):
                remaining = rest
            else:
                at += size
        if size == 1 and len(remaining) == before:
            return remaining
        size = max(1, size // 2)
