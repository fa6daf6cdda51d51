"""Shrinking ends at a case that fails alone and of which nothing can be spared."""

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
from falsifiers.bisect import repro_script, shrink
from falsifiers.bisect.paired_runs import IDLE_SLOTS, Setup, plan
from falsifiers.bisect.repro_script import TEST_NAME, BisectRequest
from falsifiers.bisect.scenario import Scenario
from falsifiers.bisect.search import Bisection
from falsifiers.bisect.shrink import Shrinker, ShrinkResult, ddmin
from falsifiers.gate import runner
from falsifiers.judging.errors import SuiteError
from falsifiers.meta.console.command import Main, make_main

VOCAB, LAYERS = 509, 2
CONTRACTS = {phase: rowtwin.phase_contract(phase) for phase in ("p0", "p4")}
"""Those that the commands below ask for; to read all takes a second."""


@pytest.mark.parametrize("m", [1, 3])
def test_scene_is_the_steps_it_was_made_of(m: int) -> None:
    steps = plan(m, 6, 9, VOCAB)
    scene = Scenario.from_steps(steps, LAYERS, m + IDLE_SLOTS)
    assert scene.to_steps() == steps
    assert scene.m == m
    assert scene.with_steps(range(6)) == scene.with_feeds(scene.feed_positions()) == scene


@given(st.integers(1, 4), st.integers(1, 6), st.data())
def test_every_part_of_a_scene_can_be_run(m: int, steps: int, data: st.DataObject) -> None:
    scene = Scenario.from_steps(plan(m, steps, 4, VOCAB), LAYERS, m + IDLE_SLOTS)
    kept = data.draw(st.lists(st.sampled_from(scene.feed_positions()), min_size=1, unique=True))
    for one in (
        scene.with_feeds(kept),
        scene.with_feeds(kept).renumber_slots().sort_rows_by_slot().drop_unused_tokens(),
    ):
        held: dict[int, int] = {}
        for step in one.to_steps():
            assert step.slots
            held.update(dict.fromkeys(step.joins, 0))
            for slot, position, tokens in step.spans():
                assert 0 <= slot < one.slots
                assert held[slot] == position
                held[slot] += len(tokens)
        assert all(smaller.size < one.size for smaller in one.smaller_scenarios())


@given(st.sets(st.integers(0, 40), min_size=1), st.integers(41, 60))
def test_least_keeps_what_is_needed_alone(needed: set[int], count: int) -> None:
    assert set(ddmin(range(count), lambda kept: needed <= set(kept))) == needed


def setups(phase: str, name: str) -> Callable[[tuple[int, ...] | None], Setup]:
    return lambda layers: rowtwin.build_bisect_setup(
        "nano", phase, None, "oracle", "cpu", layers, name
    )


def shrunk(phase: str, name: str, m: int, steps: int, prompt: int) -> ShrinkResult:
    setup = setups(phase, name)
    scene = Scenario.from_steps(plan(m, steps, prompt, VOCAB), LAYERS, m + IDLE_SLOTS)
    return Shrinker(setup).run(scene, Bisection(setup(None), scene.to_steps(), m).run())


# what a fault needs: tokens, rows, steps and layers, and the size of what passes beside it
@pytest.mark.parametrize(("phase", "name", "of", "size", "passing"), [
    ("p4", "silu_of_up", (2, 1, 1), (1, 1, 1, 1), None),
    ("p6", "keys_of_the_last_row", (2, 1, 3), (3, 2, 1, 1), (2, 2, 1, 1)),
    ("p4", "state_written_to_last_steps_slot", (2, 2, 1), (3, 3, 2, 1), (2, 2, 2, 1)),
    ("p8", "tokens_written_once", (1, 3, 1), (2, 2, 2, 1), (1, 1, 1, 1))],
    ids=["p4", "p6", "p4-by-no-op", "p8"])
def test_fault_shrinks_to_what_it_needs(phase: str, name: str, of: tuple[int, int, int],
                                        size: tuple[int, ...],
                                        passing: tuple[int, ...] | None) -> None:
    found = shrunk(phase, name, *of)
    assert (found.scene.size, found.passing and found.passing.size) == (size, passing)
    assert found.minimal
    assert found.report.place is not None
    again = setups(phase, name)(found.scene.layers)
    assert Bisection(again, found.scene.to_steps(), found.scene.slots - IDLE_SLOTS).run().place
    if found.passing is not None:
        again = setups(phase, name)(found.passing.layers)
        assert Bisection(again, found.passing.to_steps(),
                         found.passing.slots - IDLE_SLOTS).run().place is None


