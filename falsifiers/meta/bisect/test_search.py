"""Bisection locates planted faults, and reports no divergence for a correct path."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import rowtwin
from engine.path import Rows
from falsifiers.bisect.divergence import CONTEXT_VALUES, Report, diff_values, suspect_ops
from falsifiers.bisect.paired_runs import IDLE_SLOTS, Setup, Step, plan
from falsifiers.bisect.search import Bisection, SoloReference
from falsifiers.meta.console.command import Main, make_main

VOCAB = 509
STEPS = plan(3, 5, 5, VOCAB)
LONG = plan(3, 2, 70, VOCAB)
"""More keys than a split of 64 has."""
OPS = ("conv_step", "delta_step")

# Four mutants a phase, drawn by random.Random(8) from those that STEPS can show. Mutants of rows
# without tokens, of argmax, of kernels and of more keys or rows than STEPS has are excluded.
DRAWN: list[tuple[str, str, str, str, tuple[str, ...]]] = [
    ("p4", "head_on_the_first_token", "input", "output_norm", ("step_rows",)),
    ("p4", "logits_of_token_i_for_row_i", "input", "output_norm", ("step_rows",)),
    ("p4", "row_pointer_not_advanced", "output", "0.project.attn_qkv", ("project",)),
    ("p4", "rows_cut_a_count_apart", "output", "0.conv_step", ("conv_step",)),
    ("p5", "strength_through_bfloat16", "output", "0.gates", ("gates",)),
    ("p5", "row_used_as_slot", "state", "0.conv_step", OPS),
    ("p5", "chunk_window_in_another_layout", "state", "0.conv_step", ("conv_step",)),
    ("p5", "short_chunks_not_shifted", "state", "0.conv_step", ("conv_step",)),
    ("p6", "split_by_the_longest_row", "output", "1.attend", ("attend",)),
    ("p6", "keys_of_the_last_row", "output", "1.attend", ("attend",)),
    ("p6", "offset_added_twice", "state", "1.attend", ("attend",)),
    ("p6", "append_clears_an_octet", "state", "1.attend", ("attend",)),
]


def bisect_path(phase: str, path: Callable[[], Any], steps: list[Step] = STEPS,
                solo_path: Callable[[], Any] | None = None) -> Report:
    model = rowtwin.load_model("nano")
    right = rowtwin.assemble(phase, None).path
    setup = Setup(phase, "a reference", model, path, solo_path, model, right, Rows)
    return Bisection(setup, steps, 3, None if solo_path else oracle(len(steps))).run()


@cache
def oracle(steps: int) -> SoloReference:
    model = rowtwin.load_model("nano")
    setup = Setup("", "the oracle", model, lambda: None, None, model, None, Rows)
    return SoloReference(setup, None, STEPS if steps == len(STEPS) else LONG)


def mutant(phase: str, name: str) -> Callable[[], Any]:
    wrong = rowtwin.phase_bank(phase).mutant(name)
    return lambda: wrong.build(rowtwin.assemble(phase, None)).path


def changed(phase: str, name: str) -> set[str]:
    """Return the ops of the path that a mutant replaces."""
    right, wrong = rowtwin.assemble(phase, None).path, mutant(phase, name)()
    return {f.name for f in fields(right) if getattr(wrong, f.name) is not getattr(right, f.name)}


@pytest.mark.parametrize(("phase", "name", "kind", "op", "healed"), DRAWN,
                         ids=[f"{row[0]}-{row[1]}" for row in DRAWN])
def test_fault_is_found_where_it_was_planted(phase: str, name: str, kind: str, op: str,
                                             healed: tuple[str, ...]) -> None:
    report = bisect_path(phase, mutant(phase, name))
    assert report.place is not None
    assert (report.place.kind, report.place.op) == (kind, op)
    assert tuple(report.healed_by) == healed
    assert set(healed) <= changed(phase, name)
    assert report.values is not None
    assert report.values.got != report.values.want
    if healed != ("step_rows",):
        assert set(suspect_ops(op)) & changed(phase, name)


@pytest.mark.parametrize("phase", ["p1", "p4", "p6"])
def test_right_path_has_no_divergence(phase: str) -> None:
    report = bisect_path(phase, lambda: rowtwin.assemble(phase, None).path)
    assert (report.place, report.healed_by, report.not_compared, report.stray) == (None, [], [], [])
    assert report.compared > 1000


def test_fault_that_needs_many_keys_is_found_only_by_a_long_prompt() -> None:
    wrong = mutant("p6", "oldest_key_lost_in_a_batch")
    assert bisect_path("p6", wrong).place is None
    report = bisect_path("p6", wrong, LONG)
    assert report.place is not None
    assert (report.place.op, report.place.step, report.row) == ("1.attend", 0, 0)
    assert report.values is not None
    assert report.values.element[0] == 64


def test_write_to_an_idle_slot_is_reported_as_stray() -> None:
    report = bisect_path("p5", mutant("p5", "idle_slots_age"))
    assert report.place is not None
    assert (report.place.kind, report.place.op, report.row) == ("stray", "0.conv_step", None)
    assert report.place.slot not in STEPS[report.place.step].slots
    assert f"0.conv of slot {report.place.slot}" in report.stray
    assert report.healed_by == list(OPS)


def test_write_by_no_op_is_blamed_on_the_step() -> None:
    report = bisect_path("p4", mutant("p4", "state_written_to_last_steps_slot"))
    assert report.place is not None
    assert (report.place.kind, report.place.op) == ("stray", "after the last op")
    assert report.place.slot not in STEPS[report.place.step].slots  # it has no row in this step
    assert report.healed_by == ["step_rows"]


def test_recycled_slot_is_the_place_of_a_kept_window() -> None:
    report = bisect_path("p5", mutant("p5", "window_kept_outside_the_slot"))
    assert report.place is not None
    assert (report.place.step, report.place.slot) == (4, STEPS[4].joins[0])


def test_batch_that_reports_no_op_is_compared_by_its_state() -> None:
    right = rowtwin.assemble("p4", None).path
    wrong = mutant("p4", "row_pointer_not_advanced")()

    def silent(path: Any, model: Any, pool: Any, tokens: Any, rows: Any, sink: Any) -> Any:
        return right.step_rows(path, model, pool, tokens, rows, None)

    report = bisect_path("p4", lambda: replace(wrong, step_rows=silent))
    assert report.place is not None
    assert report.place.kind == "state"
    assert "0.conv_step" in report.not_compared


def test_path_that_depends_on_its_batch_differs_from_its_solo_rows() -> None:
    wrong = mutant("p5", "wide_batches_add_otherwise")
    report = bisect_path("p5", wrong, solo_path=wrong)
    assert report.place is not None
    assert report.place.op == "0.delta_step"
    assert report.healed_by == ["delta_step"]


def test_path_that_is_wrong_for_solo_rows_too_agrees_with_itself() -> None:
    wrong = mutant("p4", "norm_with_another_eps")
    assert bisect_path("p4", wrong, solo_path=wrong).place is None
    assert bisect_path("p4", wrong).place is not None


@pytest.mark.parametrize("m", [1, 2, 5])
def test_plan_feeds_every_sequence_without_a_gap(m: int) -> None:
    lengths: dict[int, int] = {}
    for step in plan(m, 7, 9, VOCAB):
        lengths.update(dict.fromkeys(step.joins, 0))
        assert len(set(step.slots)) == len(step.slots) == len(step.counts)
        assert sum(step.counts) == len(step.tokens)
        for slot, position, tokens in step.spans():
            assert 0 <= slot < m + IDLE_SLOTS
            assert position == lengths[slot]
            lengths[slot] += len(tokens)
    assert plan(m, 7, 9, VOCAB) == plan(m, 7, 9, VOCAB)


def test_first_element_is_shown_with_its_neighbours() -> None:
    want = torch.arange(12.0).view(3, 4)
    got = want.clone()
    got[1, 3], got[2, 2] = 7.0000005, math.nan
    values, _ = diff_values(got, want)
    assert values is not None
    assert (values.element, values.ulps, values.differing, values.of) == ([1, 3], 1, 2, 12)
    assert (values.first_shown, values.want_around) == (7 - CONTEXT_VALUES, [5., 6., 7., 8., 9.])
    assert diff_values(want, want) == (
        None, "a second run from the start did not differ: state survives between runs")
    assert diff_values(got, want[:2])[0] is None


@pytest.fixture
def bisect(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    """Return a function that runs the command: exit code, stdout, stderr."""
    return make_main(rowtwin.main, monkeypatch, capsys, "bisect")


SMALL = ("nano", "--phase", "5", "--m", "2", "--steps", "2", "--prompt", "3")
WRONG = '''
from engine import ops
def gates(a, b, decay, bias, g, beta):
    """Give every row after the first a beta of NaN."""
    ops.gates(a, b, decay, bias, g, beta)
    beta[1:] = float("nan")
'''


def test_command_prints_where_a_candidate_is_wrong(bisect: Main, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(WRONG)
    argv = (*SMALL, "--candidate", f"file:{tmp_path}/mine.py", "--against", "oracle")
    code, out, _ = bisect(*argv)
    assert code == 1
    assert "gates differs in its output, though its inputs agree [step 0, layer 0, slot " in out
    assert out.endswith("swapping back gates heals the run\n")
    code, out, _ = bisect(*argv, "--json")
    report = json.loads(out)
    assert (code, report["diverged"], report["place"]["layer"], report["place"]["op"]) == (
        1, True, 0, "gates")
    assert "nan" in report["values"]["got_around"]


def test_command_prints_that_there_is_no_divergence(bisect: Main) -> None:
    code, out, err = bisect(*SMALL)
    assert (code, err) == (0, "")
    assert out.endswith("no divergence\n")


@pytest.mark.parametrize(("argv", "sentence"), [
    (["nano", "--phase", "2"], "'2' is no phase of the decode path: choose one of 1, 3, 4"),
    (["--trace", "a", "--trace", "b", "--greedy"],
     "--greedy needs steps to run, so it does not go with --trace"),
    (["--trace", "a", "--trace", "b", "--shrink", "x"],
     "--shrink needs steps to run, so it does not go with --trace"),
    (["--phase", "2", "--mutant", "replies_are_kept", "--greedy"],
     "--greedy needs steps to run, so it does not go with a serving stack"),
    (["nano", "--m", "0"], "--m must be 1 to 64, but is 0"),
    (["nano", "--steps", "0"], "--steps must be 1 to"),
    (["nano", "--prompt", "0"], "--prompt must be 1 to"),
    (["nano", "--prompt", "1000000"], "past the model's context of"),
    (["nano", "--device", "tpu"], "unknown device 'tpu': choose one of cpu, interpret, cuda"),
    (["nano", "--against", "nobody"], "'nobody' is no phase of the decode path"),
    (["nano", "--candidate", "mine"], "unknown candidate 'mine'"),
    (["nano", "--phase", "5", "--candidate", "module:json"], "offers none of the functions"),
    (["no.gguf"], "cannot read no.gguf: No such file")])
def test_bad_usage_ends_in_one_sentence(bisect: Main, argv: list[str], sentence: str) -> None:
    code, out, err = bisect(*argv)
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1
