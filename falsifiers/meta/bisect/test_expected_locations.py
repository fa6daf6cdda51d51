"""Bisection locates every mutant that changes a value, and shrinks it to a failing case.

For a mutant of an op, `locate_mutant` finds the layer, step and slot without the bisection, by
running the wrong op next to the right one. For a mutant of a step, or of a check after one,
`expected_locations.py` lists the location, derived from the mutant and the plan.
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
QUICK_STEPS, QUICK_GREEDY, QUICK_SHRUNK = 12, 4, 1
"""Mutants of a quick run: of steps, of greedy runs, and how many of each are shrunk."""
DEVICES = {f"{phase}/{mutant.id}": mutant.device for phase in PHASES
           for mutant in rowtwin.phase_contract(phase).mutants}
"""The device of every mutant in the registry."""
EMULATED_MUTANTS = [name for name, device in DEVICES.items()
                    if device == "cuda" and name not in ON_A_DEVICE]
ELSEWHERE = {*CRASHING_MUTANTS, *EMULATED_MUTANTS, *GREEDY_MUTANTS, *KERNEL_MUTANTS, *NOT_RUN,
             *ON_A_DEVICE, *UNSEEN_MUTANTS}
DECLARED = STEP_MUTANTS | GREEDY_MUTANTS | FUSED_NORM_MUTANTS
LOCATED = [name for name in DEVICES if name not in ELSEWHERE]


def drawn(names: list[str], count: int) -> list[str]:
    """Return a few names, drawn by their hash."""
    return sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())[:count]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every mutant in a thorough run, and a drawn dozen in a quick one."""
    thorough = metafunc.config.getoption(THOROUGH)
    steps, greedy = drawn(LOCATED, QUICK_STEPS), drawn(list(GREEDY_MUTANTS), QUICK_GREEDY)
    kernels = [name for name in KERNEL_MUTANTS if name not in UNSHRINKABLE]
    emulated = [pytest.param(name, marks=pytest.mark.emulated) for name in EMULATED_MUTANTS]
    for fixture, every, few in (
            ("located", LOCATED, steps),
            ("greedy", GREEDY_MUTANTS, greedy),
            ("shrunk", [*LOCATED, *GREEDY_MUTANTS, *kernels, *emulated],
             [*steps[:QUICK_SHRUNK], *greedy[:QUICK_SHRUNK]]),
            ("kernel", KERNEL_MUTANTS, drawn(list(KERNEL_MUTANTS), 1)),
            ("emulated_kernel", EMULATED_MUTANTS, drawn(EMULATED_MUTANTS, 1)),
            ("unseen", UNSEEN_MUTANTS, drawn(list(UNSEEN_MUTANTS), 1))):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, list(every if thorough else few))


@cache
def steps_of(letter: str) -> tuple[list[Step], int]:
    """Return the steps and the number of rows of a plan."""
    return plan(*PLANS[letter], VOCAB), PLANS[letter][0]


@cache
def oracle(letter: str) -> SoloReference:
    """Return the oracle's rows of a plan, shared by all mutants."""
    setup = rowtwin.build_bisect_setup("nano", "p1", None, "oracle", "cpu")
    return SoloReference(setup, None, steps_of(letter)[0], greedy=True)


def setup_of(name: str, layers: tuple[int, ...] | None = None, device: str = "") -> Setup:
    phase, mutant = name.split("/")
    device = device or ("interpret" if name in KERNEL_MUTANTS else
                        "emulate" if name in EMULATED_MUTANTS else "cpu")
    return rowtwin.build_bisect_setup("nano", phase, None, "oracle", device, layers, mutant)


def assert_located(name: str, place: Location | None, setup: Setup, letter: str) -> None:
    """Compare a place with the declared location, or with that of `locate_mutant`."""
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
    return (WIDER_PLANS | KERNEL_MUTANTS).get(name, "a")


