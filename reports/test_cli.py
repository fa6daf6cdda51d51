"""The command: a mistake ends in one sentence and exit code 2, and help answers at once."""

from __future__ import annotations

from pathlib import Path

import pytest

import rowtwin
from engine.testmodels import model_path
from falsifiers.meta.console.command import Main, make_main
from reports.user_model import judge_model


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    """Return a function that runs the command: exit code, stdout, stderr."""
    monkeypatch.chdir(rowtwin.ROOT)
    return make_main(rowtwin.main, monkeypatch, capsys, "report")


def test_help_names_an_example_and_every_option(report: Main) -> None:
    code, out, _ = report("--help")
    assert code == 0
    for words in ("Example: rowtwin report", "--out", "--thorough", "--device", "--candidate",
                  "--model", "--minutes"):
        assert words in out


@pytest.mark.parametrize(("words", "sentence"), [
    (["--minutes", "0"], "--minutes 0 is refused"),
    (["--device", "gpu"], "unknown device 'gpu'"),
    (["--candidate", "mine"], "unknown candidate 'mine'"),
    (["--model", "/nowhere/x.gguf"], "/nowhere/x.gguf"),
    (["--out", "rowtwin.py"], "--out rowtwin.py: cannot be written")])
def test_mistake_ends_in_one_sentence(report: Main, words: list[str], sentence: str,
                                      tmp_path: Path) -> None:
    code, _, err = report(*words, *([] if "--out" in words else ["--out", tmp_path]))
    assert code == 2
    assert err.startswith("rowtwin: ")
    assert sentence in err
    assert err.count("\n") == 1


def test_own_file_is_judged_on_the_newest_path() -> None:
    run = judge_model(rowtwin.open_model(str(model_path("nano"))), 5, "in-tree", print,
                      lambda what: None)
    assert run.result.verdict == "PASS"
    assert len(run.verdicts) == 16
    assert {v.falsifier for v in run.verdicts} == {
        "alone_equals_oracle", "products_equal_integer_arithmetic", "streams_equal_solo"}
