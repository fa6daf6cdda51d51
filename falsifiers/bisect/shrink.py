"""Delta debugging: from a scene that parts to the smallest that still does, and its neighbour.

What counts as still failing is a divergence at the same part of the path, so that the search does
not slide from one fault into another; what parts elsewhere is neither failing nor passing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from falsifiers.bisect.divergence import Mode, Place, Report
from falsifiers.bisect.paired_runs import IDLE, Setup
from falsifiers.bisect.scenario import Scene
from falsifiers.bisect.search import Bisection, suspects
from falsifiers.judging.errors import SuiteError

Thing = TypeVar("Thing")
Part = tuple[str, ...]
"""What of a path a divergence is blamed on."""
Setups = Callable[[tuple[int, ...]], Setup]
"""Makes the setup whose model has these layers alone."""
ELSEWHERE: Part = ("elsewhere",)
MOST = 600
"""Scenes tried before a search gives up and says so."""


@dataclass(frozen=True)
class Shrunk:
    """The smallest scene found."""

    scene: Scene
    report: Report
    """What the scene does, run once more from the start."""
    passing: Scene | None
    """The largest scene that is one part less and does not part; None when there is no part to
    spare."""
    tried: int
    minimal: bool
    """Whether every scene that is one part less was seen to pass."""

    def told(self) -> dict[str, Any]:
        """Return it as JSON would have it."""
        both = {"failing": self.scene, "passing": self.passing}
        return {"tried": self.tried, "minimal": self.minimal,
                **{name: scene and {"layers": list(scene.layers), "slots": scene.slots,
                                    "steps": [asdict(step) for step in scene.planned()]}
                   for name, scene in both.items()}}


@dataclass
class Shrinker:
    """One search; `run` makes it."""

    setups: Setups
    most: int = MOST
    tried: int = 0
    _known: dict[Scene, Part | None] = field(default_factory=dict)
    """What each scene parts at, or None."""
    _made: dict[tuple[int, ...], Setup] = field(default_factory=dict)
    _at: Part = ()
    _seen: Mode = "reported"

    def run(self, scene: Scene, found: Report) -> Shrunk:
        """Shrink a scene in which a bisection found a place."""
        if found.place is None:
            raise SuiteError("there is no divergence to shrink")
        self._seen = found.seen
        scene = scene.with_steps(range(found.place.step + 1))
        # as the digests tell it: a report names who wrote a state, when that was seen
        at = self._known[scene] = self._tried(scene)
        if at is None or at == ELSEWHERE:
            raise SuiteError("the divergence did not repeat, so it cannot be shrunk: something is "
                             "kept between runs")
        self._at, self.tried = at, 1
        before = None
        while scene != before and self.tried < self.most:
            before = scene
            scene = self._round(scene)
        passing = [one for one in scene.smaller() if self._known.get(one, ELSEWHERE) is None]
        report = self._bisection(scene).run()
        if report.place is None:
            raise SuiteError("the smallest case does not part when it is run alone: something is "
                             "kept between runs")
        return Shrunk(scene, report, max(passing, key=lambda one: one.size, default=None),
                      self.tried, self.tried < self.most)

    def fails(self, scene: Scene) -> bool:
        """Return whether a scene parts at the part of the path that is searched for."""
        if scene not in self._known:
            if self.tried >= self.most:
                return False
            self.tried += 1
            self._known[scene] = self._tried(scene)
        return self._known[scene] == self._at

    def _tried(self, scene: Scene) -> Part | None:
        bisection = self._bisection(scene)
        try:
            found = bisection.first(bisection.setup.path(), mode=self._seen)
        except SuiteError:  # it does not run at all
            return ELSEWHERE
        return None if found is None else _part(found.place)

    def _bisection(self, scene: Scene) -> Bisection:
        if scene.layers not in self._made:
            self._made[scene.layers] = self.setups(scene.layers)
        return Bisection(self._made[scene.layers], scene.planned(), scene.slots - IDLE,
                         greedy=self._seen == "greedy")

    def _round(self, scene: Scene) -> Scene:
        steps = least(range(len(scene.steps)), lambda kept: self.fails(scene.with_steps(kept)))
        scene = scene.with_steps(steps)
        texts = least(range(len(scene.texts)), lambda kept: self.fails(scene.with_texts(kept)))
        scene = scene.with_texts(texts)
        layers = least(scene.layers, lambda kept: self.fails(replace(scene, layers=tuple(kept))))
        scene = replace(scene, layers=tuple(layers))
        feeds = least(scene.feeds(), lambda kept: self.fails(scene.keeping(kept)))
        scene = scene.keeping(feeds)
        for step, row in scene.feeds():
            scene = self._fewest(scene, step, row)
        scene = scene.trimmed()
        for who in range(len(scene.texts)):
            plain = scene.plain(who)
            scene = plain if plain != scene and self.fails(plain) else scene
        for other in (scene.renumbered(), scene.in_slot_order(),
                      scene.renumbered().in_slot_order()):
            scene = other if other != scene and self.fails(other) else scene
        return next((one for one in scene.smaller() if self.fails(one)), scene)

    def _fewest(self, scene: Scene, step: int, row: int) -> Scene:
        """Return the scene with the fewest tokens in one feed, were it once too few for all."""
        low, high = 0, scene.steps[step][row][1]
        while high - low > 1:
            middle = (low + high) // 2 if low else 1
            if self.fails(scene.with_count(step, row, middle)):
                high = middle
            else:
                low = middle
        return scene.with_count(step, row, high)


def _part(place: Place) -> Part:
    return (place.kind, *suspects(place.op)) if place.kind == "stray" else suspects(place.op)


def least(parts: Sequence[Thing], fails: Callable[[list[Thing]], bool]) -> list[Thing]:
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
