"""Programs that run steps: the NumPy example passes, wrong versions break the expected rule."""

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
    """Run the example, or a wrong version of it, on the calls of a directory."""
    program = outputs.parent / "mine.py"
    program.write_text(text)
    outputs.mkdir()
    subprocess.run([sys.executable, program, folder / "inputs", outputs], check=True)


def outcomes(folder: Path, vectors: VectorSet) -> dict[str, set[str]]:
    """Return the names of the step cases, by the rule that they broke or `passed`."""
    names: dict[str, set[str]] = {}
    for v in exchange.check(folder, vectors):
        name = v.case.partition("step-")[2].rstrip("]")
        names.setdefault(v.finding.rule if v.finding else v.outcome, set()).add(name)
    return names


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
    # one scale for all run_rowtwin, as with a shared activation quantiser
    ("return np.stack([w @ row for row in x])",
     "s = abs(x).max()\n    return np.stack([w @ (row / s) * s for row in x])",
     {"twin": {"m3", "chunks", "nan-tenant"}}),
    ("hidden[ends - 1]", "hidden[ends - counts]", {"truth": {"chunks"}}),  # a chunk's first token
    ("zip(call[\"slots\"], call[\"positions\"]", "zip(range(len(counts)), call[\"positions\"]",
     {"twin": {"m3", "chunks"}, "truth": {"m3", "chunks"}}),  # where row 0 is not in slot 0
    ('return {"logits": products(w.get("output", w["token_embd"]), last), **states}',
     'return {"logits": 0 * last[:, :1] + np.ones(model.vocab, np.float32), **states}',
     {"truth": {"m1", "m3", "chunks"}})])
def test_wrong_batching_breaks_twin_and_wrong_solo_rows_break_truth(
        exported: Path, tmp_path: Path, right: str, wrong: str,
        broken: dict[str, set[str]]) -> None:
    folder, text = tmp_path / "p4", NUMPY_STEP.read_text()
    assert text.count(right) == 1
    folder.mkdir()
    shutil.copy(exported / "manifest.json", folder)
    run_numpy_step(exported, folder / "outputs", text.replace(right, wrong))
    names = outcomes(folder, steps())
    names.pop("passed")
    assert names == broken


def copying_program(folder: Path, exported: Path, *lines: str) -> Candidate:
    """Return a shell program that copies the expected answers, then runs more lines."""
    answers = shutil.copytree(exported / "expected", folder / "answers")
    write_tensors(answers / f"{StepOps.probe.name}.safetensors", {},
                  {"arithmetic": "exact-23", "declined": "a probe"})
    path, more = folder / "mine.sh", "\n".join(lines)
    path.write_text(f'#!/bin/sh\nfor f in $1/*.safetensors; do cp {answers}/"${{f##*/}}" $2; done\n'
                    f"{more}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return Candidate(f"cmd:{path}", StepOps(Program([str(path)], probe=StepOps.probe)))


def test_program_gets_the_model_next_to_each_step(exported: Path, tmp_path: Path) -> None:
    copy = tmp_path / "seen.gguf"
    program = copying_program(tmp_path, exported,
                              f'for g in $1/*.gguf; do cp "$g" {copy} && : > "$g"; done',
                              "exit 0")
    assert program.arithmetic == "exact-23"
    verdicts = [judge_case(case, program, steps(), "") for case in steps().cases]
    assert {v.outcome for v in verdicts} == {"passed"}
    call = next(call for call in manifest.load_manifest(exported).calls if call.op == "step")
    for path in (copy, exported / "inputs" / call.facts["model"]):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == call.facts["sha256"]


def test_step_that_declares_the_ordered_arithmetic_is_compared_bitwise() -> None:
    for name, outcome in (("ordered", "passed"), ("exact-23", "failed")):
        model = rowtwin.load_model("nano").with_arithmetic(name)
        engine = PathEngine(rowtwin.decode_path("p4"), model)
        recorder = RecordingAnswerer("ordered", partial(answer_step, engine, Rows))
        (case, *_) = [case for case in steps().cases if case.falsifier == "ops_equal_looped_step"]
        verdict = judge_case(case, Candidate("mine", StepOps(recorder)), steps(), "")
        assert verdict.outcome == outcome
        assert verdict.finding is None or verdict.finding.rule == "truth"


def test_program_that_writes_an_extra_file_fails(exported: Path, tmp_path: Path) -> None:
    program = copying_program(tmp_path, exported, "echo > $2/more.log")
    verdict = judge_case(steps().cases[0], program, steps(), "")
    assert verdict.finding is not None
    assert re.search(r"mine\.sh wrote more\.log in addition to its answer to the call step-",
                     verdict.finding.sentence)


def test_program_gets_the_contract_s_cases_and_the_phase_s_own() -> None:
    contracts = {phase: rowtwin.phase_contract(phase) for phase in ("p3", "p4")}
    cases = select_vector_cases("cmd:sh mine", GateRequest(("p4",)), contracts)
    assert cases is not None
    contract = list(rowtwin.phase_contract("p4").expand())
    assert list(cases[:len(contract)]) == contract
    extra = cases[len(contract):]
    assert {case.given.get("op") for case in extra} == {
        None, "norm", "add_norm", "gated_norm", "silu_mul", "argmax", "embed", "project"}
    assert {case.repro for case in extra} == {"rowtwin gate --phase 4"}
    assert select_vector_cases("cmd:sh mine", GateRequest(("p3",)), contracts) is None
    one = GateRequest(("p4",), case=contract[0])
    assert select_vector_cases("cmd:sh mine", one, contracts) is None


@pytest.mark.parametrize(("options", "why"), [
    (("--phase", "8"), "in p8, because a program started for each call replays no graph, .*: "
                       "rowtwin vectors export DIR --phase 8 has one process answer all calls"),
    (("--phase", "1"), "in p1, because its step is the one of P4"),
    (("--phase", "0"), "in p0, because a scheduler is not an op"),
    (("--phase", "engine"), "in engine, because it is the oracle"),
    (("--case", "p8/graph_equals_single[cpu-nano-m1]"), "in p8, because "),
    (("--through", "3"), "in engine, because "), ((), "in engine, because ")])
def test_gate_refuses_a_program_before_any_case_of_a_phase_without_calls(
        run_rowtwin: Main, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...],
        why: str) -> None:
    monkeypatch.setattr("falsifiers.gate.runner.run_pytest", None)
    code, out, err = run_rowtwin("gate", *options, "--candidate", "cmd:sh mine")
    assert (code, out) == (2, "")
    assert re.fullmatch(f"rowtwin: candidate cmd:sh mine cannot be judged {why}.*; use one of "
                        f"--phase 3, 4, 5, 6\n", err)


