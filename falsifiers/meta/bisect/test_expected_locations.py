"""Bisection names the place of every mutant that changes a value, and shrinks it to what fails.

An op's mutant is declared by the part of the path that it replaces; which layer, step and slot it
shows in first is found beside the bisection, by running its op beside the right one. A mutant of a
step, or of what stands behind one, is declared in `places.py`, by reading it and the plan.
"""

from __future__ import annotations

import hashlib
from functools import cache

import pytest

import rowtwin
from engine.emulate.emulator import emulated
from falsifiers.bisect.divergence import Location, split_op_id, suspect_ops
from falsifiers.bisect.paired_runs import IDLE_SLOTS, Setup, Step, plan
from falsifiers.bisect.scenario import Scenario
from falsifiers.bisect.search import Bisection, SoloReference
from falsifiers.bisect.shrink import Shrinker
from falsifiers.gate.pytest_plugin import THOROUGH
from falsifiers.judging.errors import SuiteError
from falsifiers.meta.bisect.expected_locations import (
    CRASHING_MUTANTS,
    EMULATED_MUTANTS,
    FUSED_NORM_MUTANTS,
    GREEDY_MUTANTS,
    KERNEL_MUTANTS,
    NOT_RUN,
    ON_A_DEVICE,
    PLANS,
    STEP_MUTANTS,
    UNSEEN_MUTANTS,
    UNSHRINKABLE,
    WIDER_PLANS,
)
from falsifiers.meta.bisect.mutant_location import locate_mutant

PHASES = ("p1", "p3", "p4", "p5", "p6", "p8")
VOCAB, LAYERS = 509, 2
QUICK, BEHIND, SHRUNK = 12, 4, 1
"""Mutants of a quick run, those among greedy runs, and how many of each it shrinks."""
NAMED = {phase: rowtwin.phase_contract(phase).mutant_ids for phase in PHASES}
ELSEWHERE = {
    *CRASHING_MUTANTS,
    *EMULATED_MUTANTS,
    *GREEDY_MUTANTS,
    *KERNEL_MUTANTS,
    *NOT_RUN,
    *ON_A_DEVICE,
    *UNSEEN_MUTANTS,
}
DECLARED = STEP_MUTANTS | GREEDY_MUTANTS | FUSED_NORM_MUTANTS
LOCATED = [f"{phase}/{name}" for phase in PHASES for name in NAMED[phase]
           if f"{phase}/{name}" not in ELSEWHERE]


def drawn(names: list[str], count: int) -> list[str]:
    """Return a few names, drawn by what they are."""
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())[:count]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Take every mutant in a thorough run, and a drawn dozen in a quick one."""
    thorough = metafunc.config.getoption(THOROUGH)
    few, runs = drawn(LOCATED, QUICK), drawn(list(GREEDY_MUTANTS), BEHIND)
    kernels = [name for name in KERNEL_MUTANTS if name not in UNSHRINKABLE]
    there = [pytest.param(name, marks=pytest.mark.emulated) for name in EMULATED_MUTANTS]
    for fixture, names in (
        ("located", LOCATED if thorough else few),
        ("behind", GREEDY_MUTANTS if thorough else runs),
        (
            "shrunk",
            [*LOCATED, *GREEDY_MUTANTS, *kernels, *there]
            if thorough
            else [*few[:SHRUNK], *runs[:SHRUNK]],
        ),
        ("kernel", KERNEL_MUTANTS if thorough else drawn(list(KERNEL_MUTANTS), 1)),
        ("there", EMULATED_MUTANTS if thorough else drawn(list(EMULATED_MUTANTS), 1)),
        ("unseen", UNSEEN_MUTANTS if thorough else drawn(list(UNSEEN_MUTANTS), 1)),
    ):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, list(names))


@cache
def steps_of(letter: str) -> tuple[list[Step], int]:
    """Return a plan by its letter, and how many rows it has."""
    return plan(*PLANS[letter], VOCAB), PLANS[letter][0]


@cache
def oracle(letter: str) -> SoloReference:
    """Return the oracle's rows of a plan, run once for all mutants."""
    setup = rowtwin.build_bisect_setup("nano", "p1", None, "oracle", "cpu")
    return SoloReference(setup, None, steps_of(letter)[0], greedy=True)


def setup_of(name: str, layers: tuple[int, ...] | None = None, device: str = "") -> Setup:
    phase, mutant = name.split("/")
    device = device or ("interpret" if name in KERNEL_MUTANTS else
                        "emulate" if name in EMULATED_MUTANTS else "cpu")
    return rowtwin.build_bisect_setup("nano", phase, None, "oracle", device, layers, mutant)


