"""All pairs of a phase, and the fewest cases that keep its kill score."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import rowtwin
from contracts.schema import Contract
from falsifiers.judging.errors import Declined, SuiteError
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Mutant, Subject
from falsifiers.meta.gate.fake_checkout import contract, row
from falsifiers.mutation.full_matrix import Full, Pairs, Tried, cover, full, lines, read, smallest
from falsifiers.mutation.mutants import Bank


def attack(case: Any, subject: Subject, judge: Judge) -> None:
    """Hold that what a case looks at is right."""
    if case["does"] == "decline":
        raise Declined("not mine")
    if case["does"] != "nothing":
        judge.law(case["does"] not in subject.path, f"{case['does']} is wrong")


def bank(*wrong: str, cases: str = "a b ab nothing decline") -> Bank:
    """Return a bank whose mutants are wrong in the letters of their names."""
    data = contract("p1", [row(does, does) for does in cases.split()]
                    + [row("slow", "a", quick=False), row("there", "a", tier="cuda")])
    def named(name: str) -> Mutant:
        return Mutant(name, "It is wrong.", ("rows_hold",),
                      lambda subject: replace(subject, path=name))

    return Bank(Contract.model_validate(data), {"rows_hold": attack}, [*map(named, wrong)],
                lambda case: Subject("in-tree", models=str, path=""))


def name(case: str) -> str:
    return f"p1/rows_hold[cpu-{case}]"


def test_each_mutant_meets_every_quick_case_that_can_kill() -> None:
    matrix = full(bank("a", "ab", "c"))
    assert [case.id for case in matrix.cases] == [name("a"), name("b"), name("ab")]
    assert matrix.idle == {name("nothing"): "it compares nothing", name("decline"): "not mine"}
    assert {one.name: set(one.rungs) for one in matrix.mutants} == {
        "a": {name("a")}, "ab": {name("a"), name("b"), name("ab")}, "c": set()}
    assert matrix.survivors() == ["c"]
    assert [case.id for case in smallest(matrix)] == [name("a")]
    assert any(line.startswith("c ") and "SURVIVED" in line for line in lines(matrix))
    assert "1 of 3 quick cases keep the kill score, 2 pairs" in "\n".join(lines(matrix))


def test_mutant_of_a_device_is_not_run() -> None:
    made = bank("a", "b")
    made.mutants = [made.mutants[0], replace(made.mutants[1], device="cuda")]
    matrix = full(made)
    assert ([one.name for one in matrix.mutants], matrix.not_run) == (["a"], ("b",))


def test_case_that_fails_without_a_mutant_ends_it() -> None:
    made = bank("a")
    made.subject_for = lambda case: Subject("in-tree", models=str, path="b")
    with pytest.raises(SuiteError, match=r"rows_hold\[cpu-b\] does not pass without a mutant"):
        full(made)


def matrix_of(kills: dict[str, str], **of: str) -> Full:
    """Return a matrix of cases by the falsifiers `of`; `kills` has cases by mutant."""
    return Full(phase="p1", idle={}, cases=tuple(
        Tried(id=case, falsifier=falsifier, seconds=1.0) for case, falsifier in of.items()),
        mutants=tuple(Pairs(name=one, expected=tuple(sorted(set(of.values()))), seconds=1.0,
                            rungs=dict.fromkeys(cases, "bits")) for one, cases in kills.items()))


def test_every_falsifier_keeps_its_own_kills() -> None:
    matrix = matrix_of({"m": "ac", "n": "bc"}, a="one", b="one", c="two")
    assert [case.id for case in smallest(matrix)] == ["a", "b", "c"]
    assert matrix.demands() == {("m", "one"), ("m", "two"), ("n", "one"), ("n", "two")}


families = st.dictionaries(st.sampled_from("abcdef"), st.frozensets(st.sampled_from("12345")),
                           min_size=1)


@settings(max_examples=60)
@given(families, st.lists(st.integers(1, 9), min_size=6, max_size=6))
def test_cover_is_the_smallest_that_trying_all_finds(sets: dict[str, frozenset[str]],
                                                     prices: list[int]) -> None:
    wanted = set().union(*sets.values())
    costs = {name: float(price) for name, price in zip("abcdef", prices, strict=True)}
    every = [names for size in range(len(sets) + 1)
             for names in itertools.combinations(sorted(sets), size)
             if set().union(*(sets[one] for one in names)) >= wanted]
    best = min((len(names), sum(costs[one] for one in names)) for names in every)
    found = cover(wanted, sets, costs)
    assert (len(found), sum(costs[one] for one in found)) == best
    assert set().union(*(sets[one] for one in found)) >= wanted


def test_what_nothing_holds_is_refused() -> None:
    with pytest.raises(SuiteError, match="no sets hold all of x"):
        cover({"x"}, {"a": frozenset("y")}, {"a": 1.0})


def test_matrix_is_read_back_and_its_selection_printed(tmp_path: Path) -> None:
    matrix = full(bank("a", "b"))
    path = tmp_path / "p1.json"
    path.write_text(matrix.model_dump_json())
    assert read(path) == matrix
    shown = CliRunner().invoke(rowtwin.app, ["mutants", "--smallest", str(path)])
    assert shown.exit_code == 0
    assert "2 of 3 quick cases keep the kill score, 2 pairs" in shown.stdout
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SuiteError, match=r"pipe is not a plain file"):
        read(tmp_path / "pipe")
    path.write_text(json.dumps({"phase": "p1"}))
    with pytest.raises(SuiteError, match=r"holds no matrix .*: cases: Field required"):
        read(path)
