"""The kill matrix as the page shows it: mutants against the falsifiers that must kill them."""

from __future__ import annotations

from dataclasses import dataclass

from falsifiers.judging.matrix import MutantResult
from reports.evidence import MutantResults

FOLD_ABOVE = 30
"""A longer matrix without survivors is folded."""
FATE_CSS = {"died": "died", "survived": "survived", "cannot tell": "tell", "not run": "away"}


@dataclass(frozen=True)
class MutantLine:
    """One mutant and its fate."""

    result: MutantResult
    fate: str
    """`died`, `survived`, `not run`, or `cannot tell`: the case also fails without the mutant."""
    source: str

    @property
    def css(self) -> str:
        """The CSS class of its fate."""
        return FATE_CSS[self.fate]

    @property
    def missed(self) -> str:
        """The words for a falsifier that must kill it and did not."""
        return "missed it" if self.fate == "survived" else "was not tried"


@dataclass(frozen=True)
class KillView:
    """The kill matrix of one phase."""

    lines: tuple[MutantLine, ...]
    """The mutants that were tried, survivors first."""
    killers: tuple[str, ...]
    """The falsifiers that must kill a tried mutant, most kills first."""
    not_tried: tuple[str, ...]
    """Names of the mutants that were not tried."""

    @property
    def header(self) -> float:
        """The height of the turned names, in rem."""
        return 1.0 + 0.47 * max(map(len, self.killers), default=0)

    def count(self, fate: str) -> int:
        """Return the number of mutants with this fate."""
        return sum(line.fate == fate for line in self.lines)

    @property
    def open(self) -> bool:
        """Whether to show it unfolded."""
        return len(self.lines) <= FOLD_ABOVE or self.count("died") < len(self.lines)


def kill_view(kills: MutantResults, phase: str) -> KillView:
    """Return the kill matrix of one phase."""
    rows = [row for row in kills.matrix.mutants if row.phase == phase]
    every_line = [MutantLine(row, mutant_fate(kills, row), kills.sources.get(row.id, ""))
                  for row in rows]
    lines = sorted((line for line in every_line if line.fate != "not run"),
                   key=lambda line: line.fate == "died")
    named = dict.fromkeys(name for line in lines for name in line.result.expected)
    order = sorted(named, key=lambda name: -sum(name in line.result.killed_by for line in lines))
    return KillView(tuple(lines), tuple(order),
                    tuple(line.result.name for line in every_line if line.fate == "not run"))


def mutant_fate(kills: MutantResults, row: MutantResult) -> str:
    """Say in a word what became of a mutant."""
    if row.id in kills.inconclusive:
        return "cannot tell"
    if row.id in kills.matrix.not_run:
        return "not run"
    return "survived" if row.id in kills.matrix.survivors else "died"
