"""The exit codes of `rowtwin gate --case ID --bisect`, and a `git bisect run` with them.

In a quick run `git bisect run` asks this process for exit codes, where a function replaces pytest,
which would import torch for every commit. With --thorough the command itself runs.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import rowtwin
from contracts.load import ContractError
from contracts.schema import Contract
from falsifiers.console.cli_app import SKIP, STOP
from falsifiers.gate import runner
from falsifiers.gate.candidates import load_candidate
from falsifiers.gate.phase_status import judge_phase
from falsifiers.gate.pytest_plugin import THOROUGH
from falsifiers.gate.runner import GateRequest, GateResult, PytestRun
from falsifiers.judging.errors import ParityBroken, SuiteError
from falsifiers.meta.judging.factories import FINDING, judged_verdict

CASE = "p3/rows_equal_alone[cpu-exact-23-Q4_K-k256]"
COMMITS, FIRST_BAD = 30, 11
UNBUILDABLE = (14, 9)
"""The middle of the history, where the search starts, and a commit on its way."""
DAY = "2026-01-01T00:00:00Z"
"""The day of every commit: after a skip, git picks the next commit by its id."""
RIGHT = """\
from phases.p3_row_twin.increment import gemv_rows as right

ARITHMETIC = "exact-23"


def gemv_rows(weight, x, out):
    right(weight, x, out)
"""
WRONG = f"{RIGHT}    out[1:] += 1  # rows other than the first\n"
BROKEN = {14: "def gemv_rows(weight, x, out:\n", 9: f"import a_module_that_is_not_there\n{RIGHT}"}
ASK = 'echo ask > "$0"; read code < "$1"; exit "$code"'


def git(folder: Path, *argv: str) -> str:
    """Run git in a folder with only these settings."""
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1",
           "PYTHONPATH": str(rowtwin.ROOT), "PYTHONDONTWRITEBYTECODE": "1",
           "GIT_AUTHOR_DATE": DAY, "GIT_COMMITTER_DATE": DAY}
    return subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *argv], cwd=folder,
                          env=env, capture_output=True, text=True, check=True).stdout


def history(folder: Path) -> list[str]:
    """Commit versions of a candidate to a new repository; return ids, the oldest first."""
    git(folder, "init", "-q")
    for number in range(COMMITS):
        text = BROKEN.get(number, WRONG if number >= FIRST_BAD else RIGHT)
        (folder / "mine.py").write_text(f"{text}# commit {number}\n")
        git(folder, "add", "mine.py")
        git(folder, "commit", "-q", "-m", f"commit {number}")
    return git(folder, "rev-list", "--reverse", "HEAD").split()


@pytest.fixture(scope="module")
def contracts() -> dict[str, Contract]:
    """Return the contracts, loaded once."""
    return runner.contracts_by_phase()


@pytest.fixture
def main(contracts: dict[str, Contract], monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Return a function that runs the command line and returns its exit code."""
    monkeypatch.setattr(runner, "contracts_by_phase", lambda: contracts)

    def run(*argv: str) -> int:
        monkeypatch.setattr(sys, "argv", ["rowtwin", *argv])
        with pytest.raises(SystemExit) as end:
            rowtwin.main()
        return int(end.value.code or 0)

    return run


def judged(wanted: GateRequest, **options: Any) -> GateResult:
    """Judge a candidate by loading it and by its source, instead of running pytest."""
    assert wanted.candidate is not None
    assert wanted.case is not None
    outcome: Any = "passed"
    try:
        load_candidate(wanted.candidate)
        if WRONG.splitlines()[-1] in Path("mine.py").read_text():
            raise ParityBroken(FINDING)
    except ParityBroken:
        outcome = "failed"
    except Exception:
        outcome = "error"
    book = [judged_verdict("a", outcome, phase="p3", falsifier="rows_equal_alone")]
    return GateResult([judge_phase("p3", book)], PytestRun(book))


