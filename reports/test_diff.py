"""The difference of two reports: what is newly broken, proven and gone, under 60 lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from falsifiers.gate import phase_status, runner
from falsifiers.gate.phase_status import PhaseResult
from falsifiers.judging import matrix
from falsifiers.judging.errors import SuiteError
from reports import artefacts, markdown, run_metadata
from reports import fake_evidence as fakes
from reports.cli import app
from reports.diff import Difference, compare_runs, format_diff
from reports.evidence import Evidence, MutantResults
from reports.run_metadata import SavedRun

ALL_PASSED = ("passed",) * 7


@pytest.fixture(autouse=True)
def _no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no page: it takes longer than all else, and no difference reads one."""
    monkeypatch.setattr(artefacts, "page", lambda evidence: "")


def save_and_load(folder: Path, evidence: Evidence) -> SavedRun:
    folder.mkdir(parents=True)
    artefacts.write_report(folder, evidence)
    return run_metadata.load_run(folder)


def make_diff(tmp_path: Path, base: Evidence, now: Evidence, **options: bool) -> Difference:
    return compare_runs(
        save_and_load(tmp_path / "base", base), save_and_load(tmp_path / "now", now), **options
    )


def without_last_cases(evidence: Evidence, count: int) -> dict[str, Any]:
    """Return what evidence is when its last cases were not run."""
    left = list(evidence.verdicts)[:-count]
    return {"verdicts": left, "results": [phase_status.judge_phase("p1", left)]}


def test_run_reads_back_as_it_was_written(tmp_path: Path) -> None:
    for name, evidence in {
        "green": fakes.evidence(),
        "red": fakes.failing_evidence(fakes.HOSTILE_TEXT),
        "empty": fakes.empty_evidence(),
    }.items():
        read = save_and_load(tmp_path / name, evidence)
        assert list(read.verdicts.values()) == evidence.every_verdict
        assert read.matrix == evidence.kills.matrix
        assert read.run.exit_code == evidence.exit_code


def test_same_run_twice_changes_nothing(tmp_path: Path) -> None:
    for number, evidence in enumerate((fakes.evidence(), fakes.failing_evidence())):
        same = make_diff(tmp_path / str(number), evidence, evidence)
        assert (same.broken, same.proven, same.no_longer_run, same.unproven) == ([], [], [], [])
        assert same.exit_code == 0
        assert "no case changed" in format_diff(same, {})


@pytest.mark.parametrize(("before", "after", "count", "code"), [
    ("passed", "failed", "broken", 1), ("passed", "error", "broken", 1),
    ("declined", "failed", "broken", 1), ("failed", "passed", "proven", 0),
    ("unmeasurable", "passed", "proven", 0), ("passed", "declined", "unproven", 2),
    ("passed", "unmeasurable", "unproven", 2), ("failed", "error", "still_broken", 0)])
def test_case_is_counted_by_its_change(tmp_path: Path, before: str, after: str, count: str,
                                              code: int) -> None:
    found = make_diff(tmp_path, fakes.evidence((before, *ALL_PASSED[1:])),
                 fakes.evidence((after, *ALL_PASSED[1:])))
    counts = {name: len(getattr(found, name))
              for name in ("broken", "proven", "unproven", "no_longer_run", "still_broken")}
    assert counts == {**dict.fromkeys(counts, 0), count: 1}
    assert found.exit_code == code


def test_case_without_a_verdict_is_gone_and_a_new_one_is_proven(tmp_path: Path) -> None:
    full = fakes.evidence()
    shorter = fakes.evidence(**without_last_cases(full, 2))
    found = make_diff(tmp_path, full, shorter)
    assert found.no_longer_run == ["p1/rows_hold[cpu-tiny-m3]", "p1/slots_hold[cpu-all]"]
    assert found.exit_code == 2
    back = compare_runs(found.now, found.base)
    assert ([v.case for v in back.proven], back.exit_code) == (list(found.no_longer_run), 0)


def test_new_survivor_is_listed_and_red(tmp_path: Path) -> None:
    found = make_diff(tmp_path, fakes.evidence(), fakes.evidence(
        kills=fakes.kills(survivors=("p1/copied",))))
    assert (found.survivors, found.exit_code) == (["p1/copied"], 1)
    assert "Mutants that survive now and did not, 1: `p1/copied`" in format_diff(found, {})


