"""Cases as a dense grid: one axis as columns, the others as rows, one cell for each case."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from contracts.schema import Case
from falsifiers.judging.verdict import Verdict

MIN_FILL = 0.4
"""A table with a smaller part of its cells filled is shown as a list instead."""
MAX_LINE_SHARE = 0.75
"""A table with more lines than this a case is shown as a list instead."""
MAX_COLUMNS, MAX_LABEL = 24, 14
"""A table of more columns, or with a longer word above one, is shown as a list instead."""
DENSE_COLUMNS = 14
"""A table of more columns has narrower cells."""
UNLABELLED_KEYS = ("tier", "arithmetic", "kind", "model")
"""Axes whose values need no label."""
WIDTH_KEY = "m"
"""The axis that always makes the columns; a case may hold a list of its values."""


@dataclass(frozen=True)
class Cell:
    """One case, or one width of it, as a mark: symbol and words say what its colour says."""

    kind: str
    """The CSS classes: an outcome, or `budget` for a pass that was not bitwise; the rung broken."""
    symbol: str
    word: str
    """The rung of a failure, or what the symbol means."""
    name: str
    """The case's tier and name."""
    anchor: str = ""
    """The id of the failure on the page, or empty."""

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
    def dense(self) -> bool:
        """Whether its cells are narrow, so that many columns fit."""
        return len(self.columns) > DENSE_COLUMNS

    @property
    def fill_ratio(self) -> float:
        """The share of the table's places with a case."""
        cells = sum(cell is not None for _, line in self.lines for cell in line)
        return cells / max(1, len(self.columns) * len(self.lines))


SYMBOLS = {"passed": ("✓", "passed, bit for bit"), "budget": ("≈", "passed within a budget"),
           "failed": ("✗", "failed"), "error": ("!", "ended in an error"),
           "unmeasurable": ("?", "unmeasurable"), "declined": ("~", "declined"),
           "beside": ("·", "of a case that failed at another m")}


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


def arrange_cases(cases: Sequence[Case], verdicts: Mapping[str, Verdict]) -> Grid:
    """Arrange the cases of one falsifier by the axes that vary among them, as flat as can be.

    Widths that a case goes through by itself take a column each.
    """
    cells = [cell_of(case, verdicts[case.id]) for case in cases]
    given = [{"tier": case.tier, **case.given} for case in cases]
    wide = [part for one, case, cell in zip(given, cases, cells, strict=True)
            for part in _split_by_width(one, verdicts[case.id], cell)]
    tables = [_try_table(WIDTH_KEY, [one for one, _ in wide], [cell for _, cell in wide])] \
        if len(wide) > 2 else []
    if len(cases) > 2:
        tables += [_try_table(axis, given, cells)
                   for axis in _varying_keys(given) if axis != WIDTH_KEY]
    fits = [grid for grid in tables if grid is not None]
    return min(fits, key=lambda grid: (grid.axis != WIDTH_KEY, len(grid.lines)),
               default=Grid("", (), (("", tuple(cells)),)))


def _split_by_width(given: Mapping[str, Any], verdict: Verdict,
            cell: Cell) -> Iterator[tuple[dict[str, Any], Cell]]:
    """Yield a case once for each of its widths.

    A failure that names its width is drawn only there; the outcome at other widths is unknown.
    """
    widths = given.get(WIDTH_KEY)
    if not isinstance(widths, list) or not all(isinstance(m, int) for m in widths):
        yield dict(given), cell
        return
    broken = verdict.finding.where.get(WIDTH_KEY) if verdict.finding else None
    symbol, word = SYMBOLS["beside"]
    for m in dict.fromkeys(widths):
        is_other = broken in widths and m != broken
        yield {**given, WIDTH_KEY: m}, replace(cell, kind="beside", symbol=symbol, word=word) \
            if is_other else replace(cell, name=f"{cell.name}, m {m}")


def _varying_keys(given: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys whose values differ and are no lists."""
    return [key for key in dict.fromkeys(key for one in given for key in one)
            if len({_format_value(one.get(key)) for one in given}) > 1
            and not any(isinstance(one.get(key), list | dict) for one in given)]


def _try_table(axis: str, given: Sequence[Mapping[str, Any]], cells: Sequence[Cell]) -> Grid | None:
    """Return the cases with one axis as columns; None when two share a place or it is no table."""
    axes = _varying_keys(given)
    if axis not in axes:
        return None
    columns = _order_columns([values.get(axis) for values in given])
    if len(columns) > MAX_COLUMNS or max(map(len, columns)) > MAX_LABEL:
        return None
    place: dict[str, dict[str, Cell]] = {}
    for values, cell in zip(given, cells, strict=True):
        label = ", ".join(_format_label(key, values[key]) for key in axes
                          if key != axis and key in values)
        line = place.setdefault(label, {})
        if _format_value(values.get(axis)) in line:
            return None
        line[_format_value(values.get(axis))] = cell
    grid = Grid(axis, columns, tuple((label, tuple(line.get(column) for column in columns))
                                     for label, line in place.items()))
    is_table = grid.fill_ratio >= MIN_FILL and len(grid.lines) <= MAX_LINE_SHARE * len(cells)
    return grid if is_table else None


def _order_columns(values: Sequence[Any]) -> tuple[str, ...]:
    found = {_format_value(value): value for value in values}
    if all(isinstance(value, int | float) for value in found.values()):
        return tuple(sorted(found, key=lambda text: found[text]))
    return tuple(found)


def _format_label(key: str, value: Any) -> str:
    label = "" if key in UNLABELLED_KEYS else f"{key}\N{NO-BREAK SPACE}"
    return label + _format_value(value)


def _format_value(value: Any) -> str:
    return "" if value is None else str(value)