def run_git_bisect(folder: Path, argv: Sequence[str], answer: Callable[[], int] | None) -> str:
    """Run `git bisect run` with a command, or with `answer` for each exit code."""
    if answer is None:
        return git(folder, "bisect", "run", *argv)
    ask, reply = folder / ".git" / "ask", folder / ".git" / "reply"
    for fifo in (ask, reply):
        os.mkfifo(fifo)
    reader = os.open(ask, os.O_RDWR)
    running = subprocess.Popen(["git", "bisect", "run", "sh", "-c", ASK, str(ask), str(reply)],
                               cwd=folder, stdout=subprocess.PIPE, text=True)
    while running.poll() is None:
        if select.select([reader], [], [], 0.05)[0]:
            os.read(reader, 64)
            reply.write_text(f"{answer()}\n")
    os.close(reader)
    assert running.stdout is not None
    with running.stdout as out:
        return out.read()


def test_first_bad_commit_is_found_past_two_that_cannot_be_built(
        tmp_path: Path, request: pytest.FixtureRequest, main: Callable[..., int],
        monkeypatch: pytest.MonkeyPatch) -> None:
    commits = history(tmp_path)
    monkeypatch.chdir(tmp_path)
    git(tmp_path, "bisect", "start", commits[-1], commits[0])
    argv = ["gate", "--case", CASE, "--candidate", "file:mine.py", "--bisect"]
    answer = None
    if not request.config.getoption(THOROUGH):
        monkeypatch.setattr(runner, "run_gate", judged)
        answer = lambda: main(*argv)  # noqa: E731
    command = [sys.executable, str(rowtwin.ROOT / "rowtwin.py"), *argv]
    output = run_git_bisect(tmp_path, command, answer)
    log = git(tmp_path, "bisect", "log")
    marks = {number: [word for word in ("good", "bad", "skip")
                      if f"{word}: [{commits[number]}]" in log] for number in UNBUILDABLE}
    assert marks[UNBUILDABLE[0]] == ["skip"], log
    assert marks[UNBUILDABLE[1]] in (["skip"], []), log  # git may not visit it
    assert f"{commits[FIRST_BAD]} is the first bad commit" in output, output + log


@pytest.mark.parametrize(("outcome", "code"), [
    ("passed", 0), ("failed", 1), ("error", SKIP), ("declined", SKIP), ("unmeasurable", SKIP),
    (SuiteError("it is broken"), SKIP), (ContractError("it is broken"), SKIP),
    (ImportError("no module is there"), SKIP), (SyntaxError("a bracket is open"), SKIP),
    (KeyboardInterrupt(), STOP)])
def test_only_a_verdict_makes_a_commit_good_or_bad(
        main: Callable[..., int], monkeypatch: pytest.MonkeyPatch, outcome: Any,
        code: int) -> None:
    def run(wanted: GateRequest, **options: Any) -> GateResult:
        if isinstance(outcome, BaseException):
            raise outcome
        book = [judged_verdict("a", outcome, phase="p3", falsifier="rows_equal_alone")]
        return GateResult([judge_phase("p3", book)], PytestRun(book))

    monkeypatch.setattr(runner, "run_gate", run)
    assert main("gate", "--case", CASE, "--bisect") == code


@pytest.mark.parametrize("argv", [
    ("gate", "--case", "p3/nothing[cpu-a]", "--bisect"), ("gate", "--phase", "3", "--bisect"),
    ("gate", "--case", CASE, "--nothing", "--bisect"), ("nothing", "--bisect"),
    ("gate", "--case", CASE, "--candidate", "file:nothing.py", "--bisect")])
def test_bad_usage_skips_a_commit(
        main: Callable[..., int], argv: Sequence[str]) -> None:
    assert main(*argv) == SKIP


def test_failed_import_skips_a_commit(
        main: Callable[..., int], monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "falsifiers.gate.runner", None)
    assert main("gate", "--case", CASE, "--bisect") == SKIP
    assert "falsifiers.gate.runner" in capsys.readouterr().err
