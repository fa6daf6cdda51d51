"""What a path does behind its steps is held to its rows alone: choices, runs, refusals, buffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import rowtwin
from falsifiers.bisect.cli import format_report
from falsifiers.bisect.divergence import Report
from falsifiers.bisect.greedy_checks import (
    GUARD_VALUES,
    MAX_RUN_TOKENS,
    GreedyCheck,
    expected_choices,
    make_tied_logits,
)
from falsifiers.bisect.paired_runs import TAIL_ROWS, BatchRun, Setup, SoloRun, digest_states, plan
from falsifiers.bisect.search import Bisection, SoloReference
from falsifiers.judging.errors import SuiteError
from falsifiers.meta.console.command import Main, make_main

VOCAB, M = 509, 2
STEPS = plan(M, 3, 3, VOCAB)


def setup_of(phase: str, mutant: str | None = None, against: str = "oracle") -> Setup:
    return rowtwin.build_bisect_setup("nano", phase, None, against, "cpu", None, mutant)


@cache
def oracle() -> SoloReference:
    """Return the oracle's rows, run once for all tests."""
    return SoloReference(setup_of("p1"), None, STEPS, greedy=True)


def found(setup: Setup, greedy: bool = True) -> Report:
    return Bisection(setup, STEPS, M, None if setup.solo_path else oracle(), greedy).run()


def over(phase: str, greedy_rows: Callable[..., Any]) -> Setup:
    """Return a setup whose greedy runs are taken by a function beside the right one."""
    right = setup_of(phase)
    made = right.path
    return replace(right, path=lambda: replace(made(), greedy_rows=greedy_rows))


@pytest.mark.parametrize(("phase", "against"), [
    ("p1", "oracle"), ("p4", "oracle"), ("p8", "oracle"), ("p6", "alone"), ("p8", "4")])
def test_right_path_goes_on_as_its_rows_do_alone(phase: str, against: str) -> None:
    report = found(setup_of(phase, against=against))
    assert (report.place, report.seen) == (None, "reported")
    assert report.compared > found(setup_of(phase, against=against), greedy=False).compared


def test_logits_in_few_values_tie_and_have_zeros_of_both_signs() -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(0))
    few = make_tied_logits(logits)
    assert few.shape == logits.shape
    assert few.stride() == (VOCAB + GUARD_VALUES, 1)
    assert bool((few <= 0).all())
    for row, own in zip(few, logits, strict=True):
        tied = (row == 0).nonzero().flatten()
        assert len(tied) > VOCAB // 4
        assert {bool(x) for x in torch.signbit(row[tied])} == {True, False}
        assert int(tied[0]) != int(own.argmax()), "the first of them would be the largest anyway"
        assert torch.equal(make_tied_logits(own[None])[0], row)
    assert bool(few.as_strided((2, GUARD_VALUES), few.stride(), VOCAB).isinf().all())


def test_state_is_as_it_was_behind_a_step() -> None:
    setup = setup_of("p8", "lengths_do_not_advance")
    lane, alone = BatchRun(setup, setup.path(), STEPS, M), SoloRun(setup, None, STEPS)
    for one in (lane, alone):
        one.join(STEPS[0])
    logits = lane.advance(STEPS[0], None)
    rows = expected_choices(alone, STEPS[0], alone.advance(STEPS[0], None))
    before, apart = digest_states(lane, lane.slots), digest_states(alone, STEPS[0].slots)
    assert list(GreedyCheck(lane, 0, STEPS[0], logits, rows).find_divergences()), "nothing was run"
    assert (digest_states(lane, lane.slots), digest_states(alone, STEPS[0].slots)) == (
        before,
        apart,
    )
    assert expected_choices(alone, STEPS[0], logits) == rows
    assert MAX_RUN_TOKENS < TAIL_ROWS


def test_run_that_ends_in_an_error_has_a_place() -> None:
    def broken(*_: Any) -> list[list[int]]:
        raise IndexError("no graph")

    report = found(over("p4", broken))
    assert report.place is not None
    assert (report.place.kind, report.place.step, report.row) == ("run", 0, 0)
    assert report.note == "it ends in IndexError: no graph"
    assert report.healed_by == ["greedy_rows"]


def test_run_of_too_few_tokens_is_seen() -> None:
    right = setup_of("p4").path()

    def short(path: Any, model: Any, pool: Any, tokens: Any, rows: Any, steps: int) -> Any:
        return [one[:2] for one in right.greedy_rows(path, model, pool, tokens, rows, steps)]

    report = found(over("p4", short))
    assert report.place is not None
    assert (report.place.kind, report.place.name) == ("run", "token 3")


def test_run_that_moves_an_idle_slot_is_seen() -> None:
    right = setup_of("p4").path()
    idle = next(slot for slot in range(M + 2) if slot not in STEPS[0].slots)

    def strays(path: Any, model: Any, pool: Any, tokens: Any, rows: Any, steps: int) -> Any:
        pool.slot(idle).clear()
        return right.greedy_rows(path, model, pool, tokens, rows, steps)

    report = found(over("p4", strays))
    assert report.place is not None
    assert (report.place.slot, report.place.name, report.row) == (idle, "0.conv", None)


def test_choice_that_is_wrong_alone_too_agrees_with_itself() -> None:
    assert found(setup_of("p4", "argmax_highest_on_ties", "alone")).place is None
    assert found(setup_of("p4", "argmax_highest_on_ties")).place is not None


def test_row_whose_choice_fails_alone_is_told() -> None:
    with pytest.raises(SuiteError, match="argmax of a row alone on itself alone ended in"):
        found(setup_of("p4", "argmax_reads_behind_the_row", "alone"))


def test_overwritten_logits_are_shown_with_what_they_were() -> None:
    report = found(setup_of("p8", "two_buffers_take_turns"), greedy=False)
    assert report.place is not None
    assert report.place.name == "logits of step 0"
    assert report.row == STEPS[0].slots.index(report.place.slot)
    assert report.values is not None
    assert report.values.got != report.values.want
    told = "\n".join(format_report(report))
    assert "logits of step 0, handed out for the row, are overwritten during step 2" in told
    assert told.endswith("swapping back step_rows heals the run")


@pytest.fixture
def bisect(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    """Return a function that runs the command: exit code, stdout, stderr."""
    return make_main(rowtwin.main, monkeypatch, capsys, "bisect")


LAST_WINS = '''
from engine import ops
def argmax(logits, out, refuse=True):
    """Choose the last of equal maxima."""
    ops.argmax(logits, out, refuse)
    if refuse or int(out.min()) >= 0:
        out.copy_(logits.shape[1] - 1 - (logits.flip(1) == logits.amax(1, True)).int().argmax(1))
'''


def test_command_goes_on_behind_steps_when_it_is_asked_to(bisect: Main, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(LAST_WINS)
    argv = ("nano", "--phase", "4", "--m", "2", "--steps", "1", "--prompt", "2", "--against",
            "oracle", "--candidate", f"file:{tmp_path}/mine.py")
    assert bisect(*argv)[0] == 0
    code, out, err = bisect(*argv, "--greedy")
    assert (code, err) == (1, "")
    assert "argmax chooses otherwise than the row alone, of the step's logits in few values" in out
    assert "steps agree, as long as nothing is chosen behind them" in out
    assert out.endswith("swapping back argmax heals the run\n")