def test_search_that_is_cut_short_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = setups("p4", "row_pointer_not_advanced")
    scene = Scenario.from_steps(plan(2, 1, 2, VOCAB), LAYERS, 2 + IDLE_SLOTS)
    report = Bisection(setup(None), scene.to_steps(), 2).run()
    found = Shrinker(setup, max_tries=2).run(scene, report)
    assert (found.tried, found.minimal) == (2, False)
    assert found.report.place is not None


def test_nothing_is_shrunk_that_does_not_part_or_repeat() -> None:
    setup = setups("p4", "row_pointer_not_advanced")
    right = lambda layers: rowtwin.build_bisect_setup("nano", "p4", None, "oracle", "cpu", layers)  # noqa: E731
    scene = Scenario.from_steps(plan(2, 1, 2, VOCAB), LAYERS, 2 + IDLE_SLOTS)
    report = Bisection(setup(None), scene.to_steps(), 2).run()
    with pytest.raises(SuiteError, match="did not repeat"):
        Shrinker(right).run(scene, report)
    with pytest.raises(SuiteError, match="no divergence to shrink"):
        Shrinker(setup).run(scene, replace(report, place=None))


@pytest.fixture
def bisect(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    """Return a function that runs the command: exit code, stdout, stderr."""
    monkeypatch.setattr(runner, "contracts_by_phase", lambda: CONTRACTS)

    return make_main(rowtwin.main, monkeypatch, capsys, "bisect")


WRONG = '''
from engine import ops
def silu_mul(gate, up, out):
    """Give every row beyond the first half of what it should get."""
    ops.silu_mul(gate, up, out)
    out[1:] *= 0.5
'''


def test_script_fails_alone_until_the_fault_is_gone(bisect: Main, tmp_path: Path) -> None:
    mine, file = tmp_path / "mine.py", tmp_path / "smallest.py"
    mine.write_text(WRONG)
    code, out, _ = bisect("nano", "--phase", "4", "--candidate", f"file:{mine}", "--against",
                          "oracle", "--m", "2", "--steps", "1", "--prompt", "2", "--shrink",
                          str(file))
    assert code == 1
    assert "no part of it can be spared" in out
    assert out.endswith(f"run it alone: python {file}\nor: pytest {file}::{TEST_NAME}\n")
    text = file.read_text()
    assert text.count("\n") < 60
    made: dict[str, Any] = runpy.run_path(str(file))
    with pytest.raises(AssertionError, match="silu_mul differs in its output"):
        made[TEST_NAME]()
    (beside,) = [name for name in made if name.startswith("test_") and name != TEST_NAME]
    made[beside]()
    with pytest.raises(SystemExit, match="silu_mul differs in its output"):
        runpy.run_path(str(file), run_name="__main__")
    mine.write_text(WRONG.replace("0.5", "1.0"))
    rowtwin.assemble.cache_clear()
    runpy.run_path(str(file), run_name="__main__")


def test_script_is_short_however_much_a_case_holds() -> None:
    setup = setups("p4", "row_pointer_not_advanced")
    scene = Scenario.from_steps(plan(2, 1, 2, VOCAB), LAYERS, 2 + IDLE_SLOTS)
    report = Bisection(setup(None), scene.to_steps(), 2).run()
    long = Scenario.from_steps(plan(4, 20, 5000, VOCAB), LAYERS, 4 + IDLE_SLOTS)
    asked = BisectRequest("nano", "p4", None, "oracle", "cpu", "row_pointer_not_advanced")
    text = repro_script.render_script(
        asked, ShrinkResult(long, report, long, 1, False), Path("x.py")
    )
    assert text.count("\n") < 60
    compile(text, "x.py", "exec")


def test_steps_of_a_case_are_what_is_bisected(bisect: Main, tmp_path: Path) -> None:
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
    ([], "to compare two runs, or --case ID"),
    (["nano", "--phase", "4", "--mutant", "row_pointer"], "did you mean row_pointer_not_advanced"),
    (["--case", "p4/nothing[cpu-a]"], "unknown case 'p4/nothing[cpu-a]'"),
    (["--case", "p0/batch_forms_at_every_width[cpu-c1-equal]"], "give --candidate or --mutant"),
    (["--case", "p4/repeats_are_equal[cpu-nano]", "--phase", "5"], "is not the phase of p4/"),
    (["--case", "p4/repeats_are_equal[cpu-nano]", "--mutant", "silu_of_up"], "not --case"),
    (["--case", "p4/argmax_refuses_nan[cpu-vocab509]"], "takes no step, so there is none"),
    (["nano", "--shrink", "/"], "/ exists and is not overwritten")])
def test_bad_usage_ends_in_one_sentence(bisect: Main, argv: list[str], sentence: str) -> None:
    code, out, err = bisect(*argv)
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1


def test_most_tries_are_bounded() -> None:
    assert Shrinker(setups("p4", "silu_of_up")).max_tries == shrink.MAX_TRIES