def test_graph_is_not_judged_by_a_program_started_for_each_call() -> None:
    case = next(iter(rowtwin.phase_contract("p8").expand()))
    with pytest.raises(SuiteError, match="for each call replays no graph, and files cannot "
                                         "show a replay, so answer a directory"):
        rowtwin.subject_for(case, "cmd:sh mine")


def test_program_has_the_ops_of_its_phase() -> None:
    def op(phase: str, name: str) -> bool:
        case: Case = rowtwin.phase_vectors(phase).cases[0]
        return rowtwin.subject_for(case, "cmd:sh mine").candidate.op(name) is not None

    assert [op(phase, "engine") for phase in "3456"] == [False, True, False, False]
    assert [op(phase, "gemv_rows") for phase in "3456"] == [True] * 4
    assert candidates.load_candidate("cmd:sh mine").op("engine") is None


def test_vectors_package_names_no_phase() -> None:
    named = [f"{path.name}: {node.value}" for path in (ROOT / "falsifiers/vectors").glob("*.py")
             for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)
             and isinstance(node.value, str) and re.fullmatch(r"p\d", node.value)]
    assert named == []


@pytest.fixture
def run_rowtwin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    """Return a function that runs the command line: exit code, stdout, stderr."""
    return make_main(rowtwin.main, monkeypatch, capsys)


def test_directory_is_judged_by_the_gate_as_by_check(tmp_path: Path, run_rowtwin: Main) -> None:
    commands = {"4": ["check", "gate"], "8": ["check"]}
    for phase, words in commands.items():
        folder = tmp_path / phase
        assert run_rowtwin("vectors", "export", str(folder), "--phase", phase)[0] == 0
        (folder / "outputs").rmdir()
        run_numpy_step(folder, folder / "outputs", NUMPY_STEP.read_text())
        for word in words:
            code, out, _ = run_rowtwin("vectors", "check", str(folder)) if word == "check" else \
                run_rowtwin("gate", "--phase", phase, "--candidate", f"vectors:{folder}",
                            "--jobs", "1", "--device", "cpu")
            assert code == 0
            assert out.startswith(f"p{phase}     PASS")
            assert "truth of a candidate with its own arithmetic: cosine >= 0.9995" in out