def test_comment_has_cause_diagnosis_and_command(tmp_path: Path) -> None:
    now = fakes.evidence(("failed", *ALL_PASSED[1:]))
    text = format_diff(make_diff(tmp_path, fakes.evidence(), now), now.contracts)
    assert text.startswith("## ✗ Row parity since the base: 1 newly broken\n")
    for words in ("**Newly broken: p1 rows_hold**, 1 case: `p1/rows_hold[cpu-nano-m1]: a plain",
                  "Likely: a plain word: look here ...", "Run it: `pytest 'p1/rows_hold",
                  "| p1 | ✓ PASS, 7 of 7 passed, device proof none | ✗ FAIL, 6 of 7 passed"):
        assert words in text


def test_diagnosis_of_another_contract_is_not_given(tmp_path: Path) -> None:
    now = fakes.evidence(("failed", *ALL_PASSED[1:]))
    other = {"p1": fakes.contract(text="another contract")}
    assert "Likely" not in format_diff(make_diff(tmp_path, fakes.evidence(), now), other)


def large_evidence(outcome: str, text: str) -> Evidence:
    """Return a run of every phase, each with many falsifiers, all with one outcome."""
    phases = ("engine", *phase_status.PHASES)
    verdicts, results = [], list[PhaseResult]()
    for phase in phases:
        mine = [
            fakes.verdict(
                case.model_copy(update={"falsifier": f"{case.falsifier}_{n}"}), outcome, text
            )
            for n in range(4)
            for case in fakes.contract(phase, text).expand()
        ]
        verdicts += mine
        results.append(phase_status.judge_phase(phase, mine))
    rows = [
        matrix.MutantResult(name=f"{n}{text}", phase="p1", fault=text, device="cpu", expected=())
        for n in range(90)
    ]
    survivors = tuple(f"p1/{row.name}" for row in rows) if outcome != "passed" else ()
    return fakes.evidence(
        verdicts=verdicts,
        results=results,
        kills=MutantResults(
            matrix.KillMatrix(mutants=tuple(rows), survivors=survivors, idle_falsifiers=(),
                              not_run=())
        ),
        contracts={phase: fakes.contract(phase, text) for phase in phases},
    )


@pytest.mark.parametrize(
    "text", [fakes.PLAIN_TEXT, fakes.HOSTILE_TEXT, f"{fakes.HOSTILE_TEXT}\n" * 20]
)
@pytest.mark.parametrize("outcome", ["failed", "error", "declined"])
def test_comment_has_under_sixty_lines_and_fits_a_comment(tmp_path: Path, text: str,
                                                          outcome: str) -> None:
    base, now = large_evidence("passed", text), large_evidence(outcome, text)
    text = format_diff(make_diff(tmp_path, base, now), now.contracts)
    assert text.count("\n") < 60
    assert len(text) < 65_536


def test_comment_lets_no_word_act_as_markup(tmp_path: Path) -> None:
    hostile = fakes.HOSTILE_TEXT
    text = format_diff(
        make_diff(tmp_path, fakes.evidence(text=hostile), fakes.failing_evidence(hostile)), {}
    )
    for line in text.splitlines():
        outside = line.split("`" * 2)[::2]  # the hostile word holds a backtick, so fences are two
        assert not any("<script" in shorter or "](b)" in shorter for shorter in outside)


@pytest.fixture
def apart(tmp_path: Path) -> tuple[SavedRun, SavedRun]:
    """Two runs that differ in contract and in tier."""
    other = fakes.contract(tier="interpret")
    return save_and_load(tmp_path / "base", fakes.evidence()), save_and_load(
        tmp_path / "now",
        fakes.evidence(
            contracts={"p1": other}, verdicts=[fakes.verdict(case) for case in other.expand()]
        ),
    )


def test_text_lets_no_word_act_on_a_terminal() -> None:
    for shown in (markdown.escape_text, markdown.code_span):
        assert "a\\x1b[2J \\u202eb" in shown("a\x1b[2J\n\u202eb").replace("&#92;", "\\")


def test_report_behind_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "run.json").symlink_to("/proc/kmsg")  # says that it is empty, and never ends
    with pytest.raises(SuiteError, match=r"run\.json is a symbolic link"):
        run_metadata.load_run(tmp_path)


