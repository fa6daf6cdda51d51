"""The gate over pytest processes: a crash, no verdict or a contradiction never passes."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import falsifiers
from contracts.load import load_contract
from falsifiers.gate import receipts, tiers
from falsifiers.gate.pytest_plugin import select_cases
from falsifiers.gate.runner import (
    ROOT,
    GateRequest,
    contracts_by_phase,
    expected_cases,
    find_case,
    parse_phase,
    run_gate,
)
from falsifiers.judging.errors import SuiteError
from falsifiers.judging.verdict import Outcome
from falsifiers.meta.gate.fake_checkout import fake_case_row, write_checkout
from falsifiers.meta.judging.factories import judged_verdict, make_case

FAKE = """\
import sys

lines, code = {lines!r}, {code!r}
open(sys.argv[sys.argv.index("--verdicts") + 1], "w").write(lines)
print("a fake last word", *sys.argv)
if code == "killed":
    import os
    os.kill(os.getpid(), 9)
sys.exit(code)
"""


def gated(root: Path, *outcomes: Outcome, code: Any, cut: int | None = None, **wanted: Any) -> Any:
    """Run the gate over a fake pytest that writes these outcomes and exits with `code`."""
    if not (root / "contracts").exists():
        write_checkout(root, p1=[fake_case_row("a"), fake_case_row("b", must_claim=False)])
    lines = "".join(
        judged_verdict(name, outcome, case=f"p1/rows_hold[cpu-{name}]").model_dump_json() + "\n"
        for name, outcome in zip("ab", outcomes, strict=False))
    (root / "fake.py").write_text(FAKE.format(lines=lines[:cut], code=code))
    return run_gate(GateRequest(("p1",), root=root, device="cpu",
                           python=(sys.executable, "fake.py"), **wanted))


def test_verdicts_and_exit_code_that_agree_pass(tmp_path: Path) -> None:
    done = gated(tmp_path, "passed", "passed", code=0)
    assert [r.verdict for r in done.results] == ["PASS"]
    assert done.run.trouble == []
    assert "--thorough" not in done.run.output


@pytest.mark.parametrize(("outcomes", "code", "word", "why"), [
    (("passed", "failed"), 1, "FAIL", "1 case failed, the first is p1/rows_hold[cpu-b]"),
    (("passed", "passed"), 1, "UNMEASURABLE", "pytest exited 1, but its 2 verdicts require 0"),
    (("passed", "passed"), 3, "UNMEASURABLE", "pytest exited 3"),
    (("passed", "passed"), "killed", "UNMEASURABLE", "pytest was killed by signal 9"),
    (("passed", "failed"), 0, "FAIL", "pytest exited 0, but its 2 verdicts require 1"),
    (("passed", "error"), 0, "UNMEASURABLE", "but its 2 verdicts require 6"),
    (("passed",), 0, "UNMEASURABLE", "the first is p1/rows_hold[cpu-b]"),
    ((), 0, "UNMEASURABLE", "it left no verdict"),
    ((), 4, "UNMEASURABLE", "pytest exited 4, but it left no verdict")])
def test_incomplete_evidence_never_passes(
        tmp_path: Path, outcomes: tuple[Outcome, ...], code: Any, word: str, why: str) -> None:
    (result,) = gated(tmp_path, *outcomes, code=code).results
    assert result.verdict == word
    assert any(why in reason for reason in result.why), result.why


def test_truncated_verdict_never_passes(tmp_path: Path) -> None:
    done = gated(tmp_path, "passed", "passed", code=0, cut=-40)
    assert done.results[0].verdict == "UNMEASURABLE"
    assert any("is not a verdict" in trouble for trouble in done.run.trouble)
    assert "a fake last word" in done.run.output


def test_receipt_of_the_repository_does_not_apply_to_a_candidate(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipts, "device_proof", lambda contract, root: "fresh")
    assert gated(tmp_path, "passed", "passed", code=0).results[0].device_proof == "fresh"
    mine = tmp_path / "mine.py"
    mine.write_text("def step():\n    pass\n")
    done = gated(tmp_path, "passed", "passed", code=0, candidate=f"file:{mine}")
    assert done.results[0].device_proof == "none"


def test_phase_without_a_package_is_not_built(tmp_path: Path) -> None:
    write_checkout(tmp_path, p1=[fake_case_row("a")], p3=[fake_case_row("a")])
    (tmp_path / "phases/p3_made_up/test_falsifier.py").unlink()
    results = run_gate(GateRequest(("p3", "p4"), root=tmp_path)).results
    assert [(r.verdict, r.why) for r in results] == [("UNMEASURABLE", ("not built",))] * 2


def test_requested_tier_without_a_case_is_unmeasurable(tmp_path: Path) -> None:
    write_checkout(tmp_path, p1=[fake_case_row("a")])
    (result,) = run_gate(GateRequest(("p1",), root=tmp_path, device="interpret")).results
    assert (result.verdict, result.cases) == ("UNMEASURABLE", 0)


def test_real_pytest_and_its_workers_judge_a_ladder(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    passes, fails = fake_case_row("a"), fake_case_row("b", "break")
    root = write_checkout(tmp_path, engine=[passes], p0=[passes], p1=[passes, fails], p3=[passes])
    names: list[str] = []
    done = run_gate(GateRequest(("engine", "p0", "p1", "p3"), root=root, jobs=2), through=True,
                    on_verdict=lambda verdict: names.append(verdict.case))
    assert [r.verdict for r in done.results] == ["PASS", "PASS", "FAIL", "BLOCKED"]
    assert done.results[3].why == ("p1 did not pass",)
    assert len(names) == 5
    assert done.run.trouble == []
    assert "bringing up nodes" in done.run.output
    assert "row 1 differs from its single run" in done.run.output


def test_only_one_case_is_judged_whether_quick_or_not(tmp_path: Path) -> None:
    case = make_case("a", falsifier="rows_hold").model_copy(update={"quick": False})
    done = gated(tmp_path, "passed", code=0, case=case)
    assert [(r.verdict, r.cases) for r in done.results] == [("PASS", 1)]
    assert "phases/p1_made_up/test_falsifier.py::test_rows_hold[cpu-a]" in done.run.output
    assert "--thorough" in done.run.output


def test_process_that_dies_is_unmeasurable(tmp_path: Path,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    root = write_checkout(
        tmp_path, p1=[fake_case_row("a"), fake_case_row("b", "kill"), fake_case_row("c")]
    )
    (result,) = run_gate(GateRequest(("p1",), root=root)).results
    assert result.verdict == "UNMEASURABLE"
    assert result.passed == 1
    assert any("pytest exited 9" in why for why in result.why)


@pytest.mark.parametrize("spec", ["mine.py", "file:", "module:", "file:/no/such/file.py", ""])
def test_bad_candidate_is_refused_before_pytest_starts(tmp_path: Path, spec: str) -> None:
    write_checkout(tmp_path, p1=[fake_case_row("a")])
    with pytest.raises(SuiteError, match="candidate"):
        run_gate(GateRequest(("p1",), root=tmp_path, candidate=spec, python=("no-such-program",)))


def test_unknown_case_and_phase_are_named(tmp_path: Path) -> None:
    write_checkout(tmp_path, p1=[fake_case_row("nano-m3")])
    with pytest.raises(SuiteError, match=r"did you mean p1/rows_hold\[cpu-nano-m3\]"):
        find_case("p1/rows_hold[cpu-nano-m4]", contracts_by_phase(tmp_path))
    with pytest.raises(SuiteError, match="unknown phase '9'"):
        parse_phase("9")
    assert [parse_phase(p) for p in ("3", "p3", "engine")] == ["p3", "p3", "engine"]


def test_suite_is_one_call(tmp_path: Path) -> None:
    there = GateRequest(("p8",), root=write_checkout(tmp_path, p1=[fake_case_row("a")]))
    assert run_gate(there).results[0].why == ("not built",)
    with pytest.raises(SuiteError, match="unknown phase 'p12'"):
        falsifiers.run(phase="p12")


def test_cases_replace_those_of_the_contract(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    root = write_checkout(tmp_path, p1=[fake_case_row("a"), fake_case_row("b")])
    case = make_case("mine").model_copy(update={
        "falsifier": "rows_hold", "name": "mine", "given": {"does": "break"}, "repro": "do this"})
    done = run_gate(GateRequest(("p1",), root=root, device="cpu", cases=(case,)))
    (verdict,) = done.run.verdicts
    assert (verdict.case, verdict.outcome) == ("p1/rows_hold[cpu-mine]", "failed")
    assert verdict.repro == "do this --device cpu"
    assert (done.results[0].verdict, done.results[0].cases) == ("FAIL", 1)
    nothing = run_gate(GateRequest(("p1",), root=root, device="cpu", cases=()))
    assert (nothing.results[0].verdict, nothing.results[0].cases) == ("UNMEASURABLE", 0)


def test_file_without_cases_is_bad_usage(pytester: pytest.Pytester) -> None:
    write_checkout(pytester.path, p1=[fake_case_row("a")])
    Path("cases.json").write_text("[{}]")
    result = pytester.runpytest_inprocess("--cases", "cases.json")
    assert int(result.ret) == 4
    result.stderr.fnmatch_lines(["*cases.json: is not a list of cases*"])


@pytest.mark.parametrize(("rows", "device", "missing", "judged"), [
    ([fake_case_row("a")], "cuda", None, ["cpu-a"]),
    ([fake_case_row("a"), fake_case_row("b", tier="cuda")], "cuda", None, ["cuda-b"]),
    ([fake_case_row("a"), fake_case_row("b", tier="cuda", quick=False)], "cuda", None, []),
    ([fake_case_row("a")], "cuda", "no CUDA device was found", []),
    ([fake_case_row("a"), fake_case_row("b", tier="cuda")], "auto", None, ["cpu-a", "cuda-b"]),
    ([fake_case_row("a")], "interpret", None, []),
    ([fake_case_row("a")], "emulate", "no CUDA device was found", ["cpu-a"]),
    ([fake_case_row("a")], "emulate", None, [])])
def test_phase_without_device_cases_is_judged_on_the_cpu(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]], device: str,
        missing: str | None, judged: list[str]) -> None:
    monkeypatch.setattr(tiers, "cuda_missing", lambda: missing)
    write_checkout(tmp_path, p1=rows)
    contract = load_contract(tmp_path / "contracts/p1.yaml")
    expected = expected_cases(GateRequest(("p1",), root=tmp_path), contract, device)
    selected = list(select_cases(contract, tiers.select_tiers(device), thorough=False))
    assert [f"{c.tier}-{c.name}" for c in expected] == judged
    assert selected == expected


def test_phase_without_a_case_names_the_absent_tier(tmp_path: Path) -> None:
    there = GateRequest(
        ("p1",), root=write_checkout(tmp_path, p1=[fake_case_row("a")]), device="interpret"
    )
    assert run_gate(there).results[0].why == ("no case passed",)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tiers, "emulate_missing", lambda: "no C++ compiler")
        result = run_gate(replace(there, device="emulate")).results[0]
    assert result.why == ("the emulate tier was requested, but no C++ compiler", "no case passed")
