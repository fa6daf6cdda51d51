"""Cases as a grid: each stands in one place, and nothing is hidden."""

from __future__ import annotations

from typing import Any

from contracts.schema import Case
from reports.grid import Cell, Grid, grid_of
from reports.made_up import verdict


def grid(*given: dict[str, Any]) -> Grid:
    cases = [Case(phase="p1", falsifier="holds", tier=one.pop("tier", "cpu"), name=f"n{i}",
                  given=one, quick=True, must_claim=True) for i, one in enumerate(given)]
    return grid_of(cases, {case.id: verdict(case) for case in cases})


def placed(found: Grid) -> list[list[str]]:
    return [[cell.name if isinstance(cell, Cell) else "" for cell in cells]
            for _, cells in found.lines]


def test_width_makes_the_columns_in_order_of_size() -> None:
    found = grid(*({"kind": kind, "m": m} for kind in ("Q4_K", "Q6_K", "F32", "F16")
                   for m in (16, 2, 1)))
    assert (found.axis, found.columns) == ("m", ("1", "2", "16"))
    assert [label for label, _ in found.lines] == [f"kind {k}" for k in
                                                   ("Q4_K", "Q6_K", "F32", "F16")]
    assert placed(found)[0] == ["cpu-n2", "cpu-n1", "cpu-n0"]


def test_places_that_no_case_takes_stay_empty() -> None:
    found = grid({"k": 1, "n": 1}, {"k": 2, "n": 1}, {"k": 3, "n": 1}, {"k": 1, "n": 2})
    assert placed(found) == [["cpu-n0", "cpu-n1", "cpu-n2"], ["cpu-n3", "", ""]]


def test_flattest_table_is_taken() -> None:
    found = grid(*({"stage": stage, "why": why} for stage in ("a", "b", "c", "d")
                   for why in ("x", "y")))
    assert found.axis == "stage"


def test_tier_is_an_axis_of_its_own() -> None:
    found = grid(*({"k": k, "tier": tier} for k in (1, 2, 3) for tier in ("cpu", "interpret")))
    assert [label for label, _ in found.lines] == ["tier cpu", "tier interpret"]


def test_sparse_and_long_tables_become_a_list() -> None:
    assert grid(*({"a": i, "b": -i} for i in range(4))).columns == ()
    assert grid(*({"name": f"a very long name {i}"} for i in range(4))).columns == ()
    assert grid(*({"k": i} for i in range(30))).columns == ()
    assert grid({"k": 1}, {"k": 2}).columns == ()


def test_cases_that_differ_in_lists_alone_lose_none() -> None:
    found = grid({"m": 1, "rows": [1]}, {"m": 1, "rows": [2]}, {"m": 2, "rows": [1]})
    assert found.columns == ()
    assert placed(found) == [["cpu-n0", "cpu-n1", "cpu-n2"]]
