"""Claims: only what passed on this code counts as shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rowtwin
from contracts.schema import Case
from falsifiers.gate import receipts, runner
from falsifiers.gate.receipts import Receipt
from falsifiers.meta.console.command import Main, make_main
from reports import artefacts, claims, fake_evidence
from reports.claims import Claim, Proof
from reports.render import page

CONTRACTS = {"p1": fake_evidence.contract()}
CASES = list(CONTRACTS["p1"].expand())


def make_claim(outcomes: dict[int, tuple[str, bool]]) -> Claim:
    """Return the claim of `nano` at m 1, 2 and 3, when its cases ended so, on this code or not."""
    proofs = {CASES[n].id: Proof(outcome, fresh, "a run") for n, (outcome, fresh) in
              outcomes.items()}
    line = claims.group_claims(CONTRACTS, proofs)[0]
    assert (line.phase, line.mode, line.type) == ("p1", "", "nano")
    return line.claims["cpu"]


@pytest.mark.parametrize(("outcomes", "summary"), [
    ({}, "not shown, 0 of 3, m 1-3"),
    ({0: ("passed", True), 1: ("passed", True), 2: ("passed", True)}, "shown, 3 of 3, m 1-3"),
    ({0: ("passed", True)}, "in part, 1 of 3, m 1; not m 2, 3"),
    ({0: ("passed", False), 1: ("failed", False)}, "stale, 1 of 3, m 1-3"),
    ({0: ("passed", True), 1: ("failed", True), 2: ("error", True)},
     "broken, 2 of 3, m 1; not m 2, 3"),
    ({0: ("declined", True), 1: ("unmeasurable", True)}, "not shown, 0 of 3, m 1-3"),
    (dict.fromkeys(range(3), ("declined", True)), "declined, 3 of 3, m 1-3")])
def test_claim_is_summarised(outcomes: dict[int, tuple[str, bool]], summary: str) -> None:
    assert make_claim(outcomes).summary == summary


def test_result_of_older_code_names_it() -> None:
    assert make_claim({0: ("passed", False)}).by == ("a run, of older code",)


def write_receipt(tmp_path: Path, outcome: str, digest: str) -> None:
    folder = tmp_path / receipts.FOLDER / "a-device"
    folder.mkdir(parents=True)
    (folder / "p1.json").write_text(Receipt(
        phase="p1", device="A device", measured="2026-01-30", versions={}, digest=digest,
        verdicts=(fake_evidence.verdict(CASES[0], outcome),)).model_dump_json())


@pytest.mark.parametrize(("here", "stored", "digest", "expected"), [
    ("passed", "failed", "now", ("failed", True)), ("failed", "passed", "now", ("failed", True)),
    ("passed", "failed", "old", ("passed", True)), ("failed", "passed", "old", ("failed", True)),
    ("declined", "passed", "now", ("passed", True)),
    ("unmeasurable", "passed", "old", ("passed", False))])
def test_failure_on_this_code_outweighs_every_other_result(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: str, stored: str, digest: str,
        expected: tuple[str, bool]) -> None:
    monkeypatch.setattr(receipts, "phase_digest", lambda contract, root: "now")
    write_receipt(tmp_path, stored, digest)
    proof = claims.collect_proofs(CONTRACTS, [fake_evidence.verdict(CASES[0], here)], tmp_path)[
        CASES[0].id
    ]
    assert (proof.outcome, proof.fresh) == expected


def test_receipts_prove_nothing_of_a_candidate(tmp_path: Path) -> None:
    write_receipt(tmp_path, "passed", "now")
    assert claims.collect_proofs(CONTRACTS, [], tmp_path, tree=False) == {}


@pytest.mark.parametrize(("given", "widths", "kind", "mode"), [
    ({"m": [1, 16], "kind": "Q4_K", "arithmetic": "ordered"}, [1, 16], "Q4_K", "ordered"),
    ({"c": 4, "kind": "eos", "model": "nano"}, [4], "nano", ""),
    ({"m": True, "width": 8, "kernel": "fast", "op": "conv_step"}, [8], "", "conv_step fast"),
    ({}, [], "", "")])
def test_case_says_what_it_claims(given: dict[str, Any], widths: list[int], kind: str,
                                  mode: str) -> None:
    case = Case(phase="p1", falsifier="f", tier="cpu", name="n", given=given, quick=True,
                must_claim=True)
    assert (list(claims.widths_of(case)), claims.type_of(case), claims.mode_of(case)) == (
        widths, kind, mode)


@pytest.mark.parametrize(("numbers", "text"), [
    ([], ""), ([3], "3"), ([2, 1], "1, 2"), ([1, 2, 3, 5, 5, 8, 9], "1-3, 5, 8, 9")])
def test_numbers_are_printed_as_ranges(numbers: list[int], text: str) -> None:
    assert claims.format_ranges(numbers) == text


def test_digest_of_the_code_sees_a_source_and_no_receipt(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "a.py").write_text("x = 1\n")
    before = claims.code_digest(tmp_path)
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "a.py").write_text("")
    assert claims.code_digest(tmp_path) == before
    (tmp_path / "engine" / "b.cu").write_text("")
    assert claims.code_digest(tmp_path) != before


def test_page_shows_every_claim() -> None:
    lines = claims.group_claims(CONTRACTS, {CASES[0].id: Proof("passed", True, "this run")})
    text = page(fake_evidence.evidence(claims=lines))
    assert "<b>cpu</b> 1 of 7 shown." in " ".join(text.split())
    assert "not shown: 2, 3" in text


@pytest.fixture
def run_claims(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    monkeypatch.setattr(runner, "contracts_by_phase", lambda: CONTRACTS)
    monkeypatch.setattr(claims, "code_digest", lambda root: "code")
    monkeypatch.setattr(artefacts, "page", lambda evidence: "")

    return make_main(rowtwin.main, monkeypatch, capsys, "claims")


@pytest.mark.parametrize(
    ("evidence", "code", "words"),
    [
        (fake_evidence.evidence(code="code", subject="in-tree"), 0, "shown, 3 of 3, m 1-3"),
        (fake_evidence.evidence(code="other", subject="in-tree"), 2, "stale, 3 of 3, m 1-3"),
        (
            fake_evidence.evidence(fake_evidence.MIXED_OUTCOMES, code="code", subject="in-tree"),
            1,
            "broken, 3 of 3, m 1-3",
        ),
    ],
)
def test_command_takes_a_report_at_its_word_about_its_own_code(
    run_claims: Main, tmp_path: Path, evidence: Any, code: int, words: str
) -> None:
    artefacts.write_report(tmp_path, evidence)
    got, out, _ = run_claims("--report", str(tmp_path))
    assert got == code
    assert words in out


def test_command_says_how_to_show_more(run_claims: Main) -> None:
    code, out, _ = run_claims()
    assert (code, "cpu: 0 of 7 cases are shown" in out) == (2, True)
    assert "rowtwin report --thorough" in out
    assert len(json.loads(run_claims("--json", "--open")[1])) == 3


def test_report_of_a_candidate_is_refused(run_claims: Main, tmp_path: Path) -> None:
    artefacts.write_report(tmp_path, fake_evidence.evidence(subject="file:mine.py"))
    code, out, err = run_claims("--report", str(tmp_path))
    assert (code, out) == (2, "")
    assert err.startswith(f"rowtwin: {tmp_path}: judged file:mine.py; pass a report of this tree")
