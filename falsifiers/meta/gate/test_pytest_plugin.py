"""The plugin on fake phases: outcomes, NOT PROVEN, exit codes, messages and records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch  # noqa: F401  an inner run that imports torch first unloads it at its end

from falsifiers.gate import verdict_reporter
from falsifiers.judging.verdict import Verdict
from falsifiers.meta.gate.fake_checkout import fake_case_row, write_checkout

Pytester = pytest.Pytester


def run(pytester: Pytester, *args: str, **phases: Any) -> tuple[int, str, list[Verdict]]:
    """Run the plugin on a fake checkout; return exit code, output and verdicts."""
    write_checkout(pytester.path, **phases)
    result = pytester.runpytest_inprocess("--verdicts", "book.jsonl", *args)
    book = pytester.path / "book.jsonl"
    return (int(result.ret), result.stdout.str() + result.stderr.str(),
            verdict_reporter.read_verdicts(book) if book.exists() else [])


def test_cases_that_pass_leave_one_verdict_each(pytester: Pytester) -> None:
    code, out, verdicts = run(pytester, "-m", "phase1", p1=[fake_case_row("a"), fake_case_row("b")])
    assert code == 0
    assert "p1: PASS, 2 of 2 cases passed" in out
    assert [v.case for v in verdicts] == ["p1/rows_hold[cpu-a]", "p1/rows_hold[cpu-b]"]
    assert verdicts[0].repro == \
        "pytest 'phases/p1_made_up/test_falsifier.py::test_rows_hold[cpu-a]'"
    assert (verdicts[0].compared, verdicts[0].subject) == (1, "in-tree")


@pytest.mark.parametrize(("does", "outcome", "code"), [
    ("break", "failed", 1), ("decline", "declined", 6), ("cannot", "unmeasurable", 6),
    ("suite", "error", 6), ("crash", "error", 6), ("nothing", "error", 6), ("warn", "error", 6)])
def test_outcome_follows_from_what_a_case_did(pytester: Pytester, does: str, outcome: str,
                                              code: int) -> None:
    got, out, verdicts = run(pytester, p1=[fake_case_row("good"), fake_case_row("bad", does)])
    assert [v.outcome for v in verdicts] == ["passed", outcome]
    assert got == code
    assert ("NOT PROVEN" in out) == (code == 6)


def test_empty_candidate_is_refused(pytester: Pytester) -> None:
    code, out, verdicts = run(pytester, "--candidate=", p1=[fake_case_row("a")])
    assert (code, verdicts) == (4, [])
    assert "unknown candidate ''" in out


def test_fault_of_the_subject_is_a_failure_and_not_an_error(pytester: Pytester) -> None:
    code, out, (verdict,) = run(pytester, p1=[fake_case_row("bad", "fault")])
    assert code == 1
    assert verdict.finding is not None
    assert verdict.finding.rung == "crash"
    assert verdict.finding.sentence == "thread 3 writes [p1 rows_hold, cpu-bad]"
    assert verdict.finding.sentence in out
    assert "likely" not in out  # no values were compared


@pytest.mark.parametrize(("missing", "options", "ran", "lines"), [
    ("no compiler", (), 1, ("tests marked emulated are deselected: no compiler",
                            "tests marked long are deselected: use --thorough")),
    (None, ("--thorough",), 3, ())])
def test_tests_that_cannot_run_here_are_deselected_with_a_reason(
        pytester: Pytester, monkeypatch: pytest.MonkeyPatch, missing: str | None,
        options: tuple[str, ...], ran: int, lines: tuple[str, ...]) -> None:
    monkeypatch.setattr("falsifiers.gate.tiers.emulate_missing", lambda: missing)
    marks = "".join(f"@pytest.mark.{mark}\ndef test_{mark}():\n    pass\n\n"
                    for mark in ("emulated", "long"))
    pytester.makepyfile(test_marks=f"import pytest\n\n{marks}def test_plain():\n    pass\n")
    _, out, _ = run(pytester, "test_marks.py", *options, p1=[fake_case_row("a")])
    assert f"{ran} passed" in out
    assert [line.removeprefix("rowtwin: ") for line in out.splitlines()
            if "are deselected" in line] == list(lines)


@pytest.mark.parametrize("does", ["decline", "cannot"])
def test_case_that_need_not_be_claimed_may_be_declined(pytester: Pytester, does: str) -> None:
    code, out, _ = run(pytester, p1=[fake_case_row("good"),
                                     fake_case_row("odd", does, must_claim=False)])
    assert code == 0
    assert "p1: PASS, 1 of 2" in out


def test_all_skipped_is_not_proven(pytester: Pytester) -> None:
    code, out, _ = run(pytester, "-m", "phase1",
                       p1=[fake_case_row("a", "decline", must_claim=False),
                           fake_case_row("b", "cannot", must_claim=False)])
    assert code == 6
    assert "p1: NOT PROVEN, 0 of 2 cases passed; no case passed" in out


def test_phase_with_no_case_here_is_not_proven(pytester: Pytester) -> None:
    code, out, _ = run(
        pytester, "-m", "phase1", p1=[fake_case_row("a", tier="cuda")], p3=[fake_case_row("b")]
    )
    assert code == 6
    assert "p1: NOT PROVEN" in out
    assert "not run: 1 of tier cuda" in out


def test_phase_that_does_not_exist_is_not_proven(pytester: Pytester) -> None:
    assert run(pytester, "-m", "phase8", p1=[fake_case_row("a")])[0] == 6


def test_negated_phase_is_not_judged(pytester: Pytester) -> None:
    code, out, _ = run(
        pytester, "-m", "not phase3", p1=[fake_case_row("a")], p3=[fake_case_row("b", "break")]
    )
    assert code == 0
    assert "p3" not in out


def test_failure_outranks_not_proven(pytester: Pytester) -> None:
    code, out, _ = run(
        pytester, p1=[fake_case_row("a", "break")], p3=[fake_case_row("b", "decline")]
    )
    assert code == 1
    assert "p1: FAIL" in out
    assert "p3: NOT PROVEN" in out


def test_requested_tier_that_is_absent_is_unmeasurable(
        pytester: Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    code, _, verdicts = run(pytester, "--device", "cuda", p1=[fake_case_row("a", tier="cuda")])
    assert code == 6
    assert [v.outcome for v in verdicts] == ["unmeasurable"]
    assert "the cuda tier was requested, but" in str(verdicts[0].reason)


def test_failure_explains_what_broke_and_how_to_run_it_again(pytester: Pytester) -> None:
    _, out, verdicts = run(pytester, "--thorough", p1=[fake_case_row("a", "break", quick=False)])
    for line in ("row 1 differs from its single run [p1 rows_hold, cpu-a]",
                 "rule: law, broken at the rung: law", "attacked: rows of a batch",
                 "likely: a row depends on the batch around it",
                 "run it alone: pytest 'phases/p1_made_up/test_falsifier.py::test_rows_hold[cpu-a]'"
                 " --thorough"):
        assert line in out
    assert verdicts[0].finding is not None
    assert verdicts[0].finding.where == {"row": 1}


def test_repro_runs_only_the_case(pytester: Pytester) -> None:
    _, _, verdicts = run(pytester, p1=[fake_case_row("a", "break"), fake_case_row("b")])
    node = verdicts[0].repro.removeprefix("pytest ").strip("'")
    result = pytester.runpytest_inprocess(node)
    result.assert_outcomes(failed=1)


def test_thorough_adds_the_cases_that_are_not_quick(pytester: Pytester) -> None:
    _, _, quick = run(pytester, p1=[fake_case_row("a"), fake_case_row("b", quick=False)])
    pytester.runpytest_inprocess("--verdicts", "all.jsonl", "--thorough")
    assert len(quick) == 1
    assert len(verdict_reporter.read_verdicts(pytester.path / "all.jsonl")) == 2


@pytest.mark.parametrize(("renamed", "sentence"), [
    ("test_rows_held", "falsifier 'rows_hold' is in the contract but has no test"),
    ("test_rows_hold(case, subject, judge): ...\ndef test_more",
     "falsifier 'more' has a test but is not in the contract")], ids=["lost", "added"])
def test_file_and_contract_name_the_same_falsifiers(pytester: Pytester, renamed: str,
                                                    sentence: str) -> None:
    write_checkout(pytester.path, p1=[fake_case_row("a")])
    file = pytester.path / "phases/p1_made_up/test_falsifier.py"
    file.write_text(file.read_text().replace("test_rows_hold", renamed))
    result = pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert sentence in result.stdout.str()
    assert "Traceback" not in result.stdout.str()


def test_falsifier_file_without_a_contract_is_refused(pytester: Pytester) -> None:
    write_checkout(pytester.path, p1=[fake_case_row("a")])
    (pytester.path / "contracts/p1.yaml").unlink()
    result = pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert "no file in contracts/ names this package" in result.stdout.str()


def test_broken_contract_stops_the_run_in_one_sentence(pytester: Pytester) -> None:
    write_checkout(pytester.path, p1=[fake_case_row("a", quik=True)])
    result = pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "contracts/p1.yaml:" in result.stderr.str()
    assert "unknown key" in result.stderr.str()
    assert "Traceback" not in result.stderr.str()


def test_folder_sets_the_marker(pytester: Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(verdict_reporter.__file__).parents[2]))
    write_checkout(pytester.path, p1=[fake_case_row("a")], engine=[fake_case_row("b")])
    (pytester.path / "engine/test_more.py").write_text("def test_more():\n    assert 1 + 1 == 2\n")
    # in a new process, since this one may have imported engine.test_falsifier
    pytester.runpytest_subprocess("-m", "engine").assert_outcomes(passed=2, deselected=1)
    pytester.runpytest_subprocess("-m", "phase1").assert_outcomes(passed=1, deselected=2)


def test_failure_of_another_test_stays_a_failure(pytester: Pytester) -> None:
    write_checkout(pytester.path, p1=[fake_case_row("a", "decline")])
    (pytester.path / "test_plain.py").write_text("def test_plain():\n    assert 1 == 2\n")
    assert pytester.runpytest_inprocess().ret == 1


def test_skip_inside_a_falsifier_is_an_error(pytester: Pytester) -> None:
    write_checkout(pytester.path, p1=[fake_case_row("a")])
    file = pytester.path / "phases/p1_made_up/test_falsifier.py"
    file.write_text(file.read_text().replace("    does = ", "    import pytest\n"
                                             "    pytest." "skip('not today')\n    does = "))
    assert pytester.runpytest_inprocess().ret == 6


DECLINER = """\
def step():
    pass


