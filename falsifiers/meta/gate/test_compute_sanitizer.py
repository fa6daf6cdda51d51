"""Summaries of compute-sanitizer are stored in a receipt, and a counted error refuses it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from contracts.load import load_contract
from falsifiers.gate import compute_sanitizer
from falsifiers.gate.receipts import sanitizer_faults
from falsifiers.gate.runner import ROOT

Says = Callable[..., None]
P5 = load_contract(ROOT / "contracts/p5.yaml")
CLEAN = {"memcheck": "========= ERROR SUMMARY: 0 errors",
         "racecheck": "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"}


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Says:
    """Replace compute-sanitizer by a script that prints `4 passed` and a line for each tool."""
    def put(text: dict[str, str], before: str = "4 passed in 1.0s") -> None:
        cases = "".join(f'{tool}) echo "{line}";;\n' for tool, line in text.items())
        program = tmp_path / compute_sanitizer.PROGRAM
        program.write_text(f'#!/bin/sh\necho "{before}"\ncase $2 in\n{cases}esac\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return put


def test_summaries_have_the_number_of_cases(says: Says) -> None:
    says(CLEAN)
    summaries = compute_sanitizer.run_sanitizers(P5)
    assert summaries["memcheck"] == "ERROR SUMMARY: 0 errors, 4 cases"
    assert summaries["racecheck"].startswith("RACECHECK SUMMARY: 0 hazards")
    assert sanitizer_faults(summaries) == []


@pytest.mark.parametrize("line", [
    "========= ERROR SUMMARY: 2 errors",
    "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)",
    "========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)"])
def test_counted_error_or_hazard_is_a_fault(says: Says, line: str) -> None:
    says(CLEAN | {"racecheck": line})
    assert len(sanitizer_faults(compute_sanitizer.run_sanitizers(P5))) == 1


def test_run_without_a_passed_case_has_no_summary(says: Says) -> None:
    says(CLEAN, before="4 failed")
    assert all("no summary of passed cases" in text
               for text in compute_sanitizer.run_sanitizers(P5).values())


def test_missing_tool_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert set(compute_sanitizer.run_sanitizers(P5).values()) == {"compute-sanitizer was not found"}


def test_contract_without_sanitized_falsifiers_runs_no_tool() -> None:
    assert compute_sanitizer.run_sanitizers(load_contract(ROOT / "contracts/p4.yaml")) == {}


def test_children_of_a_tool_are_killed_after_its_timeout(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, pid_file = tmp_path / compute_sanitizer.PROGRAM, tmp_path / "pid"
    program.write_text(f"#!/bin/sh\nsleep 60 &\necho $! >> {pid_file}\nwait\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(compute_sanitizer, "TIMEOUT_SECONDS", 1)
    assert set(compute_sanitizer.run_sanitizers(P5).values()) == {"it did not end within 1 s"}
    left = pid_file.read_text().split()
    assert len(left) == len(compute_sanitizer.TOOLS)
    for _ in range(500):  # a killed process ends after a moment
        left = [pid for pid in left if _runs(pid)]
        if not left:
            break
        time.sleep(0.01)
    assert not left


def _runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except OSError:
        return False
