"""After each step, argmax, greedy runs, refusals and returned logits are compared."""

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


def bisect_setup(setup: Setup, greedy: bool = True) -> Report:
    return Bisection(setup, STEPS, M, None if setup.solo_path else oracle(), greedy).run()


def with_greedy_rows(phase: str, greedy_rows: Callable[..., Any]) -> Setup:
    """Return a setup with another function for greedy runs."""
    right = setup_of(phase)
    build = right.path
    return replace(right, path=lambda: replace(build(), greedy_rows=greedy_rows))


@pytest.mark.parametrize(("phase", "against"), [
    ("p1", "oracle"), ("p4", "oracle"), ("p8", "oracle"), ("p6", "alone"), ("p8", "4")])
def test_right_path_continues_as_its_solo_rows_do(phase: str, against: str) -> None:
    report = bisect_setup(setup_of(phase, against=against))
    assert (report.place, report.seen) == (None, "reported")
    assert report.compared > bisect_setup(setup_of(phase, against=against), greedy=False).compared


def test_logits_in_few_values_tie_and_have_zeros_of_both_signs() -> None:
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(0))
    tied_logits = make_tied_logits(logits)
    assert tied_logits.shape == logits.shape
    assert tied_logits.stride() == (VOCAB + GUARD_VALUES, 1)
    assert bool((tied_logits <= 0).all())
    for row, source in zip(tied_logits, logits, strict=True):
        tied = (row == 0).nonzero().flatten()
        assert len(tied) > VOCAB // 4
        assert {bool(x) for x in torch.signbit(row[tied])} == {True, False}
        assert int(tied[0]) != int(source.argmax()), "the first tie must not be the old maximum"
        assert torch.equal(make_tied_logits(source[None])[0], row)
    guards = tied_logits.as_strided((2, GUARD_VALUES), tied_logits.stride(), VOCAB)
    assert bool(guards.isinf().all())


def test_checks_after_a_step_restore_the_state() -> None:
    setup = setup_of("p8", "lengths_do_not_advance")
    batch, solo = BatchRun(setup, setup.path(), STEPS, M), SoloRun(setup, None, STEPS)
    for run in (batch, solo):
        run.join(STEPS[0])
    logits = batch.advance(STEPS[0], None)
    expected = expected_choices(solo, STEPS[0], solo.advance(STEPS[0], None))
    before = digest_states(batch, batch.slots), digest_states(solo, STEPS[0].slots)
    check = GreedyCheck(batch, 0, STEPS[0], logits, expected)
    assert list(check.find_divergences()), "the mutant is not seen, so nothing ran"
    assert (digest_states(batch, batch.slots), digest_states(solo, STEPS[0].slots)) == before
    assert expected_choices(solo, STEPS[0], logits) == expected
    assert MAX_RUN_TOKENS < TAIL_ROWS


def test_run_that_raises_has_a_place() -> None:
    def broken(*_: Any) -> list[list[int]]:
        raise IndexError("no graph")

    report = bisect_setup(with_greedy_rows("p4", broken))
    assert report.place is not None
    assert (report.place.kind, report.place.step, report.row) == ("run", 0, 0)
    assert report.note == "it raises IndexError: no graph"
    assert report.healed_by == ["greedy_rows"]


def test_run_of_too_few_tokens_is_seen() -> None:
    right = setup_of("p4").path()

    def short(path: Any, model: Any, pool: Any, tokens: Any, rows: Any, steps: int) -> Any:
        return [row[:2] for row in right.greedy_rows(path, model, pool, tokens, rows, steps)]

    report = bisect_setup(with_greedy_rows("p4", short))
    assert report.place is not None
    assert (report.place.kind, report.place.name) == ("run", "token 3")


def test_run_that_changes_an_idle_slot_is_seen() -> None:
    right = setup_of("p4").path()
    idle = next(slot for slot in range(M + 2) if slot not in STEPS[0].slots)

    def clear_idle(path: Any, model: Any, pool: Any, tokens: Any, rows: Any, steps: int) -> Any:
        pool.slot(idle).clear()
        return right.greedy_rows(path, model, pool, tokens, rows, steps)

    report = bisect_setup(with_greedy_rows("p4", clear_idle))
    assert report.place is not None
    assert (report.place.slot, report.place.name, report.row) == (idle, "0.conv", None)


def test_choice_that_is_wrong_for_solo_rows_too_agrees_with_itself() -> None:
    assert bisect_setup(setup_of("p4", "argmax_highest_on_ties", "alone")).place is None
    assert bisect_setup(setup_of("p4", "argmax_highest_on_ties")).place is not None


def test_argmax_that_raises_for_a_solo_row_is_a_suite_error() -> None:
    with pytest.raises(SuiteError, match="argmax of a solo row on itself at m = 1 raised"):
        bisect_setup(setup_of("p4", "argmax_reads_behind_the_row", "alone"))


def test_overwritten_logits_are_shown_with_their_first_values() -> None:
    report = bisect_setup(setup_of("p8", "two_buffers_take_turns"), greedy=False)
    assert report.place is not None
    assert report.place.name == "logits of step 0"
    assert report.row == STEPS[0].slots.index(report.place.slot)
    assert report.values is not None
    assert report.values.got != report.values.want
    text = "\n".join(format_report(report))
    assert "logits of step 0, returned for the row, are overwritten during step 2" in text
    assert text.endswith("swapping back step_rows heals the run")


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


def test_command_checks_argmax_after_steps_with_greedy(bisect: Main, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(LAST_WINS)
    argv = ("nano", "--phase", "4", "--m", "2", "--steps", "1", "--prompt", "2", "--against",
            "oracle", "--candidate", f"file:{tmp_path}/mine.py")
    assert bisect(*argv)[0] == 0
    code, out, err = bisect(*argv, "--greedy")
    assert (code, err) == (1, "")
    assert "argmax of the step's logits in few values differs from the solo row's" in out
    assert "the steps agree; argmax or a greedy run after a step differs" in out
    assert out.endswith("swapping back argmax heals the run\n")
