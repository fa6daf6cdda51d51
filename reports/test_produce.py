"""Making a report: what is judged, what is set aside, and that nothing lost goes unseen."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from contracts.schema import Contract
from falsifiers.gate import phase_status, runner, tiers
from falsifiers.gate.runner import GateRequest, GateResult, PytestRun
from falsifiers.judging.errors import SuiteError
from falsifiers.judging.matrix import Bank
from falsifiers.mutation.mutant_runner import run_mutants
from reports import fake_evidence, produce, speeds
from reports.fake_bank import bank_of
from reports.produce import ReportOptions

CPU = tiers.TierSelection(("cpu",), {}, {})


@pytest.fixture
def tree(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A fake checkout of P1, whose gate leaves the verdicts in `tree["verdicts"]`."""
    fake_contract = fake_evidence.contract()
    tree: dict[str, Any] = {
        "verdicts": [fake_evidence.verdict(case) for case in fake_contract.expand()]}

    def run_gate(wanted: GateRequest, **options: Any) -> GateResult:
        tree["wanted"] = wanted
        for verdict in tree["verdicts"]:
            options["on_verdict"](verdict)
        result = phase_status.judge_phase("p1", tree["verdicts"], fake_contract.expand())
        return GateResult([result], PytestRun(tree["verdicts"]))

    monkeypatch.setattr(runner, "contracts_by_phase", lambda: {"p1": fake_contract})
    monkeypatch.setattr(runner, "is_built", lambda contract, root: contract is not None)
    monkeypatch.setattr(runner, "run_gate", run_gate)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    monkeypatch.setattr(
        speeds, "load_benchmarks", lambda root, contracts: ()
    )  # pictures that take a while
    return tree


def test_report_writes_its_files_and_exits_as_the_gate_does(
        tree: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ReportOptions(tmp_path, device="cpu", thorough=True)
    assert produce.make_report(options, bank_of, None) == 0
    assert (tree["wanted"].phases, tree["wanted"].thorough) == (("p1",), True)
    assert "✓ PASS" in (tmp_path / "index.html").read_text()
    rows = json.loads((tmp_path / "mutants.json").read_text())["mutants"]
    assert {row["name"]: row["rung"] for row in rows} == {"wrong": "law", "unseen": None}
    out, err = capsys.readouterr()
    assert f"{tmp_path}/index.html" in out
    assert err == ""  # no progress for somebody who is no terminal


def test_mutants_are_not_tried_when_they_are_not_wanted(tree: dict[str, Any],
                                                        tmp_path: Path) -> None:
    assert (
        produce.make_report(ReportOptions(tmp_path, device="cpu", mutants=False), bank_of, None)
        == 0
    )
    assert json.loads((tmp_path / "mutants.json").read_text())["mutants"] == []
    assert "none tried" in (tmp_path / "index.html").read_text()


def test_phases_that_were_not_named_are_set_aside(tree: dict[str, Any], tmp_path: Path,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    both = {"p1": fake_evidence.contract(), "p3": fake_evidence.contract("p3")}
    monkeypatch.setattr(runner, "contracts_by_phase", lambda: both)
    options = ReportOptions(tmp_path, device="cpu", mutants=False, phases=("p1",))
    assert produce.make_report(options, bank_of, None) == 0
    assert tree["wanted"].phases == ("p1",)
    text = (tmp_path / "index.html").read_text()
    assert "Yes, in the requested phases: P1 passes." in text
    assert "it was not requested" in text
    with pytest.raises(SuiteError, match="phase p4 is not built"):
        produce.make_report(ReportOptions(tmp_path, phases=("p4",)), bank_of, None)


def test_case_that_left_no_verdict_is_told_as_an_error_with_its_repro(
        tree: dict[str, Any], tmp_path: Path) -> None:
    gone = tree["verdicts"].pop()
    assert produce.make_report(ReportOptions(tmp_path, device="cpu"), bank_of, None) == 2
    page = (tmp_path / "index.html").read_text()
    assert f"{gone.case}" in page
    assert "it left no verdict" in page
    assert "test_slots_hold[cpu-all]" in page


def test_failure_ends_in_exit_code_one(tree: dict[str, Any], tmp_path: Path) -> None:
    fake_contract = fake_evidence.contract()
    tree["verdicts"] = [fake_evidence.verdict(case, "failed") for case in fake_contract.expand()]
    assert produce.make_report(ReportOptions(tmp_path, device="cpu"), bank_of, None) == 1


@pytest.mark.parametrize("minutes", [0, -1, float("nan"), float("inf")])
def test_time_that_is_none_is_refused(minutes: float, tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"--minutes .* is refused"):
        produce.make_report(ReportOptions(tmp_path, minutes=minutes), bank_of, None)


def find_not_judged(tmp_path: Path, text: str, **ops: tuple[str, ...]) -> dict[str, str]:
    file = tmp_path / "mine.py"
    file.write_text(text)
    contracts: dict[str, Contract] = {
        phase: fake_evidence.contract(phase).model_copy(update={"ops": names})
        for phase, names in ops.items()}
    return produce.phases_not_judged(f"file:{file}", tuple(ops), contracts)


def test_candidate_is_judged_only_in_its_phases(tmp_path: Path) -> None:
    step = find_not_judged(
        tmp_path, "def step(): pass", engine=("step",), p0=(), p1=("step",), p3=("rows",)
    )
    assert list(step) == ["p0", "p3", "engine"]
    skipped = find_not_judged(tmp_path, "def engine(model): pass", p1=("step",), p3=("rows",))
    assert list(skipped) == ["p3"]


def test_candidate_without_any_part_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="has none of the functions that phases judge: "
                                         "engine, step"):
        find_not_judged(tmp_path, "x = 1", p0=(), p1=("step",))


@pytest.mark.parametrize("jobs", [1, 2])
def test_mutants_have_the_same_results_on_one_and_two_processes(jobs: int) -> None:
    names: list[str] = []
    bank = bank_of("p1").on(CPU.run)
    kills = run_mutants([bank], bank_of, CPU, jobs=jobs,
                        on_result=lambda row: names.append(row.name))
    assert sorted(names) == ["unseen", "wrong"]
    assert [(row.name, row.killed_by) for row in kills.matrix.mutants] == \
        [("wrong", ("rows_hold",)), ("unseen", ())]
    assert kills.matrix.survivors == ("p1/unseen",)
    assert produce.mutant_sources([bank]) == {"p1/wrong": "B036"}


def test_mutant_whose_case_fails_without_it_too_is_told_as_such() -> None:
    def red(phase: str) -> Bank:
        bank = bank_of(phase)
        bank.subject_for = lambda case: bank.mutants[0].build(bank_of(phase).subject_for(case))
        return bank

    kills = run_mutants([red("p1")], red, CPU)
    assert "fails without a mutant too" in kills.inconclusive["p1/wrong"]
    assert kills.matrix.not_run == ("p1/wrong",)
    assert kills.matrix.survivors == ("p1/unseen",)  # of which the failing case says nothing
