"""The trace commands write and compare traces, and refuse bad usage in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rowtwin
from falsifiers.meta.console.command import Main, make_main


@pytest.fixture
def run_rowtwin(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    """Return a function that runs the command line: exit code, stdout, stderr."""
    return make_main(rowtwin.main, monkeypatch, capsys)


WRONG = '''
from engine import ops
def gates(a, b, decay, bias, g, beta):
    """Give every row after the first a beta of NaN."""
    ops.gates(a, b, decay, bias, g, beta)
    beta[1:] = float("nan")
'''
SMALL = ("--m", "2", "--steps", "2", "--prompt", "3")


def test_commands_write_traces_and_print_where_they_differ(
        tmp_path: Path, run_rowtwin: Main) -> None:
    (tmp_path / "mine.py").write_text(WRONG)
    one, two, page = (str(tmp_path / name) for name in ("one", "two", "map.html"))
    assert run_rowtwin("trace", "nano", "--out", one, "--phase", "5", "--candidate",
                f"file:{tmp_path}/mine.py", *SMALL)[0] == 0
    assert run_rowtwin("trace", "nano", "--out", two, "--alone", *SMALL)[0] == 0
    code, out, _ = run_rowtwin("bisect", "--trace", one, "--trace", two, "--html", page)
    assert code == 1
    assert "gates differs in its output, though its inputs agree [step 0, layer 0, slot " in out
    assert "gates differs in its output" in Path(page).read_text()
    code, out, _ = run_rowtwin("bisect", "--trace", one, "--trace", two, "--json")
    report = json.loads(out)
    assert (code, report["place"]["id"], report["place"]["layer"]) == (1, "0.gates", 0)
    assert {"step", "layer", "compared", "differ", "within"} == set(report["cells"][0])
    code, out, _ = run_rowtwin("bisect", "--trace", two, "--trace", two)
    assert (code, out.splitlines()[-1]) == (0, "no divergence")
    code, out, err = run_rowtwin("trace", "nano", "--out", one, *SMALL)
    assert (code, out) == (2, "")
    assert "is not empty: give a new or an empty folder" in err


def test_candidate_that_would_not_be_run_is_refused(tmp_path: Path, run_rowtwin: Main) -> None:
    code, out, err = run_rowtwin("trace", "nano", "--out", str(tmp_path / "out"), "--alone",
                          "--candidate", "file:mine.py", *SMALL)
    assert (code, out) == (2, "")
    assert err == ("rowtwin: --alone runs forward_single without --candidate: drop one of them\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("argv", "sentence"), [
    ([], "missing input: pass MODEL, --case ID, two --trace DIR, or --phase 0/2/7"),
    (["nano", "--trace", "a"], "--trace runs nothing, so it does not go with nano"),
    (["--trace", "a"], "pass --trace DIR twice, not 1 times"),
    (["nano", "--html", "a.html"], "need --trace A --trace B"),
    (["--trace", "a", "--trace", "b", "--cosine", "0.9"], "--cosine and --norm go together"),
    (["--trace", "a", "--trace", "b", "--cosine", "2", "--norm", "0"], "--cosine must be in (0, 1"),
    (["--trace", "a", "--trace", "b", "--html", "/"], "--html / exists and is not overwritten"),
    (["--trace", "/no/a", "--trace", "/no/b"], "/no/a is not a directory of a trace")])
def test_bad_usage_ends_in_one_sentence(run_rowtwin: Main, argv: list[str], sentence: str) -> None:
    code, out, err = run_rowtwin("bisect", "--m", "2", *argv)
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1
