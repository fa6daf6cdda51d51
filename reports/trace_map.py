"""The map of two traces: layers by steps, the first divergence, and its values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from falsifiers.bisect.cli import format_location
from falsifiers.bisect.divergence import ValueDiff
from falsifiers.bisect.trace_compare import Cell, Comparison, Difference
from reports import pages

MAX_LISTED = 60
"""Largest number of cells whose differences are listed."""
CELL_WORDS = {"equal": ("·", "every tensor has the same bits"),
              "within": ("≈", "within the bounds, but not the same bits"),
              "differ": ("✕", "differs"), "none": ("", "nothing to compare")}


@dataclass(frozen=True)
class Square:
    """One drawn cell."""

    status: str
    mark: str
    title: str
    anchor: str
    """The id of its list of differences, or empty."""
    first_difference: bool


def page(found: Comparison) -> str:
    """Return a comparison as a self-contained page; untrusted text is escaped."""
    return pages.fill_template("trace.html", context(found))


def context(found: Comparison) -> dict[str, Any]:
    """Return the values of the template."""
    steps = sorted({step for step, _ in found.cells})
    first = _first_cell(found)
    order = {layer: number for number, layer in enumerate(found.layers)}
    differing = sorted((cell for cell in found.cells.values() if cell.differences),
                       key=lambda cell: (cell is not first, cell.step, order[cell.layer]))
    listed = differing[:MAX_LISTED]
    anchors = {(cell.step, cell.layer): f"s{cell.step}-{order[cell.layer]}" for cell in listed}
    return {
        "report": found.report,
        "bounds": found.bounds,
        "steps": steps,
        "words": CELL_WORDS,
        "said": format_location(found.report),
        "diverged": found.first_difference is not None,
        "left_out": found.steps_left_out,
        "not_listed": len(differing) - len(listed),
        "totals": {word: sum(cell.status == word for cell in found.cells.values())
                   for word in CELL_WORDS},
        "rows": [(layer, [_draw_cell(found.cells.get((step, layer)), anchors, first)
                          for step in steps]) for layer in found.layers],
        "cells": [{"cell": cell, "anchor": anchors[cell.step, cell.layer], "first": cell is first,
                   "more": cell.differ + cell.within - len(cell.differences),
                   "differences": [_difference_row(found) for found in cell.differences]}
                  for cell in listed]}


def _first_cell(found: Comparison) -> Cell | None:
    if found.first_difference is None:
        return None
    return next(cell for cell in found.cells.values() if found.first_difference in cell.differences)


def _draw_cell(cell: Cell | None, anchors: dict[tuple[int, str], str],
               first: Cell | None) -> Square:
    if cell is None:
        return Square("none", "", CELL_WORDS["none"][1], "", first_difference=False)
    mark, meaning = CELL_WORDS[cell.status]
    counts = f"{cell.compared} compared, {cell.differ} differ, {cell.within} within the bounds"
    return Square(cell.status, f"{mark}{cell.differ or ''}", f"{meaning}: {counts}",
                  anchors.get((cell.step, cell.layer), ""), first_difference=cell is first)


def _difference_row(one: Difference) -> dict[str, Any]:
    """Return a difference as a row of a table."""
    return {"op": one.place.op, "name": one.place.name, "slot": one.place.slot, "row": one.row,
            "within": one.within, "note": one.note, "values": one.values,
            "cosine": "-" if one.cosine is None else f"{1 - one.cosine:.2e}",
            "norm": "-" if one.norm is None else f"{one.norm:.2e}",
            "around": [] if one.values is None else _nearby_values(one.values)}


def _nearby_values(values: ValueDiff) -> list[tuple[int, str, str, bool]]:
    """Return the values around the first difference: flat index, got, want, whether equal."""
    return [(values.first_shown + i, f"{got:.9g}", f"{want:.9g}", got == want)
            for i, (got, want) in enumerate(zip(values.got_around, values.want_around,
                                                strict=True))]
