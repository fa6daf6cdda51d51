"""Cases as a dense grid: two of their axes as rows and columns, one small cell a case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.schema import Case
from falsifiers.verdict import Verdict

FULL = 0.4
"""A table with a smaller part of its cells filled is shown as a list instead."""
FLAT = 0.75
"""A table with more lines than this a case is shown as a list instead."""
WIDE, LONG = 20, 14
"""A table of more columns, or with a longer word above one, is shown as a list instead."""


@dataclass(frozen=True)
class Cell:
    """One case as a small mark: its symbol and words say what its colour says."""

    kind: str
    """The CSS classes: an outcome, or `budget` for a pass that was not bitwise; the rung broken."""
    symbol: str
    word: str
    """The rung of a failure, or what the symbol means."""
    name: str
    """The case's tier and name."""
    anchor: str = ""
    """Where the failure is told, or empty."""

    @property
    def failed(self) -> bool:
        """Whether its word is a rung."""
        return self.kind.startswith("failed")

    @property
    def label(self) -> str:
        """The name, without the tier that most cases have."""
        return self.name.removeprefix("cpu-")


@dataclass(frozen=True)
class Grid:
    """The cases of one falsifier: as a table when `columns` are there, else as a list."""

    axis: str
    """What the columns are, `m`; empty for a list."""
    columns: tuple[str, ...]
    lines: tuple[tuple[str, tuple[Cell | None, ...]], ...]
    """A label and its cells; a list is one line without a label."""

    @property
    def filled(self) -> float:
        """The part of the table's places that a case stands in."""
        cells = sum(cell is not None for _, line in self.lines for cell in line)
        return cells / max(1, len(self.columns) * len(self.lines))


SYMBOLS = {"passed": ("✓", "passed, bit for bit"), "budget": ("≈", "passed within a budget"),
           "failed": ("✗", "failed"), "error": ("!", "ended in an error"),
           "unmeasurable": ("?", "unmeasurable"), "declined": ("~", "declined")}


def cell_of(case: Case, verdict: Verdict) -> Cell:
    """Return the mark of a case by what its verdict says."""
    kind: str = verdict.outcome
    if kind == "passed" and any(worst.rung == "budget" for worst in verdict.worst):
        kind = "budget"
    symbol, word = SYMBOLS[kind]
    red = kind in ("failed", "error")
    if verdict.finding:
        word, kind = verdict.finding.rung, f"{kind} rung-{verdict.finding.rung}"
    return Cell(kind, symbol, word, f"{case.tier}-{case.name}", anchor_of(case.id) if red else "")


def anchor_of(case: str) -> str:
    """Return an id for a case within the page."""
    return "case-" + "".join(c if c.isalnum() else "-" for c in case)


def grid_of(cases: Sequence[Case], verdicts: Mapping[str, Verdict]) -> Grid:
    """Arrange the cases of one falsifier by the axes that vary among them, as flat as can be."""
    cells = [cell_of(case, verdicts[case.id]) for case in cases]
    given = [{"tier": case.tier, **case.given} for case in cases]
    axes = [key for key in dict.fromkeys(key for g in given for key in g)
            if len({_text(g.get(key)) for g in given}) > 1
            and not any(isinstance(g.get(key), list | dict) for g in given)]
    tables = [_table(axis, axes, given, cells) for axis in axes] if len(cases) > 2 else []
    fits = [grid for grid in tables if grid is not None and grid.filled >= FULL
            and len(grid.lines) <= FLAT * len(cells)]
    return min(fits, key=lambda grid: (grid.axis != "m", len(grid.lines)),
               default=Grid("", (), (("", tuple(cells)),)))


def _table(axis: str, axes: Sequence[str], given: Sequence[Mapping[str, Any]],
           cells: Sequence[Cell]) -> Grid | None:
    """Return the cases with one axis as columns, or None when two share a place."""
    columns = _columns([values.get(axis) for values in given])
    if len(columns) > WIDE or max(map(len, columns)) > LONG:
        return None
    place: dict[str, dict[str, Cell]] = {}
    for values, cell in zip(given, cells, strict=True):
        label = ", ".join(f"{key} {_text(values[key])}" for key in axes
                          if key != axis and key in values)
        line = place.setdefault(label, {})
        if _text(values.get(axis)) in line:
            return None
        line[_text(values.get(axis))] = cell
    return Grid(axis, columns, tuple((label, tuple(line.get(column) for column in columns))
                                     for label, line in place.items()))


def _columns(values: Sequence[Any]) -> tuple[str, ...]:
    found = {_text(value): value for value in values}
    if all(isinstance(value, int | float) for value in found.values()):
        return tuple(sorted(found, key=lambda text: found[text]))
    return tuple(found)


def _text(value: Any) -> str:
    return "" if value is None else str(value)
