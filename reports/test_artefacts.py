"""The files of a report have the same verdicts, and no text breaks their format."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from falsifiers.gate import verdict_reporter
from falsifiers.judging.errors import SuiteError
from falsifiers.judging.matrix import KillMatrix
from reports import artefacts, fake_evidence
from reports.evidence import Evidence
from reports.junit import junit_xml
from reports.markdown import code_span, escape_text, format_brief

PAGES = {
    "green": fake_evidence.evidence(),
    "red": fake_evidence.failing_evidence(),
    "hostile": fake_evidence.failing_evidence(fake_evidence.HOSTILE_TEXT),
    "empty": fake_evidence.empty_evidence(),
}


@pytest.fixture(params=PAGES)
def evidence(request: pytest.FixtureRequest) -> Evidence:
    return PAGES[request.param]


def test_every_file_is_written_and_reads_back(evidence: Evidence, tmp_path: Path) -> None:
    folder = artefacts.prepare_folder(tmp_path / "a" / "b")
    artefacts.write_report(folder, evidence)
    assert {path.name for path in folder.iterdir()} == set(artefacts.FILE_NAMES)
    assert verdict_reporter.read_verdicts(folder / "verdicts.jsonl") == evidence.every_verdict
    matrix = KillMatrix.model_validate(json.loads((folder / "mutants.json").read_text()))
    assert matrix == evidence.kills.matrix


def test_older_report_does_not_outlive_a_run_that_dies(tmp_path: Path) -> None:
    artefacts.write_report(tmp_path, PAGES["green"])
    (tmp_path / "mine.txt").write_text("x")
    artefacts.prepare_folder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_folder_that_cannot_be_written_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SuiteError, match=r"--out .*file: cannot be written: \w+"):
        artefacts.prepare_folder(tmp_path / "file")


def test_name_that_is_no_unicode_is_written_escaped(tmp_path: Path) -> None:
    artefacts.write_report(tmp_path, fake_evidence.evidence(verdicts=[], command="rowtwin \udcff"))
    assert "rowtwin \\udcff" in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_junit_counts_agree_with_the_verdicts(evidence: Evidence) -> None:
    root = ElementTree.fromstring(junit_xml(evidence))
    cases = root.findall("testsuite/testcase")
    assert len(cases) == len(evidence.every_verdict)
    for tag, attribute, outcomes in (("failure", "failures", {"failed"}),
                                     ("error", "errors", {"error"}),
                                     ("skipped", "skipped", {"declined", "unmeasurable"})):
        count = sum(v.outcome in outcomes for v in evidence.every_verdict)
        assert len(root.findall(f"testsuite/testcase/{tag}")) == count
        assert sum(int(suite.attrib[attribute]) for suite in root) == count


def test_junit_failure_has_the_command_for_its_case() -> None:
    found = ElementTree.fromstring(junit_xml(PAGES["red"])).find("testsuite/testcase/failure")
    assert found is not None
    assert found.text is not None
    assert "run it: pytest 'p1/rows_hold[cpu-nano-m1]'" in found.text


def test_brief_has_under_sixty_lines_and_the_verdict(evidence: Evidence) -> None:
    lines = format_brief(evidence).splitlines()
    assert len(lines) < 60
    assert lines[0].split()[2].rstrip(":") in ("PASS", "FAIL", "UNMEASURABLE")
    assert sum(line.startswith("| p") for line in lines) == 10  # nine phases and the header


def test_brief_gives_each_failing_falsifier_its_diagnosis_and_repro() -> None:
    text = format_brief(PAGES["red"])
    for words in ("**p1 rows_hold**", "**p1 slots_hold**", "Likely: a plain word: look here ...",
                  "`pytest 'p1/rows_hold[cpu-nano-m1]' --candidate 'a plain word'`",
                  "Survived: `p1/copied`", "Killed none: `p1/slots_hold`"):
        assert words in text


def test_brief_lets_no_word_act_as_markup() -> None:
    lines = format_brief(PAGES["hostile"]).splitlines()
    assert len(lines) == len(format_brief(PAGES["red"]).splitlines())
    for line in lines:
        outside = line.split("`" * 2)[::2]  # the hostile word holds a backtick, so fences are two
        assert not any("<script" in part or "](b)" in part for part in outside)


@pytest.mark.parametrize(("text", "expected"), [
    ("a_b", "a_b"), ("_a_", "&#95;a&#95;"), ("<b>", "&#60;b&#62;"), ("a\nb", "a b"),
    ("[a](b)", "[a]&#40;b)"), ("a|b", "a&#124;b"), ("@all #1", "&#64;all &#35;1")])
def test_plain_text_is_shown_as_it_is(text: str, expected: str) -> None:
    assert escape_text(text) == expected


@pytest.mark.parametrize(("text", "expected"), [
    ("a", "`a`"), ("a`b", "`` a`b ``"), ("``", "``` `` ```"), ("a\nb", "`a b`")])
def test_code_span_holds_backticks(text: str, expected: str) -> None:
    assert code_span(text) == expected


def test_terminal_gets_verdicts_the_first_failures_and_the_place(tmp_path: Path) -> None:
    text = "\n".join(artefacts.summary_lines(tmp_path, PAGES["red"]))
    assert "p1     FAIL" in text
    assert "run it: pytest 'p1/rows_hold[cpu-nano-m1]'" in text
    assert text.endswith(f"{tmp_path}/index.html")