def supports(case):
    return "rows that hold are not mine" if case["does"] == "hold" else None
"""


def test_candidate_declines_by_its_own_reason(pytester: Pytester) -> None:
    (pytester.path / "mine.py").write_text(DECLINER)
    code, _, verdicts = run(pytester, "--candidate", f"file:{pytester.path}/mine.py",
                            p1=[fake_case_row("a"), fake_case_row("b", "break")])
    assert code == 1
    assert [v.outcome for v in verdicts] == ["declined", "failed"]
    assert verdicts[0].reason == "rows that hold are not mine"
    assert verdicts[0].subject == f"file:{pytester.path}/mine.py"
    assert f"--candidate 'file:{pytester.path}/mine.py'" in verdicts[0].repro


def test_candidate_that_fails_to_import_is_an_error(pytester: Pytester) -> None:
    (pytester.path / "mine.py").write_text("import nowhere_to_be_found\n")
    code, _, verdicts = run(pytester, "--candidate", f"file:{pytester.path}/mine.py",
                            p1=[fake_case_row("a")])
    assert code == 6
    assert "cannot be loaded: ModuleNotFoundError" in str(verdicts[0].reason)


def test_unknown_candidate_names_the_known_ones(pytester: Pytester) -> None:
    write_checkout(pytester.path, p1=[fake_case_row("a")])
    result = pytester.runpytest_inprocess("--candidate", "mine.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "give file:/abs/path.py, module:pkg.attr" in result.stderr.str()


def test_test_of_another_tier_is_deselected(pytester: Pytester) -> None:
    write_checkout(pytester.path)
    pytester.makepyfile("import pytest\n\n\n@pytest.mark.tier('cuda')\ndef test_there():\n"
                        "    assert 1 == 2\n\n\ndef test_here():\n    assert 1 == 1\n")
    pytester.runpytest_inprocess("--device", "cpu").assert_outcomes(passed=1, deselected=1)
