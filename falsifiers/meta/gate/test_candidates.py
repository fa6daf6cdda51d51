"""Candidates: loading, declining a case, and errors in one sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import rowtwin
from falsifiers.gate import candidates
from falsifiers.gate.runner import contracts_by_phase
from falsifiers.judging.errors import Declined, SuiteError
from falsifiers.meta.judging.factories import make_case

COMPLETE = """\
ARITHMETIC = "exact-23"
io_dtype = "bf16"


def project(weight, x, out):
    return "mine"


def prepare(weight):
    return weight[::-1]


def supports(case):
    return None if case.name == "a" else "only a"
"""


def offer(folder: Path, text: str) -> candidates.Candidate:
    path = folder / "mine.py"
    path.write_text(text)
    return candidates.load_candidate(f"file:{path}")


def test_declarations_of_a_file_are_read(tmp_path: Path) -> None:
    mine = offer(tmp_path, COMPLETE)
    assert (mine.arithmetic, mine.bitwise, mine.io_dtype) == ("exact-23", True, "bf16")
    assert mine.prepare([1, 2]) == [2, 1]
    assert mine.project(None, None, None) == "mine"
    assert mine.op("project") is mine.project
    assert mine.op("attend") is None


@pytest.mark.parametrize(("phases", "has"), [
    (("engine",), False), (("p0",), False), (("engine", "p0"), False), (("p2", "p7"), False),
    (("p1",), True), (("engine", "p0", "p1"), True), (("p8",), True)])
def test_candidate_needs_a_phase_that_judges_candidates(phases: tuple[str, ...], *,
                                                      has: bool) -> None:
    if has:
        candidates.check_phases("file:mine.py", phases)
        return
    with pytest.raises(SuiteError, match=f"has no part in {', '.join(phases)}: candidates are"):
        candidates.check_phases("file:mine.py", phases)


def test_phase_that_judges_no_candidate_runs_with_the_repository_code() -> None:
    mine = "file:docs/examples/own_delta.py"
    for phase in ("engine", "p7"):
        subject = rowtwin.subject_for(next(contracts_by_phase()[phase].expand()), mine)
        assert (subject.name, subject.candidate) == ("in-tree", None)


def test_file_edited_within_a_second_is_compiled_again(tmp_path: Path,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    path = tmp_path / "mine.py"
    for text in ("1", "2"):
        path.write_text(f"SIZE = {text}\n")
        os.utime(path, (1e9, 1e9))  # same size and time as before, so a .pyc would be valid
        assert int(text) == candidates.load_candidate(f"file:{path}").SIZE


def test_missing_declarations_have_defaults(tmp_path: Path) -> None:
    mine = offer(tmp_path, "def project():\n    pass\n")
    assert (mine.arithmetic, mine.bitwise, mine.io_dtype) == ("own", False, None)
    assert mine.prepare([1, 2]) == [1, 2]
    mine.refuse(make_case())


@pytest.mark.parametrize(("arithmetic", "bitwise"), [
    ("ordered", True), ("exact-23", True), ("own", False)])
def test_only_declared_orders_are_compared_bitwise(tmp_path: Path, arithmetic: str,
                                                   bitwise: bool) -> None:
    assert offer(tmp_path, f"ARITHMETIC = {arithmetic!r}\n").bitwise is bitwise


@pytest.mark.parametrize("arithmetic", ["orderd", "exactly", "exact-", "tf32", "", None])
def test_unknown_arithmetic_is_refused(tmp_path: Path, arithmetic: str | None) -> None:
    with pytest.raises(SuiteError, match=f"ARITHMETIC is '{arithmetic}', but should be 'ordered'"):
        offer(tmp_path, f"ARITHMETIC = {arithmetic!r}\n")
    with pytest.raises(SuiteError, match="but should be 'ordered'"):  # computed while loading
        offer(tmp_path, f"ARITHMETIC = str({arithmetic!r})\n")


def test_candidate_declines_with_its_reason(tmp_path: Path) -> None:
    mine = offer(tmp_path, COMPLETE)
    mine.refuse(make_case("a"))
    with pytest.raises(Declined, match="only a"):
        mine.refuse(make_case("b"))


def test_supports_must_return_none_or_a_reason(tmp_path: Path) -> None:
    mine = offer(tmp_path, "def supports(case):\n    return False\n")
    with pytest.raises(SuiteError, match="returned False, but should return None or a reason"):
        mine.refuse(make_case())


def test_key_error_in_supports_declines_the_case(tmp_path: Path) -> None:
    mine = offer(tmp_path, "def supports(case):\n    return case.given['of a later case']\n")
    with pytest.raises(Declined, match="asks for 'of a later case', which the case does not have"):
        mine.refuse(make_case())


def test_candidate_without_the_phases_ops_is_refused(tmp_path: Path) -> None:
    mine = offer(tmp_path, COMPLETE)
    mine.must_offer(["project", "attend"])
    with pytest.raises(SuiteError, match="offers none of the functions"):
        mine.must_offer(["attend"])


def test_module_attribute_is_loaded() -> None:
    candidate = candidates.load_candidate("module:json.decoder.JSONDecoder")
    assert candidate.target.__name__ == "JSONDecoder"


@pytest.mark.parametrize(("spec", "sentence"), [
    ("mine", r"unknown candidate 'mine': give file:/abs/path.py, module:pkg.attr"),
    ("gpu:mine", "unknown candidate"), ("file:/no/such.py", "cannot be read"),
    ("module:no_such_module.x", "there is no module 'no_such_module'"),
    ("module:json.no_such_part", "cannot be loaded")])
def test_missing_candidate_is_named(spec: str, sentence: str) -> None:
    with pytest.raises(SuiteError, match=sentence):
        candidates.load_candidate(spec)


@pytest.mark.parametrize(("text", "sentence"), [
    ("def project(:\n", r"mine.py:1:"), ("import no_such_thing\n", "ModuleNotFoundError"),
    ("x = 1 / 0\n", "ZeroDivisionError"), ("\0", "mine.py:1:")])
def test_candidate_that_cannot_be_loaded_says_why(tmp_path: Path, text: str,
                                                  sentence: str) -> None:
    with pytest.raises(SuiteError, match=sentence):
        offer(tmp_path, text)


def test_relative_file_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert candidates.make_absolute("file:mine.py") == f"file:{tmp_path}/mine.py"
    assert candidates.make_absolute("module:a.b") == "module:a.b"
