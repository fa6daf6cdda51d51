"""Programs that run whole steps: the one in NumPy passes, wrong ones break the rule they should."""

from __future__ import annotations

import ast
import hashlib
import re
import shutil
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import rowtwin
from contracts.schema import Case
from engine.candidate import PathEngine
from engine.path import Rows
from falsifiers.gate import candidates
from falsifiers.gate.candidates import Candidate
from falsifiers.gate.cli import select_vector_cases
from falsifiers.gate.runner import GateRequest
from falsifiers.judging.errors import SuiteError
from falsifiers.meta.console.command import Main, make_main
from falsifiers.meta.vectors.test_vectors_steps import steps
from falsifiers.tensor_files.safetensors_file import write_tensors
from falsifiers.vectors import exchange, manifest
from falsifiers.vectors.calls import RecordingAnswerer
from falsifiers.vectors.exchange import VectorSet, judge_case
from falsifiers.vectors.program import Program
from falsifiers.vectors.steps import StepOps, answer_step

ROOT = Path(__file__).parents[3]
NUMPY_STEP = ROOT / "docs" / "examples" / "numpy_step.py"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors") / "p4"
    exchange.export(folder, steps())
    return folder


def run_numpy_step(folder: Path, outputs: Path, text: str) -> None:
    """Run the example, or a wrong version of it, over the calls of a directory."""
    program = outputs.parent / "mine.py"
    program.write_text(text)
    outputs.mkdir()
    subprocess.run([sys.executable, program, folder / "inputs", outputs], check=True)


def outcomes(folder: Path, wanted: VectorSet) -> dict[str, set[str]]:
    """Return the names of the cases of whole steps, by the rule that they broke or `passed`."""
    told: dict[str, set[str]] = {}
    for v in exchange.check(folder, wanted):
        name = v.case.partition("step-")[2].rstrip("]")
        told.setdefault(v.finding.rule if v.finding else v.outcome, set()).add(name)
    return told


def test_step_in_numpy_passes_twin_in_bits_and_truth_by_the_budget(exported: Path,
                                                                   tmp_path: Path) -> None:
    folder = tmp_path / "p4"
    folder.mkdir()
    shutil.copy(exported / "manifest.json", folder)
    run_numpy_step(exported, folder / "outputs", NUMPY_STEP.read_text())
    verdicts = exchange.check(folder, steps())
    assert {v.outcome for v in verdicts} == {"passed"}
    true = [v for v in verdicts if v.falsifier == "ops_equal_looped_step"]
    assert {worst.rung for v in true for worst in v.worst} == {"budget"}
    assert min(worst.cosine or 0 for v in true for worst in v.worst) > 1 - 1e-9


@pytest.mark.parametrize(("right", "wrong", "broken"), [
    # one scale for all rows, as a shared activation quantiser has
    ("return np.stack([w @ row for row in x])",
     "s = abs(x).max()\n    return np.stack([w @ (row / s) * s for row in x])",
     {"twin": {"m3", "chunks", "nan-tenant"}}),
    ("hidden[ends - 1]", "hidden[ends - counts]", {"truth": {"chunks"}}),  # a chunk's first token
    ("zip(call[\"slots\"], call[\"positions\"]", "zip(range(len(counts)), call[\"positions\"]",
     {"twin": {"m3", "chunks"}, "truth": {"m3", "chunks"}}),  # where row 0 is not in slot 0
    ('return {"logits": products(w.get("output", w["token_embd"]), last), **states}',
     'return {"logits": 0 * last[:, :1] + np.ones(model.vocab, np.float32), **states}',
     {"truth": {"m1", "m3", "chunks"}})])
def test_program_that_batches_wrongly_breaks_twin_and_one_that_is_wrong_alone_breaks_truth(
        exported: Path, tmp_path: Path, right: str, wrong: str,
        broken: dict[str, set[str]]) -> None:
    folder, text = tmp_path / "p4", NUMPY_STEP.read_text()
    assert text.count(right) == 1
    folder.mkdir()
    shutil.copy(exported / "manifest.json", folder)
    run_numpy_step(exported, folder / "outputs", text.replace(right, wrong))
    told = outcomes(folder, steps())
    told.pop("passed")
    assert told == broken


