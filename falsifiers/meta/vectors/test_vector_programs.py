"""Programs in other languages: the example in C is right, and one that misbehaves is a verdict."""

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
from contracts.schema import Case
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
def rows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    """Return a function that runs the command line: exit code, stdout, stderr."""
    return make_main(rowtwin.main, monkeypatch, capsys)


def compiled(folder: Path, *, instead_of: str = "", stands: str = "") -> Path:
    """Compile the example with the system's compiler, with one piece of its text changed."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise Unmeasurable("that the example in C passes is unmeasurable here: there is no C "
                           "compiler (cc, gcc or clang)")
    text = EXAMPLE.read_text()
    assert text.count(instead_of) == 1 or not instead_of
    source, made = folder / "gemv_rows.c", folder / "gemv_rows"
    source.write_text(text.replace(instead_of, stands) if instead_of else text)
    told = subprocess.run([compiler, "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror",
                           "-ffp-contract=off", str(source), "-lm", "-o", str(made)],
                          capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    return made


def test_without_a_compiler_the_example_is_said_to_be_unmeasurable(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(Unmeasurable, match="there is no C compiler"):
        compiled(tmp_path)


def test_example_in_c_passes_every_exact_call_bit_for_bit(tmp_path: Path, rows: Main) -> None:
    folder = tmp_path / "p3"
    code, out, err = rows("vectors", "export", str(folder), "--phase", "3")
    assert (code, err) == (0, "")
    assert "393 calls of p3" in out
    subprocess.run([compiled(tmp_path), folder / "inputs", folder / "outputs"], check=True)
    code, out, _ = rows("vectors", "check", str(folder))
    assert code == 0
    assert out.startswith("p3     PASS           row-twin product\n    19 passed, 9 declined")
    for path in (folder / "expected").glob("*-Q*"):  # the bits, not the suite's word alone
        got, want = (read_tensors(path.parents[1] / part / path.name, 1 << 20)[0]["out"]
                     for part in ("outputs", "expected"))
        assert torch.equal(as_bits(got), as_bits(want))


def case(falsifier: str, name: str) -> Case:
    return next(one for one in rowtwin.phase_vectors("3").cases
                if one.falsifier == falsifier and one.name == name)


def broken(candidate: Candidate, falsifier: str, name: str = "vectors-Q4_K-k256") -> Finding:
    one = case(falsifier, name)
    with pytest.raises(ParityBroken) as caught:
        rowtwin.phase_bank("p3").falsifiers[falsifier](
            case=one, subject=Subject("c", models=rowtwin.load_model, candidate=candidate),
            judge=Judge(one))
    return caught.value.finding


def test_row_that_takes_its_neighbour_s_scale_is_located_in_the_c_program(tmp_path: Path) -> None:
    made = compiled(tmp_path, instead_of="            for (long n = 0; n < N; n++)\n",
                    stands="            if (m > 8 && row == 6) s[0] *= 1.0000001f;\n"
                           "            for (long n = 0; n < N; n++)\n")
    found = broken(candidates.load_candidate(f"cmd:{made}"), "rows_equal_alone")
    assert (found.rule, found.rung) == ("twin", "bits")
    assert (found.where["m"], found.where["row"], found.where["element"]) == (9, 6, "[0]")
    assert found.ulps is not None
    assert 1 <= found.ulps <= 2
    assert found.sentence.startswith(f"out[m 9, row 6, element [0]]={found.got}, but should be "
                                     f"{found.want} (")


def test_minimum_fused_into_the_product_is_located_in_the_c_program(tmp_path: Path) -> None:
    made = compiled(tmp_path, instead_of="return product - minimum;",
                    stands="return fmaf(-half(b + 2), (float)M, product) + 0 * minimum;")
    found = broken(candidates.load_candidate(f"cmd:{made}"), "products_are_true")
    assert (found.rule, found.rung, found.where["weights"]) == ("truth", "bits", "plain")
    assert found.where["row"] == 0


def offered(folder: Path, text: str, limit: float = program.TIME_LIMIT) -> Candidate:
    """Return a shell program as a candidate."""
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
def test_program_that_ends_badly_is_a_verdict(tmp_path: Path, text: str, sentence: str) -> None:
    candidate = offered(tmp_path, text)
    assert candidate.arithmetic == "own"
    found = broken(candidate, "rows_equal_alone")
    assert found.rung in ("crash", "shape")
    assert re.search(sentence, found.sentence)


def test_program_that_hangs_is_stopped_with_its_children_and_not_run_again(
        tmp_path: Path) -> None:
    candidate = offered(tmp_path, f"sleep 600 & echo $! > {tmp_path}/child\nwait", limit=0.3)
    found = broken(candidate, "rows_equal_alone")
    assert (found.rule, found.rung) == ("law", "crash")
    assert "did not end within 0.3 s of the call gemv_rows-probe" in found.sentence
    child = int((tmp_path / "child").read_text())
    (tmp_path / "child").unlink()
    for _ in range(100):
        if not _runs(child):
            break
        time.sleep(0.05)
    assert not _runs(child)
    assert broken(candidate, "products_are_true").sentence == found.sentence
    assert not (tmp_path / "child").exists()


@pytest.mark.parametrize("sleeps", [
    "sleep 600 & echo $! > {0}/child", "setsid sh -c 'echo $$ > {0}/child; exec sleep 600' &",
    "(setsid setsid -f sh -c 'echo $$ > {0}/child; sleep 600' &)"])
def test_program_that_ends_leaves_no_children_running(tmp_path: Path, sleeps: str) -> None:
    wait = f"while ! [ -s {tmp_path}/child ]; do sleep 0.01; done"
    candidate = offered(tmp_path, f"{sleeps.format(tmp_path)}\n{wait}\nexit 3")
    assert " exited 3 at the call " in broken(candidate, "rows_equal_alone").sentence
    child = int((tmp_path / "child").read_text())
    for _ in range(100):
        if not _runs(child):
            break
        time.sleep(0.05)
    assert not _runs(child)


@pytest.mark.parametrize("error", [RecursionError, PermissionError])
def test_folder_that_cannot_be_removed_is_no_verdict(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    whole = tempfile.TemporaryDirectory.cleanup

    def cleanup(folder: tempfile.TemporaryDirectory[str]) -> None:
        whole(folder)
        raise error

    monkeypatch.setattr(tempfile.TemporaryDirectory, "cleanup", cleanup)
    assert " exited 3 at the call " in broken(offered(tmp_path, "exit 3"),
                                              "rows_equal_alone").sentence


@pytest.mark.parametrize("does", ["rm -f words; mkfifo words", "rm -rf *"])
def test_program_that_spoils_its_folder_is_a_verdict_on_its_end(tmp_path: Path, does: str) -> None:
    script = f'cd "$2/.."; {does}\nexit 1'
    found = broken(offered(tmp_path, script), "rows_equal_alone")
    assert " exited 1 at the call " in found.sentence


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def saying(key: str, value: str) -> str:
    """Return a shell program that answers every call with one word of metadata."""
    answer = f'{{"__metadata__":{{"{key}":"{value}"}}}}'
    prefix = "".join(f"\\{byte:03o}" for byte in len(answer).to_bytes(8, "little"))
    return f"for f in $1/*; do printf '{prefix}%s' '{answer}' > $2/${{f##*/}}; done"


def test_program_that_declines_is_counted_so(tmp_path: Path) -> None:
    candidate = offered(tmp_path, saying("declined", "only Q9"))
    one = case("rows_equal_alone", "vectors-Q4_K-k256")
    with pytest.raises(Declined, match="only Q9"):
        rowtwin.phase_bank("p3").falsifiers["rows_equal_alone"](
            case=one, subject=Subject("c", models=rowtwin.load_model, candidate=candidate),
            judge=Judge(one))


def test_program_that_cannot_be_started_is_a_verdict(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.write_text("#!/no/such/interpreter\n")
    path.chmod(0o755)
    found = broken(candidates.load_candidate(f"cmd:{path}"), "rows_equal_alone")
    assert found.sentence == f"{path} cannot be run: No such file or directory"


def test_arithmetic_is_what_the_first_answer_declares(tmp_path: Path) -> None:
    assert offered(tmp_path, saying("arithmetic", "exact-23")).arithmetic == "exact-23"
    with pytest.raises(SuiteError, match="ARITHMETIC is 'exact-', but should be"):
        candidates.load_candidate(
            "cmd:" + shlex.join(["sh", "-c", saying("arithmetic", "exact-"), "x"])
        )


@pytest.mark.parametrize(("spec", "sentence"), [
    ("cmd:/no/such/program", "there is no program '/no/such/program' to run"),
    ("cmd:'unclosed", "cannot be split into words: No closing quotation"),
    ("cmd:''", "there is no program '' to run"), ("cmd: ", "names no program"),
    ("cmd:", "unknown candidate 'cmd:'"), ("cmd:a\udcff", "a path that is not UTF-8"),
    ("vectors:/no/such", "is not a directory of vectors"),
    ("server:http://127.0.0.1:1", r"judged from outside, over its API: rowtwin witness http://127")])
def test_candidate_that_cannot_be_asked_is_refused(spec: str, sentence: str) -> None:
    with pytest.raises(SuiteError, match=sentence):
        candidates.check_spec(spec)


def test_program_beside_its_caller_is_found_from_where_it_runs(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.sh").write_text(saying("arithmetic", "exact-23"))
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


def test_directory_tells_which_phase_it_answers(tmp_path: Path) -> None:
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
    assert [one.id for one in cases] == [one.id for one in rowtwin.phase_vectors("3").cases]
    assert {one.repro for one in cases} == {"rowtwin gate --phase 3"}
    assert select_vector_cases(None, GateRequest(("p3",)), {}) is None
