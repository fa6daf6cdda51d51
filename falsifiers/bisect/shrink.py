"""Delta debugging: from a scene that parts to the smallest that still does, and its neighbour.

What counts as still failing is a divergence at the same part of the path, so that the search does
not slide from one fault into another; what parts elsewhere is neither failing nor passing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from falsifiers.bisect.divergence import Location, Mode, Report
from falsifiers.bisect.paired_runs import IDLE_SLOTS, Setup
from falsifiers.bisect.scenario import Scenario
from falsifiers.bisect.search import Bisection, suspect_ops
from falsifiers.judging.errors import SuiteError

Item = TypeVar("Item")
BlamedOps = tuple[str, ...]
"""What of a path a divergence is blamed on."""
SetupForLayers = Callable[[tuple[int, ...]], Setup]
"""Makes the setup whose model has these layers alone."""
ELSEWHERE: BlamedOps = ("elsewhere",)
MAX_TRIES = 600
"""Scenes tried before a search gives up and says so."""


@dataclass(frozen=True)
class ShrinkResult:
    """The smallest scene found."""

    scene: Scenario
    report: Report
    """What the scene does, run once more from the start."""
    passing: Scenario | None
    """The largest scene that is one part less and does not part; None when there is no part to
    spare."""
    tried: int
    minimal: bool
    """Whether every scene that is one part less was seen to pass."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON would have it."""
        both = {"failing": self.scene, "passing": self.passing}
        return {"tried": self.tried, "minimal": self.minimal,
                **{name: scene and {"layers": list(scene.layers), "slots": scene.slots,
                                    "steps": [asdict(step) for step in scene.to_steps()]}
                   for name, scene in both.items()}}


@dataclass
class Shrinker:
    """One search; `run` makes it."""

    setup_for_layers: SetupForLayers
    max_tries: int = MAX_TRIES
    tried: int = 0
    _blamed_by_scenario: dict[Scenario, BlamedOps | None] = field(default_factory=dict)
    """What each scene parts at, or None."""
    _setup_by_layers: dict[tuple[int, ...], Setup] = field(default_factory=dict)
    _target: BlamedOps = ()
    _mode: Mode = "reported"

    def run(self, scene: Scenario, found: Report) -> ShrinkResult:
        """Shrink a scene in which a bisection found a place."""
        if found.place is None:
            raise SuiteError("there is no divergence to shrink")
        self._mode = found.seen
        scene = scene.with_steps(range(found.place.step + 1))
        # as the digests tell it: a report names who wrote a state, when that was seen
        at = self._blamed_by_scenario[scene] = self._try_scenario(scene)
        if at is None or at == ELSEWHERE:
            raise SuiteError("the divergence did not repeat, so it cannot be shrunk: something is "
                             "kept between runs")
        self._target, self.tried = at, 1
        before = None
        while scene != before and self.tried < self.max_tries:
            before = scene
            scene = self._shrink_round(scene)
        passing = [
            one
            for one in scene.smaller_scenarios()
            if self._blamed_by_scenario.get(one, ELSEWHERE) is None
        ]
        report = self._build_bisection(scene).run()
        if report.place is None:
            raise SuiteError("the smallest case does not part when it is run alone: something is "
                             "kept between runs")
        return ShrinkResult(scene, report, max(passing, key=lambda one: one.size, default=None),
                      self.tried, self.tried < self.max_tries)

    def fails(self, scene: Scenario) -> bool:
        """Return whether a scene parts at the part of the path that is searched for."""
        if scene not in self._blamed_by_scenario:
            if self.tried >= self.max_tries:
                return False
            self.tried += 1
            self._blamed_by_scenario[scene] = self._try_scenario(scene)
        return self._blamed_by_scenario[scene] == self._target

    def _try_scenario(self, scene: Scenario) -> BlamedOps | None:
        bisection = self._build_bisection(scene)
        try:
            found = bisection.find_first(bisection.setup.path(), mode=self._mode)
        except SuiteError:  # it does not run at all
            return ELSEWHERE
        return None if found is None else _blamed_ops(found.place)

    def _build_bisection(self, scene: Scenario) -> Bisection:
        if scene.layers not in self._setup_by_layers:
            self._setup_by_layers[scene.layers] = self.setup_for_layers(scene.layers)
        return Bisection(
            self._setup_by_layers[scene.layers],
            scene.to_steps(),
            scene.slots - IDLE_SLOTS,
            greedy=self._mode == "greedy",
        )

    def _shrink_round(self, scene: Scenario) -> Scenario:
        steps = ddmin(range(len(scene.steps)), lambda kept: self.fails(scene.with_steps(kept)))
        scene = scene.with_steps(steps)
        texts = ddmin(
            range(len(scene.sequences)), lambda kept: self.fails(scene.with_sequences(kept))
        )
        scene = scene.with_sequences(texts)
        layers = ddmin(scene.layers, lambda kept: self.fails(replace(scene, layers=tuple(kept))))
        scene = replace(scene, layers=tuple(layers))
        feeds = ddmin(scene.feed_positions(), lambda kept: self.fails(scene.with_feeds(kept)))
        scene = scene.with_feeds(feeds)
        for step, row in scene.feed_positions():
            scene = self._fewest_tokens(scene, step, row)
        scene = scene.drop_unused_tokens()
        for who in range(len(scene.sequences)):
            plain = scene.repeat_first_token(who)
            scene = plain if plain != scene and self.fails(plain) else scene
        for other in (scene.renumber_slots(), scene.sort_rows_by_slot(),
                      scene.renumber_slots().sort_rows_by_slot()):
            scene = other if other != scene and self.fails(other) else scene
        return next((one for one in scene.smaller_scenarios() if self.fails(one)), scene)

    def _fewest_tokens(self, scene: Scenario, step: int, row: int) -> Scenario:
        """Return the scene with the fewest tokens in one feed, were it once too few for all."""
        low, high = 0, scene.steps[step][row][1]
        while high - low > 1:
            middle = (low + high) // 2 if low else 1
            if self.fails(scene.with_count(step, row, middle)):
                high = middle
            else:
                low = middle
        return scene.with_count(step, row, high)


def _blamed_ops(place: Location) -> BlamedOps:
    return (place.kind, *suspect_ops(place.op)) if place.kind == "stray" else suspect_ops(place.op)


def ddmin(parts: Sequence[Item], fails: Callable[[list[Item]], bool]) -> list[Item]:
    """Return the parts that are left when no block of them, nor any single one, can be spared.

    `fails` says whether what is left still shows the fault; all parts together must. At least
    one part is kept.
    """
    kept = list(parts)
    size = max(1, len(kept) // 2)
    while True:
        at, before = 0, len(kept)
        while at < len(kept) and len(kept) > 1:
            rest = kept[:at] + kept[at + size:]
            if rest and fails(rest):
                kept = rest
            else:
                at += size
        if size == 1 and len(kept) == before:
            return kept
        size = max(1, size // 2)