def copying(folder: Path, exported: Path, *lines: str) -> Candidate:
    """Return a shell program that answers what a directory expects, and does more."""
    answers = shutil.copytree(exported / "expected", folder / "answers")
    write_tensors(answers / f"{StepOps.probe.name}.safetensors", {}, {"arithmetic": "exact-23",
                                                             "declined": "a probe"})
    path, more = folder / "mine.sh", "\n".join(lines)
    path.write_text(f'#!/bin/sh\nfor f in $1/*.safetensors; do cp {answers}/"${{f##*/}}" $2; done\n'
                    f"{more}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return Candidate(f"cmd:{path}", StepOps(Program([str(path)], probe=StepOps.probe)))


def test_program_is_asked_for_steps_with_the_model_beside_them(exported: Path,
                                                               tmp_path: Path) -> None:
    kept = tmp_path / "seen.gguf"
    program = copying(tmp_path, exported,
                      f'for g in $1/*.gguf; do cp "$g" {kept} && : > "$g"; done',
                      "exit 0")
    assert program.arithmetic == "exact-23"
    verdicts = [judge_case(case, program, steps(), "") for case in steps().cases]
    assert {v.outcome for v in verdicts} == {"passed"}
    call = next(call for call in manifest.load_manifest(exported).calls if call.op == "step")
    for path in (kept, exported / "inputs" / call.facts["model"]):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == call.facts["sha256"]


def test_step_that_declares_the_ordered_arithmetic_is_held_to_its_bits() -> None:
    for name, outcome in (("ordered", "passed"), ("exact-23", "failed")):
        engine = PathEngine(
            rowtwin.decode_path("p4"), rowtwin.load_model("nano").with_arithmetic(name)
        )
        recorder = RecordingAnswerer("ordered", partial(answer_step, engine, Rows))
        (case, *_) = [case for case in steps().cases if case.falsifier == "ops_equal_looped_step"]
        verdict = judge_case(case, Candidate("mine", StepOps(recorder)), steps(), "")
        assert verdict.outcome == outcome
        assert verdict.finding is None or verdict.finding.rule == "truth"


def test_program_that_writes_beside_its_answer_is_told(exported: Path,
                                                       tmp_path: Path) -> None:
    program = copying(tmp_path, exported, "echo > $2/more.log")
    verdict = judge_case(steps().cases[0], program, steps(), "")
    assert verdict.finding is not None
    assert re.search(r"mine\.sh wrote more\.log beside its answer to the call step-",
                     verdict.finding.sentence)


def test_program_is_asked_what_the_contract_lacks_beside_its_cases() -> None:
    contracts = {phase: rowtwin.phase_contract(phase) for phase in ("p3", "p4")}
    cases = select_vector_cases("cmd:sh mine", GateRequest(("p4",)), contracts)
    assert cases is not None
    own = list(rowtwin.phase_contract("p4").expand())
    assert list(cases[:len(own)]) == own
    assert {one.given.get("op") for one in cases[len(own):]} == {
        None, "norm", "add_norm", "gated_norm", "silu_mul", "argmax", "embed", "project"}
    assert {one.repro for one in cases[len(own):]} == {"rowtwin gate --phase 4"}
    assert select_vector_cases("cmd:sh mine", GateRequest(("p3",)), contracts) is None
    assert select_vector_cases("cmd:sh mine", GateRequest(("p4",), case=own[0]), contracts) is None


@pytest.mark.parametrize(("asked", "why"), [
    (("--phase", "8"), "in p8, for a program started for each call would replay no graph, .*: "
                       "rowtwin vectors export DIR --phase 8 asks one process for all calls"),
    (("--phase", "1"), "in p1, for its step is P4's, which asks for it"),
    (("--phase", "0"), "in p0, for a scheduler is no op"),
    (("--phase", "engine"), "in engine, for it is the oracle"),
    (("--case", "p8/graph_equals_single[cpu-nano-m1]"), "in p8, for "),
    (("--through", "3"), "in engine, for "), ((), "in engine, for ")])
def test_program_is_refused_by_the_gate_before_any_case_of_a_phase_without_calls(
        rows: Main, monkeypatch: pytest.MonkeyPatch, asked: tuple[str, ...], why: str) -> None:
    monkeypatch.setattr("falsifiers.gate.runner.run_pytest", None)
    code, out, err = rows("gate", *asked, "--candidate", "cmd:sh mine")
    assert (code, out) == (2, "")
    assert re.fullmatch(f"rowtwin: candidate cmd:sh mine cannot be judged {why}.*; a program is "
                        f"judged with one of --phase 3, 4, 5, 6\n", err)


def test_graph_is_not_judged_by_a_program_started_for_each_call() -> None:
    case = next(iter(rowtwin.phase_contract("p8").expand()))
    with pytest.raises(SuiteError, match="for each call would replay no graph, and files cannot "
                                         "show that one was, so answer a directory"):
        rowtwin.subject_for(case, "cmd:sh mine")


def test_what_a_phase_puts_before_a_program_is_what_it_hands_over(tmp_path: Path) -> None:
    def op(phase: str, name: str) -> bool:
        case: Case = rowtwin.phase_vectors(phase).cases[0]
        return rowtwin.subject_for(case, "cmd:sh mine").candidate.op(name) is not None

    assert [op(phase, "engine") for phase in "3456"] == [False, True, False, False]
    assert [op(phase, "gemv_rows") for phase in "3456"] == [True] * 4
    assert candidates.load_candidate("cmd:sh mine").op("engine") is None


def test_no_phase_is_named_where_vectors_are_exchanged() -> None:
    named = [f"{path.name}: {node.value}" for path in (ROOT / "falsifiers/vectors").glob("*.py")
             for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)
             and isinstance(node.value, str) and re.fullmatch(r"p\d", node.value)]
    assert named == []


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    """Return a function that runs the command line: exit code, stdout, stderr."""
    return make_main(rowtwin.main, monkeypatch, capsys)


def test_directory_is_judged_by_the_gate_as_by_check(tmp_path: Path, rows: Main) -> None:
    commands = {"4": ["check", "gate"], "8": ["check"]}
    for phase, words in commands.items():
        folder = tmp_path / phase
        assert rows("vectors", "export", str(folder), "--phase", phase)[0] == 0
        (folder / "outputs").rmdir()
        run_numpy_step(folder, folder / "outputs", NUMPY_STEP.read_text())
        for word in words:
            code, out, _ = rows("vectors", "check", str(folder)) if word == "check" else \
                rows("gate", "--phase", phase, "--candidate", f"vectors:{folder}", "--jobs", "1",
                     "--device", "cpu")
            assert code == 0
            assert out.startswith(f"p{phase}     PASS")
            assert "truth of a candidate with its own arithmetic: cosine >= 0.9995" in out