def held(name: str, place: Location | None, setup: Setup, letter: str) -> None:
    """Hold a place to where the mutant is declared to be, or its op was seen to differ."""
    assert place is not None, f"{name} is not seen"
    layer, op = split_op_id(place.op)
    if name in DECLARED:
        assert (op, layer, place.step, place.slot) == DECLARED[name][1:]
        return
    found = locate_mutant(setup, *steps_of(letter))
    assert found is not None
    assert found.op in suspect_ops(place.op)
    assert (layer, place.step) == (found.layer, found.step)
    assert place.slot in found.slots


def letter_of(name: str) -> str:
    if name in DECLARED:
        return DECLARED[name][0]
    return (WIDER_PLANS | KERNEL_MUTANTS | EMULATED_MUTANTS).get(name, "a")


def test_every_mutant_is_located_or_told_why_not() -> None:
    every = {f"{phase}/{name}" for phase in PHASES for name in NAMED[phase]}
    lists = [
        set(one)
        for one in (
            STEP_MUTANTS,
            GREEDY_MUTANTS,
            CRASHING_MUTANTS,
            EMULATED_MUTANTS,
            KERNEL_MUTANTS,
            NOT_RUN,
            ON_A_DEVICE,
            UNSEEN_MUTANTS,
        )
    ]
    assert set().union(*lists, WIDER_PLANS, UNSHRINKABLE) <= every
    assert sum(map(len, lists)) == len(set().union(*lists)), "a mutant stands in two lists"
    assert {f"{phase}/{one.name}" for phase in PHASES for one in rowtwin.phase_bank(phase).mutants
            if one.device == "cuda"} == {*EMULATED_MUTANTS, *ON_A_DEVICE}
    assert all(
        len(why) > 10
        for some in (UNSEEN_MUTANTS, CRASHING_MUTANTS, NOT_RUN, ON_A_DEVICE, UNSHRINKABLE)
        for why in some.values()
    )


def test_bisection_names_op_layer_step_and_slot(located: str) -> None:
    letter, setup = letter_of(located), setup_of(located)
    steps, m = steps_of(letter)
    report = Bisection(setup, steps, m, oracle(letter)).run()
    held(located, report.place, setup, letter)


def test_place_behind_a_step_is_seen_in_greedy_runs_alone(behind: str) -> None:
    letter, setup = letter_of(behind), setup_of(behind)
    steps, m = steps_of(letter)
    assert Bisection(setup, steps, m, oracle(letter)).run().place is None
    report = Bisection(setup, steps, m, oracle(letter), greedy=True).run()
    held(behind, report.place, setup, letter)
    assert report.seen == "greedy"


def test_shrunk_case_still_fails_alone(shrunk: str) -> None:
    letter, greedy = letter_of(shrunk), shrunk in GREEDY_MUTANTS
    steps, m = steps_of(letter)
    report = Bisection(setup_of(shrunk), steps, m, oracle(letter), greedy).run()
    found = Shrinker(lambda layers: setup_of(shrunk, layers)).run(
        Scenario.from_steps(steps, LAYERS, m + IDLE_SLOTS), report)
    again = Bisection(setup_of(shrunk, found.scene.layers), found.scene.to_steps(),
                      found.scene.slots - IDLE_SLOTS, greedy=greedy)
    assert again.run().place is not None
    assert found.scene.size <= Scenario.from_steps(steps, LAYERS, m + IDLE_SLOTS).size


def test_kernel_is_located_under_the_interpreter(kernel: str) -> None:
    setup, letter = setup_of(kernel), letter_of(kernel)
    steps, m = steps_of(letter)
    held(kernel, Bisection(setup, steps, m, oracle(letter)).run().place, setup, letter)


@pytest.mark.emulated
def test_kernel_for_a_device_is_located_where_it_is_emulated(there: str) -> None:
    setup, letter = setup_of(there), letter_of(there)
    steps, m = steps_of(letter)
    place = Bisection(setup, steps, m, oracle(letter)).run().place
    with emulated():
        held(there, place, setup, letter)


@pytest.mark.emulated
def test_path_for_a_device_agrees_with_the_oracle_where_it_is_emulated() -> None:
    steps, m = steps_of("g")
    setup = rowtwin.build_bisect_setup("nano", "p6", None, "oracle", "emulate")
    report = Bisection(setup, steps, m, oracle("g")).run()
    assert (report.place, report.not_compared, report.steps) == (None, [], 1)


def test_mutant_that_is_not_seen_changes_no_value(unseen: str) -> None:
    kernel = "kernel_" in unseen
    device, letters = ("interpret", "g") if kernel else ("cpu", "ab")
    for letter in letters:
        steps, m = steps_of(letter)
        setup = setup_of(unseen, device=device)
        assert Bisection(setup, steps, m, oracle(letter), not kernel).run().place is None


@pytest.mark.parametrize("name", CRASHING_MUTANTS)
def test_mutant_that_crashes_is_told(name: str) -> None:
    with pytest.raises(SuiteError, match="ended in"):
        Bisection(setup_of(name), *steps_of(WIDER_PLANS.get(name, "b"))).run()