def test_other_contracts_and_devices_are_refused_unless_allowed(
    apart: tuple[SavedRun, SavedRun],
) -> None:
    with pytest.raises(SuiteError, match="judged by different contracts of p1; --across-contracts"):
        compare_runs(*apart)
    with pytest.raises(SuiteError, match=r"different devices: cpu and cpu \+ interpret; --across-"):
        compare_runs(*apart, across_contracts=True)
    found = compare_runs(*apart, across_contracts=True, across_devices=True)
    text = format_diff(found, {})
    assert "Note: " in text
    assert "different contracts of p1." in text
    assert len(found.proven) == 6


def test_cases_of_other_model_files_are_not_compared(tmp_path: Path) -> None:
    found = make_diff(
        tmp_path,
        fakes.evidence(user_model=fakes.user_model_run("passed")),
        fakes.evidence(user_model=fakes.user_model_run("failed", "another file")),
    )
    assert (found.broken, found.no_longer_run) == ([], [])
    assert "different model files, whose cases are not compared" in format_diff(found, {})
    same = make_diff(
        tmp_path.joinpath("again"),
        fakes.evidence(user_model=fakes.user_model_run("passed")),
        fakes.evidence(user_model=fakes.user_model_run("failed")),
    )
    assert [v.phase for v in same.broken] == ["model"]


def edit_file(folder: Path, name: str, edit: Any) -> None:
    text = (folder / name).read_text()
    (folder / name).write_text(edit(text))


@pytest.mark.parametrize(("name", "edit", "sentence"), [
    ("run.json", lambda text: "", "run.json: is not what a report wrote: "),
    ("run.json", lambda text: text.replace("rowtwin-run-1", "other"), "format: Input should be"),
    ("run.json", lambda text: text.replace('"passed": 7', '"passed": 6').replace(
        '"failed": 0', '"failed": 1').replace('"PASS"', '"FAIL"').replace('"why": []',
                                                                        '"why": ["x"]'),
     "contradict each other on p1"),
    ("verdicts.jsonl", lambda text: text.replace("passed", "fine", 1), "verdicts.jsonl:1: is not"),
    ("verdicts.jsonl", lambda text: text[:-5], "its last line is cut off"),
    ("verdicts.jsonl", lambda text: text * 2,
     "verdicts.jsonl:8: p1/rows_hold[cpu-nano-m1] is repeated"),
    ("verdicts.jsonl", lambda text: "".join(text.splitlines(True)[1:]), "contradict each other on"),
    ("mutants.json", lambda text: "[]", "mutants.json: is not what a report wrote")])
def test_incomplete_folder_is_refused_in_one_sentence(tmp_path: Path, name: str, edit: Any,
                                                             sentence: str) -> None:
    save_and_load(tmp_path / "run", fakes.evidence())
    edit_file(tmp_path / "run", name, edit)
    with pytest.raises(SuiteError) as refused:
        run_metadata.load_run(tmp_path / "run")
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_file_that_is_missing_or_too_large_is_refused(tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SuiteError, match="none: is no report, since it has no run"):
        run_metadata.load_run(tmp_path / "none")
    save_and_load(tmp_path / "run", fakes.evidence())
    monkeypatch.setattr(run_metadata, "MAX_BYTES", 10)
    with pytest.raises(SuiteError, match="bytes, but at most 10 are expected"):
        run_metadata.load_run(tmp_path / "run")


def test_command_prints_the_comment_and_ends_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "contracts_by_phase", dict)
    for name, evidence in (
        ("base", fakes.evidence()),
        ("now", fakes.evidence(fakes.MIXED_OUTCOMES)),
    ):
        save_and_load(tmp_path / name, evidence)
    run = CliRunner().invoke
    done = run(app, ["report", "diff", str(tmp_path / "base"), str(tmp_path / "now")])
    assert (done.exit_code, done.stdout.splitlines()[0]) == (
        1, "## ✗ Row parity since the base: 5 newly broken, 2 no longer proven")
    assert run(app, ["report", "diff", str(tmp_path / "now"), str(tmp_path / "now")]).exit_code == 0
    survivors = json.loads((tmp_path / "now" / "run.json").read_text())
    assert survivors["contracts"] == {"p1": run_metadata.contract_digest(fakes.contract())}
