"""The page of field faults: fake faults first, then the repository's page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import rowtwin
from contracts.load import load_contracts
from falsifiers.judging.errors import SuiteError
from falsifiers.judging.subject import Mutant
from falsifiers.mutation.field_faults import Fault, format_page, list_planted, load_faults

ROOT = rowtwin.ROOT
PAGE = ROOT / "docs" / "field-faults.md"
ENOUGH = 85
"""The least number of reproduced faults."""


def fault(number: int = 1, **more: str) -> Fault:
    return Fault(id=f"B{number:03}", link=f"https://github.com/some/project/issues/{number}",
                 phase="p1", fault="A row gets its neighbour's token.", **more)


def wrong(source: str = "B001", device: str = "cpu") -> tuple[str, Mutant]:
    return "p1", Mutant("odd_row", "Row 1 is read from row 0.", ("rows_hold", "rows_stay"),
                        lambda subject: subject, source, device)


def real() -> list[tuple[str, Mutant]]:
    return list_planted(rowtwin.phase_bank(phase) for phase in load_contracts(ROOT / "contracts"))


def test_line_names_the_report_the_mutant_and_its_killers() -> None:
    page = format_page([fault(), fault(2, why_not="No such thing is here.")], [wrong(), wrong("")])
    assert "- **B001** [some/project#1](https://github.com/some/project/issues/1): A row " in page
    assert "  - planted as `p1/odd_row`, killed by `rows_hold`, `rows_stay`\n" in page
    assert "  Not applicable: No such thing is here.\n" in page
    assert "Of 2 faults 1 are planted, 0 of them by a stand-in, and 1 are not applicable." in page


def test_line_has_a_stand_in_and_a_device() -> None:
    page = format_page([fault(stand_in="A list stands in for the queue.")], [wrong(device="cuda")])
    assert "issues/1): A row gets its neighbour's token.\n  A list stands in for" in page
    assert "`p1/odd_row`, *device*, killed by" in page
    assert "1 of them by a stand-in" in page


@pytest.mark.parametrize(("faults", "mutants", "why"), [
    ([fault()], [], "B001 has no mutant: add one, or a why_not to"),
    ([fault(why_not="It cannot be.")], [wrong()], "B001 has a mutant: remove its why_not"),
    ([fault(stand_in="A list.", why_not="It cannot be.")], [],
     "B001 has no mutant: remove its stand_in"),
    ([fault()], [wrong(), wrong("B002")], "p1/odd_row names fault B002, which is not in")])
def test_page_is_refused_where_data_and_mutants_disagree(
        faults: list[Fault], mutants: list[tuple[str, Mutant]], why: str) -> None:
    with pytest.raises(SuiteError, match=why):
        format_page(faults, mutants)


ROW = ("- {id: B001, link: https://github.com/some/project/pull/1, phase: p1, "
       "fault: A row is lost.}\n")


@pytest.mark.parametrize(("text", "why"), [
    (ROW + ROW, "B001 twice"), ("- {", "not a list of faults"), ("7", "not a list of faults"),
    (ROW.replace("B001", "7"), r"\(0, 'id'\)"), (ROW.replace("lost.", "lost"), r"\(0, 'fault'\)"),
    (ROW.replace("https", "http"), r"\(0, 'link'\)"), (ROW.replace("p1", "p9"), "phase"),
    (ROW.replace("fault:", "falt:"), "Field required")])
def test_broken_file_is_refused_in_a_sentence(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "odd.yaml").write_text(text)
    with pytest.raises(SuiteError, match=why):
        load_faults(tmp_path / "odd.yaml")


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="No such file"):
        load_faults(tmp_path / "none.yaml")


def test_stored_page_is_the_generated_one() -> None:
    assert PAGE.read_text(encoding="utf-8") == format_page(load_faults(), real())


def test_every_fault_has_one_line_and_the_counts_are_right() -> None:
    text, faults = PAGE.read_text(encoding="utf-8"), load_faults()
    ids = re.findall(r"^- \*\*(B\d{3})\*\*", text, re.MULTILINE)
    assert sorted(ids) == sorted(fault.id for fault in faults)
    used = {mutant.source for _, mutant in real() if mutant.source}
    (counts,) = re.findall(r"^Of (\d+) faults (\d+) are planted", text, re.MULTILINE)
    assert counts == (str(len(faults)), str(len(used)))
    assert len(used) >= ENOUGH


def test_sources_are_listed_faults() -> None:
    assert {mutant.source for _, mutant in real()} - {""} <= {fault.id for fault in load_faults()}


def test_command_prints_only_the_page() -> None:
    result = CliRunner().invoke(rowtwin.app, ["mutants", "--faults"])
    assert (result.exit_code, result.stdout) == (0, PAGE.read_text(encoding="utf-8"))


def test_page_of_one_phase_is_refused() -> None:
    result = CliRunner().invoke(rowtwin.app, ["mutants", "--faults", "--phase", "1"])
    assert isinstance(result.exception, SuiteError)
    assert "remove --phase and --json" in str(result.exception)
