"""Programs in other languages: the C example passes, and one that misbehaves fails."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
import torch

import rowtwin
from falsifiers.gate import candidates
from falsifiers.gate.candidates import Candidate
from falsifiers.gate.cli import select_vector_cases
from falsifiers.gate.runner import GateRequest
from falsifiers.judging.errors import Declined, ParityBroken, SuiteError, Unmeasurable
from falsifiers.judging.judge import Judge, as_bits
from falsifiers.judging.subject import Subject
from falsifiers.judging.verdict import Finding
from falsifiers.meta.console.command import Main, make_main
from falsifiers.tensor_files.safetensors_file import read_tensors
from falsifiers.vectors import candidate_kinds, program
from falsifiers.vectors.calls import ExternalOps
from falsifiers.vectors.program import Program

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "gemv_rows.c"


@pytest.fixture
def run_rowtwin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    """Return a function that runs the command line: exit code, stdout, stderr."""
    return make_main(rowtwin.main, monkeypatch, capsys)


def compile_example(folder: Path, *, old: str = "", new: str = "") -> Path:
    """Compile the example with the system's compiler, with `old` replaced by `new`."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise Unmeasurable("the C example cannot be tested here: there is no C compiler (cc, gcc "
                           "or clang)")
    text = EXAMPLE.read_text()
    assert text.count(old) == 1 or not old
    source, binary = folder / "gemv_rows.c", folder / "gemv_rows"
    source.write_text(text.replace(old, new) if old else text)
    result = subprocess.run([compiler, "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror",
                             "-ffp-contract=off", str(source), "-lm", "-o", str(binary)],
                            capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return binary


def test_example_is_unmeasurable_without_a_compiler(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(Unmeasurable, match="there is no C compiler"):
        compile_example(tmp_path)


def test_c_example_passes_every_exact_call_bit_for_bit(tmp_path: Path, run_rowtwin: Main) -> None:
    folder = tmp_path / "p3"
    code, out, err = run_rowtwin("vectors", "export", str(folder), "--phase", "3")
    assert (code, err) == (0, "")
    assert "393 calls of p3" in out
    subprocess.run([compile_example(tmp_path), folder / "inputs", folder / "outputs"], check=True)
    code, out, _ = run_rowtwin("vectors", "check", str(folder))
    assert code == 0
    assert out.startswith("p3     PASS           row-twin product\n    19 passed, 9 declined")
    for path in (folder / "expected").glob("*-Q*"):  # compare the bits without the suite
        got, want = (read_tensors(folder / name / path.name, 1 << 20)[0]["out"]
                     for name in ("outputs", "expected"))
        assert torch.equal(as_bits(got), as_bits(want))


def attack(candidate: Candidate, falsifier: str) -> None:
    case = next(case for case in rowtwin.phase_vectors("3").cases
                if case.falsifier == falsifier and case.name == "vectors-Q4_K-k256")
    rowtwin.phase_bank("p3").falsifiers[falsifier](
        case=case, subject=Subject("c", models=rowtwin.load_model, candidate=candidate),
        judge=Judge(case))


def finding_of(candidate: Candidate, falsifier: str) -> Finding:
    with pytest.raises(ParityBroken) as caught:
        attack(candidate, falsifier)
    return caught.value.finding


def test_row_with_its_neighbour_s_scale_is_located_in_the_c_program(tmp_path: Path) -> None:
    binary = compile_example(tmp_path, old="            for (long n = 0; n < N; n++)\n",
                             new="            if (m > 8 && row == 6) s[0] *= 1.0000001f;\n"
                                 "            for (long n = 0; n < N; n++)\n")
    found = finding_of(candidates.load_candidate(f"cmd:{binary}"), "rows_equal_alone")
    assert (found.rule, found.rung) == ("twin", "bits")
    assert (found.where["m"], found.where["row"], found.where["element"]) == (9, 6, "[0]")
    assert found.ulps is not None
    assert 1 <= found.ulps <= 2
    assert found.sentence.startswith(f"out[m 9, row 6, element [0]]={found.got}, but should be "
                                     f"{found.want} (")


def test_minimum_fused_into_the_product_is_located_in_the_c_program(tmp_path: Path) -> None:
    binary = compile_example(
        tmp_path, old="return product - minimum;",
        new="return fmaf(-half(b + 2), (float)M, product) + 0 * minimum;")
    found = finding_of(candidates.load_candidate(f"cmd:{binary}"), "products_are_true")
    assert (found.rule, found.rung, found.where["weights"]) == ("truth", "bits", "plain")
    assert found.where["row"] == 0


def shell_program(folder: Path, text: str, limit: float = program.TIME_LIMIT) -> Candidate:
    """Return a candidate that runs a shell script."""
    path = folder / "mine.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return Candidate(f"cmd:{path}", ExternalOps(Program([str(path)], limit)))


@pytest.mark.parametrize(("text", "sentence"), [
    ("exit 3", "mine.sh exited 3 at the call gemv_rows-Q4_K-n17-k256-m1-"),
    ("echo first >&2; echo 'out of memory' >&2; exit 1", "[0-9a-f]: out of memory$"),
    (r"printf '\033[31mred' >&2; exit 1", r"\\x1b"),
    ("kill -SEGV $$", f"was killed by signal {signal.SIGSEGV.value} at the call"),
    ("exit 0", "is missing"),
    ("cp $1/* $2", "has no tensor 'out'"),
    ("ln -s $1/* $2", "is a symbolic link"),
    ("for f in $1/*; do head -c 99 /dev/zero > $2/${f##*/}; done", "is not a safetensors file")])
def test_program_that_fails_is_a_failed_verdict(tmp_path: Path, text: str, sentence: str) -> None:
    candidate = shell_program(tmp_path, text)
    assert candidate.arithmetic == "own"
    found = finding_of(candidate, "rows_equal_alone")
    assert found.rung in ("crash", "shape")
    assert re.search(sentence, found.sentence)


def test_program_that_hangs_is_stopped_with_its_children_and_not_run_again(
        tmp_path: Path) -> None:
    candidate = shell_program(tmp_path, f"sleep 600 & echo $! > {tmp_path}/child\nwait", limit=0.3)
    found = finding_of(candidate, "rows_equal_alone")
    assert (found.rule, found.rung) == ("law", "crash")
    assert "did not end within 0.3 s of the call gemv_rows-probe" in found.sentence
    child = int((tmp_path / "child").read_text())
    (tmp_path / "child").unlink()
    for _ in range(100):
        if not _runs(child):
            break
        time.sleep(0.05)
    assert not _runs(child)
    assert finding_of(candidate, "products_are_true").sentence == found.sentence
    assert not (tmp_path / "child").exists()


@pytest.mark.parametrize("sleeps", [
    "sleep 600 & echo $! > {0}/child", "setsid sh -c 'echo $$ > {0}/child; exec sleep 600' &",
    "(setsid setsid -f sh -c 'echo $$ > {0}/child; sleep 600' &)"])
def test_program_that_ends_leaves_no_children_running(tmp_path: Path, sleeps: str) -> None:
    wait = f"while ! [ -s {tmp_path}/child ]; do sleep 0.01; done"
    candidate = shell_program(tmp_path, f"{sleeps.format(tmp_path)}\n{wait}\nexit 3")
    assert " exited 3 at the call " in finding_of(candidate, "rows_equal_alone").sentence
    child = int((tmp_path / "child").read_text())
    for _ in range(100):
        if not _runs(child):
            break
        time.sleep(0.05)
    assert not _runs(child)


@pytest.mark.parametrize("error", [RecursionError, PermissionError])
def test_error_while_removing_the_scratch_directory_is_ignored(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    original = tempfile.TemporaryDirectory.cleanup

    def cleanup(folder: tempfile.TemporaryDirectory[str]) -> None:
        original(folder)
        raise error

    monkeypatch.setattr(tempfile.TemporaryDirectory, "cleanup", cleanup)
    found = finding_of(shell_program(tmp_path, "exit 3"), "rows_equal_alone")
    assert " exited 3 at the call " in found.sentence


@pytest.mark.parametrize("command", ["rm -f words; mkfifo words", "rm -rf *"])
def test_program_that_damages_its_directory_is_judged_by_its_exit_code(
        tmp_path: Path, command: str) -> None:
    script = f'cd "$2/.."; {command}\nexit 1'
    found = finding_of(shell_program(tmp_path, script), "rows_equal_alone")
    assert " exited 1 at the call " in found.sentence


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def answering_program(key: str, value: str) -> str:
    """Return a shell script that answers every call with one key of metadata."""
    answer = f'{{"__metadata__":{{"{key}":"{value}"}}}}'
    prefix = "".join(f"\\{byte:03o}" for byte in len(answer).to_bytes(8, "little"))
    return f"for f in $1/*; do printf '{prefix}%s' '{answer}' > $2/${{f##*/}}; done"


def test_program_that_declines_raises_declined(tmp_path: Path) -> None:
    candidate = shell_program(tmp_path, answering_program("declined", "only Q9"))
    with pytest.raises(Declined, match="only Q9"):
        attack(candidate, "rows_equal_alone")


def test_program_that_cannot_be_started_is_a_failed_verdict(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.write_text("#!/no/such/interpreter\n")
    path.chmod(0o755)
    found = finding_of(candidates.load_candidate(f"cmd:{path}"), "rows_equal_alone")
    assert found.sentence == f"{path} cannot be run: No such file or directory"


def test_arithmetic_is_what_the_first_answer_declares(tmp_path: Path) -> None:
    candidate = shell_program(tmp_path, answering_program("arithmetic", "exact-23"))
    assert candidate.arithmetic == "exact-23"
    with pytest.raises(SuiteError, match="ARITHMETIC is 'exact-', but should be"):
        candidates.load_candidate(
            "cmd:" + shlex.join(["sh", "-c", answering_program("arithmetic", "exact-"), "x"])
        )


@pytest.mark.parametrize(("spec", "sentence"), [
    ("cmd:/no/such/program", "there is no program '/no/such/program' to run"),
    ("cmd:'unclosed", "cannot be split into words: No closing quotation"),
    ("cmd:''", "there is no program '' to run"), ("cmd: ", "names no program"),
    ("cmd:", "unknown candidate 'cmd:'"), ("cmd:a\udcff", "a path that is not UTF-8"),
    ("vectors:/no/such", "is not a directory of vectors"),
    ("server:http://127.0.0.1:1", r"judged over its API, with: rowtwin witness http://127")])
def test_invalid_candidate_is_refused(spec: str, sentence: str) -> None:
    with pytest.raises(SuiteError, match=sentence):
        candidates.check_spec(spec)


def test_program_in_the_working_directory_is_found(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.sh").write_text(answering_program("arithmetic", "exact-23"))
    monkeypatch.chdir(tmp_path)
    assert candidates.load_candidate("cmd:sh mine.sh").arithmetic == "exact-23"


def test_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "my table.bin"):
        (tmp_path / name).touch()
        os.chmod(tmp_path / name, 0o755)
    assert candidates.make_absolute("vectors:p3") == f"vectors:{tmp_path}/p3"
    assert candidates.make_absolute("cmd:./mine 'my table.bin' --fast") == \
        f"cmd:{tmp_path}/mine '{tmp_path}/my table.bin' --fast"
    assert candidates.make_absolute("cmd:sh mine") == f"cmd:sh {tmp_path}/mine"


def test_phase_of_a_directory_is_read_from_its_manifest(tmp_path: Path) -> None:
    call = {"name": "a", "op": "a", "facts": {}, "inputs": {}, "outputs": {}, "cases": []}
    (tmp_path / "manifest.json").write_text(json.dumps({
        "phase": "p3", "claim": "", "arithmetic": "own", "calls": [call],
        "rules": {"twin": "bitwise", "truth": "bitwise", "own": None}}))
    assert candidate_kinds.phase_of(f"vectors:{tmp_path}") == "p3"
    assert candidate_kinds.phase_of("cmd:sh") is None
    for phases in (("p4",), ("engine", "p3")):
        with pytest.raises(SuiteError, match=r"answers only calls of p3: add --phase 3"):
            select_vector_cases(f"vectors:{tmp_path}", GateRequest(phases), {})
    cases = select_vector_cases(f"vectors:{tmp_path}", GateRequest(("p3",)), {})
    assert cases is not None
    assert [case.id for case in cases] == [case.id for case in rowtwin.phase_vectors("3").cases]
    assert {case.repro for case in cases} == {"rowtwin gate --phase 3"}
    assert select_vector_cases(None, GateRequest(("p3",)), {}) is None