def test_tables_list_each_mutant_once_with_a_reason() -> None:
    tables = [set(table) for table in (
        STEP_MUTANTS, GREEDY_MUTANTS, CRASHING_MUTANTS, EMULATED_MUTANTS, KERNEL_MUTANTS, NOT_RUN,
        ON_A_DEVICE, UNSEEN_MUTANTS)]
    assert set().union(*tables, WIDER_PLANS, UNSHRINKABLE) <= DEVICES.keys()
    assert sum(map(len, tables)) == len(set().union(*tables)), "a mutant is in two tables"
    assert FUSED_NORM_MUTANTS.keys() <= set(EMULATED_MUTANTS)
    assert {DEVICES[name] for name in ON_A_DEVICE} == {"cuda"}
    assert all(len(why) > 10 for table in (UNSEEN_MUTANTS, CRASHING_MUTANTS, NOT_RUN, ON_A_DEVICE,
                                           UNSHRINKABLE) for why in table.values())


def test_bisection_names_op_layer_step_and_slot(located: str) -> None:
    letter, setup = letter_of(located), setup_of(located)
    steps, m = steps_of(letter)
    report = Bisection(setup, steps, m, oracle(letter)).run()
    assert_located(located, report.place, setup, letter)


def test_fault_after_a_step_is_seen_only_in_greedy_mode(greedy: str) -> None:
    letter, setup = letter_of(greedy), setup_of(greedy)
    steps, m = steps_of(letter)
    assert Bisection(setup, steps, m, oracle(letter)).run().place is None
    report = Bisection(setup, steps, m, oracle(letter), greedy=True).run()
    assert_located(greedy, report.place, setup, letter)
    assert report.seen == "greedy"


def test_shrunk_case_still_fails(shrunk: str) -> None:
    letter, greedy = letter_of(shrunk), shrunk in GREEDY_MUTANTS
    steps, m = steps_of(letter)
    report = Bisection(setup_of(shrunk), steps, m, oracle(letter), greedy).run()
    scenario = Scenario.from_steps(steps, LAYERS, m + IDLE_SLOTS)
    smallest = Shrinker(lambda layers: setup_of(shrunk, layers)).run(scenario, report).scenario
    again = Bisection(setup_of(shrunk, smallest.layers), smallest.to_steps(),
                      smallest.slots - IDLE_SLOTS, greedy=greedy)
    assert again.run().place is not None
    assert smallest.size <= scenario.size


def test_kernel_is_located_in_the_interpreter(kernel: str) -> None:
    setup, letter = setup_of(kernel), letter_of(kernel)
    steps, m = steps_of(letter)
    assert_located(kernel, Bisection(setup, steps, m, oracle(letter)).run().place, setup, letter)


@pytest.mark.emulated
def test_device_kernel_is_located_in_the_emulator(emulated_kernel: str) -> None:
    setup, letter = setup_of(emulated_kernel), letter_of(emulated_kernel)
    steps, m = steps_of(letter)
    place = Bisection(setup, steps, m, oracle(letter)).run().place
    with emulated():
        assert_located(emulated_kernel, place, setup, letter)


@pytest.mark.emulated
def test_emulated_device_path_agrees_with_the_oracle() -> None:
    steps, m = steps_of("g")
    setup = rowtwin.build_bisect_setup("nano", "p6", None, "oracle", "emulate")
    report = Bisection(setup, steps, m, oracle("g")).run()
    assert (report.place, report.not_compared, report.steps) == (None, [], 1)


def test_unseen_mutant_changes_no_value(unseen: str) -> None:
    kernel = "kernel_" in unseen
    device, letters = ("interpret", "g") if kernel else ("cpu", "ab")
    for letter in letters:
        steps, m = steps_of(letter)
        setup = setup_of(unseen, device=device)
        assert Bisection(setup, steps, m, oracle(letter), not kernel).run().place is None


@pytest.mark.parametrize("name", CRASHING_MUTANTS)
def test_mutant_that_crashes_is_a_suite_error(name: str) -> None:
    with pytest.raises(SuiteError, match="raised"):
        Bisection(setup_of(name), *steps_of(WIDER_PLANS.get(name, "b"))).run()
