"""The command: a mistake ends in one sentence and exit code 2, and help answers at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OWN = """\
import rowtwin
from engine.testmodels import path_of
from reports.own_model import judge_model
run = judge_model(rowtwin.open_model(str(path_of("nano"))), 5, "in-tree", print, lambda what: None)
print(run.result.verdict, sorted({v.falsifier for v in run.verdicts}), len(run.verdicts))
"""


def rowtwin(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "rowtwin.py", *words], cwd=ROOT, check=False,
                          capture_output=True, text=True)


def test_help_names_an_example_and_every_option() -> None:
    done = rowtwin("report", "--help")
    assert done.returncode == 0
    for words in ("Example: rowtwin report", "--out", "--thorough", "--device", "--candidate",
                  "--model", "--minutes"):
        assert words in done.stdout


@pytest.mark.parametrize(("words", "sentence"), [
    (["--minutes", "0"], "--minutes 0 is refused"),
    (["--device", "gpu"], "unknown device 'gpu'"),
    (["--candidate", "mine"], "unknown candidate 'mine'"),
    (["--model", "/nowhere/x.gguf"], "/nowhere/x.gguf"),
    (["--out", "rowtwin.py"], "--out rowtwin.py: cannot be written")])
def test_mistake_ends_in_one_sentence(words: list[str], sentence: str, tmp_path: Path) -> None:
    out = [] if "--out" in words else ["--out", str(tmp_path)]
    done = rowtwin("report", *words, *out)
    assert done.returncode == 2
    assert done.stderr.startswith("rowtwin: ")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_own_file_is_judged_on_the_newest_path() -> None:
    done = subprocess.run([sys.executable, "-c", OWN], cwd=ROOT, check=False, capture_output=True,
                          text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.stdout.splitlines()[-1:] == [
        "PASS ['alone_equals_oracle', 'products_equal_integer_arithmetic', 'streams_equal_solo'] "
        "16"], done.stderr
