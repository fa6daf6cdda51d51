"""Shrinking ends at a case that fails by itself and from which nothing can be removed."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rowtwin
from falsifiers.bisect import repro_script
from falsifiers.bisect.divergence import Report
from falsifiers.bisect.paired_runs import IDLE_SLOTS, Setup, plan
from falsifiers.bisect.repro_script import TEST_NAME, BisectRequest
from falsifiers.bisect.scenario import Scenario
from falsifiers.bisect.search import Bisection
from falsifiers.bisect.shrink import MAX_TRIES, Shrinker, ShrinkResult, ddmin
from falsifiers.gate import runner
from falsifiers.judging.errors import SuiteError
from falsifiers.meta.console.command import Main, make_main

VOCAB, LAYERS = 509, 2
CONTRACTS = {phase: rowtwin.phase_contract(phase) for phase in ("p0", "p4")}
"""The contracts that the commands below use; reading all of them takes a second."""


def planned_scenario(m: int, steps: int, prompt: int) -> Scenario:
    return Scenario.from_steps(plan(m, steps, prompt, VOCAB), LAYERS, m + IDLE_SLOTS)


@pytest.mark.parametrize("m", [1, 3])
def test_scenario_returns_the_steps_it_was_built_from(m: int) -> None:
    scenario = planned_scenario(m, 6, 9)
    assert scenario.to_steps() == plan(m, 6, 9, VOCAB)
    assert scenario.m == m
    assert (scenario.with_steps(range(6)) == scenario.with_feeds(scenario.feed_positions())
            == scenario)


@given(st.integers(1, 4), st.integers(1, 6), st.data())
def test_every_subset_of_a_scenario_can_run(m: int, steps: int, data: st.DataObject) -> None:
    scenario = planned_scenario(m, steps, 4)
    feeds = data.draw(st.lists(st.sampled_from(scenario.feed_positions()), min_size=1, unique=True))
    subset = scenario.with_feeds(feeds)
    for reduced in (subset, subset.renumber_slots().sort_rows_by_slot().drop_unused_tokens()):
        lengths: dict[int, int] = {}
        for step in reduced.to_steps():
            assert step.slots
            lengths.update(dict.fromkeys(step.joins, 0))
            for slot, position, tokens in step.spans():
                assert 0 <= slot < reduced.slots
                assert lengths[slot] == position
                lengths[slot] += len(tokens)
        assert all(smaller.size < reduced.size for smaller in reduced.smaller_scenarios())


@given(st.sets(st.integers(0, 40), min_size=1), st.integers(41, 60))
def test_ddmin_returns_exactly_the_needed_items(needed: set[int], count: int) -> None:
    assert set(ddmin(range(count), lambda items: needed <= set(items))) == needed


def setups(phase: str, name: str) -> Callable[[tuple[int, ...] | None], Setup]:
    return lambda layers: rowtwin.build_bisect_setup("nano", phase, None, "oracle", "cpu", layers,
                                                     name)


def shrink_mutant(phase: str, name: str, m: int, steps: int, prompt: int) -> ShrinkResult:
    setup, scenario = setups(phase, name), planned_scenario(m, steps, prompt)
    return Shrinker(setup).run(scenario, Bisection(setup(None), scenario.to_steps(), m).run())


def diverges(phase: str, name: str, scenario: Scenario) -> bool:
    setup = setups(phase, name)(scenario.layers)
    report = Bisection(setup, scenario.to_steps(), scenario.slots - IDLE_SLOTS).run()
    return report.place is not None


# `planned` is m, steps and prompt; a size is tokens, rows, steps and layers
@pytest.mark.parametrize(("phase", "name", "planned", "size", "passing"), [
    ("p4", "silu_of_up", (2, 1, 1), (1, 1, 1, 1), None),
    ("p6", "keys_of_the_last_row", (2, 1, 3), (3, 2, 1, 1), (2, 2, 1, 1)),
    ("p4", "state_written_to_last_steps_slot", (2, 2, 1), (3, 3, 2, 1), (2, 2, 2, 1)),
    ("p8", "tokens_written_once", (1, 3, 1), (2, 2, 2, 1), (1, 1, 1, 1))],
    ids=["p4", "p6", "p4-by-no-op", "p8"])
def test_fault_shrinks_to_what_it_needs(phase: str, name: str, planned: tuple[int, int, int],
                                        size: tuple[int, ...],
                                        passing: tuple[int, ...] | None) -> None:
    shrunk = shrink_mutant(phase, name, *planned)
    assert (shrunk.scenario.size, shrunk.passing and shrunk.passing.size) == (size, passing)
    assert shrunk.minimal
    assert shrunk.report.place is not None
    assert diverges(phase, name, shrunk.scenario)
    assert shrunk.passing is None or not diverges(phase, name, shrunk.passing)


@pytest.fixture(scope="module")
def failing() -> tuple[Scenario, Report]:
    """Return a scenario in which `row_pointer_not_advanced` diverges, and its report."""
    scenario = planned_scenario(2, 1, 2)
    setup = setups("p4", "row_pointer_not_advanced")(None)
    return scenario, Bisection(setup, scenario.to_steps(), 2).run()


def test_search_that_stops_early_is_not_minimal(failing: tuple[Scenario, Report]) -> None:
    setup = setups("p4", "row_pointer_not_advanced")
    assert Shrinker(setup).max_tries == MAX_TRIES
    shrunk = Shrinker(setup, max_tries=2).run(*failing)
    assert (shrunk.tried, shrunk.minimal) == (2, False)
    assert shrunk.report.place is not None


def test_scenario_that_does_not_diverge_or_repeat_is_refused(
        failing: tuple[Scenario, Report]) -> None:
    def right(layers: tuple[int, ...]) -> Setup:
        return rowtwin.build_bisect_setup("nano", "p4", None, "oracle", "cpu", layers)

    scenario, report = failing
    with pytest.raises(SuiteError, match="did not repeat"):
        Shrinker(right).run(scenario, report)
    with pytest.raises(SuiteError, match="no divergence to shrink"):
        Shrinker(right).run(scenario, replace(report, place=None))


@pytest.fixture
def bisect(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    """Return a function that runs the command: exit code, stdout, stderr."""
    monkeypatch.setattr(runner, "contracts_by_phase", lambda: CONTRACTS)

    return make_main(rowtwin.main, monkeypatch, capsys, "bisect")


WRONG = '''
from engine import ops
def silu_mul(gate, up, out):
    """Halve every row after the first."""
    ops.silu_mul(gate, up, out)
    out[1:] *= 0.5
'''


def test_script_fails_until_the_fault_is_fixed(bisect: Main, tmp_path: Path) -> None:
    mine, file = tmp_path / "mine.py", tmp_path / "smallest.py"
    mine.write_text(WRONG)
    code, out, _ = bisect("nano", "--phase", "4", "--candidate", f"file:{mine}", "--against",
                          "oracle", "--m", "2", "--steps", "1", "--prompt", "2", "--shrink",
                          str(file))
    assert code == 1
    assert "nothing more can be removed" in out
    assert out.endswith(f"reproduce it: python {file}\nor: pytest {file}::{TEST_NAME}\n")
    text = file.read_text()
    assert text.count("\n") < 60
    script: dict[str, Any] = runpy.run_path(str(file))
    with pytest.raises(AssertionError, match="silu_mul differs in its output"):
        script[TEST_NAME]()
    (passing,) = [name for name in script if name.startswith("test_") and name != TEST_NAME]
    script[passing]()
    with pytest.raises(SystemExit, match="silu_mul differs in its output"):
        runpy.run_path(str(file), run_name="__main__")
    mine.write_text(WRONG.replace("0.5", "1.0"))
    rowtwin.assemble.cache_clear()
    runpy.run_path(str(file), run_name="__main__")


def test_script_of_a_long_case_is_short(failing: tuple[Scenario, Report]) -> None:
    long = planned_scenario(4, 20, 5000)
    request = BisectRequest("nano", "p4", None, "oracle", "cpu", "row_pointer_not_advanced")
    shrunk = ShrinkResult(long, failing[1], long, 1, False)
    text = repro_script.render_script(request, shrunk, Path("x.py"))
    assert text.count("\n") < 60
    compile(text, "x.py", "exec")


def test_steps_of_a_case_are_bisected(bisect: Main, tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(WRONG)
    code, out, _ = bisect("--case", "p4/repeats_are_equal[cpu-nano]", "--candidate",
                          f"file:{mine}", "--against", "oracle")
    assert code == 1
    assert "silu_mul differs in its output" in out
    code, out, err = bisect("--case", "p4/repeats_are_equal[cpu-nano]")
    assert (code, err) == (0, "")
    assert "8 steps" in out  # four in each of two pools


@pytest.mark.parametrize(("argv", "sentence"), [
    ([], "missing input: pass MODEL, --case ID"),
    (["nano", "--phase", "4", "--mutant", "row_pointer"], "did you mean row_pointer_not_advanced"),
    (["--case", "p4/nothing[cpu-a]"], "unknown case 'p4/nothing[cpu-a]'"),
    (["--case", "p0/batch_forms_at_every_width[cpu-c1-equal]"], "give --candidate or --mutant"),
    (["--case", "p4/repeats_are_equal[cpu-nano]", "--phase", "5"], "is not the phase of p4/"),
    (["--case", "p4/repeats_are_equal[cpu-nano]", "--mutant", "silu_of_up"], "instead of --case"),
    (["--case", "p4/argmax_refuses_nan[cpu-vocab509]"], "runs no step, so there is nothing to"),
    (["nano", "--shrink", "/"], "--shrink / exists and is not overwritten")])
def test_bad_usage_ends_in_one_sentence(bisect: Main, argv: list[str], sentence: str) -> None:
    code, out, err = bisect(*argv)
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1

