"""The grid of cases: each case has one place, and none is hidden."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.schema import Case
from falsifiers.judging.verdict import Finding
from reports.fake_evidence import verdict
from reports.grid import Cell, Grid, arrange_cases


def grid(*given: dict[str, Any], broken: dict[int, dict[str, Any]] | None = None) -> Grid:
    """Return the grid of fake cases that passed, but for those `broken` at a place."""
    cases = [Case(phase="p1", falsifier="holds", tier=one.pop("tier", "cpu"), name=f"n{i}",
                  given=one, quick=True, must_claim=True) for i, one in enumerate(given)]
    verdicts = {case.id: verdict(case) for case in cases}
    for number, where in (broken or {}).items():
        finding = Finding(rule="twin", rung="bits", sentence="it broke", where=where)
        verdicts[cases[number].id] = verdict(cases[number], "failed", finding=finding)
    return arrange_cases(cases, verdicts)


def cell_names(found: Grid) -> list[list[str]]:
    return [[cell.name if isinstance(cell, Cell) else "" for cell in cells]
            for _, cells in found.lines]


def test_width_makes_the_columns_in_order_of_size() -> None:
    found = grid(*({"kind": kind, "m": m} for kind in ("Q4_K", "Q6_K", "F32", "F16")
                   for m in (16, 2, 1)))
    assert (found.axis, found.columns) == ("m", ("1", "2", "16"))
    assert [label for label, _ in found.lines] == ["Q4_K", "Q6_K", "F32", "F16"]
    assert cell_names(found)[0] == ["cpu-n2", "cpu-n1", "cpu-n0"]


def test_places_without_a_case_stay_empty() -> None:
    found = grid({"k": 1, "n": 1}, {"k": 2, "n": 1}, {"k": 3, "n": 1}, {"k": 1, "n": 2})
    assert cell_names(found) == [["cpu-n0", "cpu-n1", "cpu-n2"], ["cpu-n3", "", ""]]


def test_flattest_table_is_taken() -> None:
    found = grid(*({"stage": stage, "why": why} for stage in ("a", "b", "c", "d")
                   for why in ("x", "y")))
    assert found.axis == "stage"


def test_tier_is_an_axis_of_its_own() -> None:
    found = grid(*({"k": k, "tier": tier} for k in (1, 2, 3) for tier in ("cpu", "interpret")))
    assert [label for label, _ in found.lines] == ["cpu", "interpret"]


def test_sparse_and_long_tables_become_a_list() -> None:
    assert grid(*({"a": i, "b": -i} for i in range(4))).columns == ()
    assert grid(*({"name": f"a very long name {i}"} for i in range(4))).columns == ()
    assert grid(*({"k": i} for i in range(30))).columns == ()
    assert grid({"k": 1}, {"k": 2}).columns == ()


def test_cases_that_differ_in_lists_alone_lose_none() -> None:
    found = grid({"m": 1, "rows": [1]}, {"m": 1, "rows": [2]}, {"m": 2, "rows": [1]})
    assert found.columns == ()
    assert cell_names(found) == [["cpu-n0", "cpu-n1", "cpu-n2"]]


def test_widths_that_a_case_goes_through_take_a_column_each() -> None:
    found = grid({"kind": "Q4_K", "m": [1, 2, 16]}, {"kind": "F32", "m": [2, 1]},
                 {"kind": "F16", "m": 3})
    assert (found.axis, found.columns) == ("m", ("1", "2", "3", "16"))
    assert cell_names(found) == [["cpu-n0, m 1", "cpu-n0, m 2", "", "cpu-n0, m 16"],
                             ["cpu-n1, m 1", "cpu-n1, m 2", "", ""], ["", "", "cpu-n2", ""]]


@pytest.mark.parametrize(("where", "kinds"), [
    ({"m": 2, "row": 1}, ["beside", "failed rung-bits", "beside"]),
    ({"row": 1}, ["failed rung-bits"] * 3)])
def test_failure_is_drawn_at_the_width_that_it_names(where: dict[str, Any],
                                                     kinds: list[str]) -> None:
    found = grid({"kind": "Q4_K", "m": [1, 2, 3]}, {"kind": "F32", "m": [1, 2, 3]},
                 broken={0: where})
    drawn = [[cell.kind for cell in cells if cell] for _, cells in found.lines]
    assert drawn == [kinds, ["passed"] * 3]
    links = [cell.anchor for cell in found.lines[0][1] if cell]
    assert set(links) == {"case-p1-holds-cpu-n0-"}


def test_widths_that_make_no_table_leave_the_cases_as_they_are() -> None:
    found = grid({"k": 1, "m": [1, 2]}, {"k": 1, "m": [2, 3]}, {"k": 2, "m": [1]})
    assert cell_names(found) == [["cpu-n0", "cpu-n1", "cpu-n2"]]
    assert not found.dense
    assert grid({"m": list(range(1, 23))}).dense
