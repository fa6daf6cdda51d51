"""The kill matrix as the page shows it: wrong versions against those that must catch them."""

from __future__ import annotations

from dataclasses import dataclass

from falsifiers.judging.matrix import Row
from reports.evidence import Kills
from reports.mutant_runner import name_of

MANY = 30
"""A longer matrix in which everything died is folded away."""
CSS = {"died": "died", "survived": "survived", "cannot tell": "tell", "not run": "away"}


@dataclass(frozen=True)
class Line:
    """One wrong version and what became of it."""

    row: Row
    fate: str
    """`died`, `survived`, `not run`, or `cannot tell`: a right version fails the case as well."""
    source: str

    @property
    def css(self) -> str:
        """The class that colours it."""
        return CSS[self.fate]

    @property
    def missed(self) -> str:
        """What to say of a falsifier that must kill it and did not."""
        return "missed it" if self.fate == "survived" else "was not tried"


@dataclass(frozen=True)
class KillView:
    """The kill matrix of one phase."""

    lines: tuple[Line, ...]
    """Those that were tried, the ones that did not die first."""
    killers: tuple[str, ...]
    """The falsifiers that some mutant tried names, those with the most kills first."""
    away: tuple[str, ...]
    """Names of those that were not tried here."""

    @property
    def header(self) -> float:
        """How high the turned names stand, in the page's unit."""
        return 1.0 + 0.47 * max(map(len, self.killers), default=0)

    def count(self, fate: str) -> int:
        """Return how many had this fate."""
        return sum(line.fate == fate for line in self.lines)

    @property
    def open(self) -> bool:
        """Whether to show it unfolded."""
        return len(self.lines) <= MANY or self.count("died") < len(self.lines)


def kill_view(kills: Kills, phase: str) -> KillView:
    """Return the part of the kill matrix that is about one phase."""
    rows = [row for row in kills.matrix.mutants if row.phase == phase]
    told = [Line(row, fate(kills, row), kills.sources.get(name_of(row), "")) for row in rows]
    lines = sorted((line for line in told if line.fate != "not run"),
                   key=lambda line: line.fate == "died")
    named = dict.fromkeys(name for line in lines for name in line.row.expected)
    order = sorted(named, key=lambda name: -sum(name in line.row.killed_by for line in lines))
    return KillView(tuple(lines), tuple(order),
                    tuple(line.row.name for line in told if line.fate == "not run"))


def fate(kills: Kills, row: Row) -> str:
    """Say in a word what became of a mutant."""
    name = name_of(row)
    if name in kills.untold:
        return "cannot tell"
    if name in kills.matrix.not_run:
        return "not run"
    return "survived" if name in kills.matrix.survivors else "died"
