"""A fake checkout in a folder, whose falsifiers do what a case's `does` says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

FALSIFIER = '''\
import warnings

from falsifiers.judging.errors import Declined, SuiteError, Unmeasurable


def test_rows_hold(case, subject, judge):
    does = case["does"]
    if does == "decline":
        raise Declined("this type is not mine")
    if does == "cannot":
        raise Unmeasurable("no profiler is here")
    if does == "suite":
        raise SuiteError("the golden file is gone")
    if does == "crash":
        raise IndexError("row 3")
    if does == "fault":
        raise subject.faults[0]("thread 3 writes\\nwhere there is no memory")
    if does == "warn":
        warnings.warn("this is deprecated")
    if does == "kill":
        import os
        os._exit(9)
    if does != "nothing":
        judge.law(does == "hold" or does == "warn", "row 1 differs from its single run", row=1)
'''

CONFTEST = '''\
import pytest

from falsifiers.gate.candidates import load_candidate
from falsifiers.judging.subject import Subject

pytest_plugins = ["falsifiers.gate.pytest_plugin"]


@pytest.fixture
def subject(case, request):
    name = request.config.getoption("--candidate")
    return Subject("in-tree", models=str, candidate=load_candidate(name) if name else None,
                   faults=(OverflowError,))
'''

INI = """\
[pytest]
addopts = --strict-markers --strict-config -p no:cacheprovider --import-mode=importlib
filterwarnings = error
"""


def fake_case_row(name: str, does: str = "hold", **more: Any) -> dict[str, Any]:
    """Return one row of a case table."""
    return {"falsifier": "rows_hold", "id": name, "given": {"does": does}, **more}


def fake_contract(phase: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a contract's data."""
    return {
        "phase": phase, "package": f"phases.{phase}_made_up" if phase != "engine" else "engine",
        "title": "a fake phase", "claim": "every row gets what it gets alone",
        "not_proven": "that it is fast", "ops": ["step"],
        "parity": {"twin": "bitwise", "truth": "bitwise"},
        "falsifiers": [{"id": "rows_hold", "attacks": "rows of a batch",
                        "if_fails": "a row depends on the batch around it"}],
        "cases": list(rows), "mutants": [{"id": "none", "fault": "It does nothing wrong.",
                                           "killed_by": ["rows_hold"]}]}


def write_checkout(folder: Path, **phases: Sequence[dict[str, Any]]) -> Path:
    """Write a checkout with these phases' case tables; return its root."""
    (folder / "contracts").mkdir()
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text(INI)
    for phase, rows in phases.items():
        data = fake_contract(phase, rows)
        (folder / "contracts" / f"{phase}.yaml").write_text(yaml.safe_dump(data))
        package = folder / data["package"].replace(".", "/")
        package.mkdir(parents=True)
        (package / "test_falsifier.py").write_text(FALSIFIER)
    return folder
