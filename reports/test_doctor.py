"""`rowtwin doctor` prints what is here, and one sentence for each missing requirement."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import rowtwin
from falsifiers.gate import receipts, runner, tiers
from falsifiers.gate.runner import ROOT
from reports import doctor, fake_evidence

PROJECT = """\
[project]
requires-python = "{python}"
dependencies = ["pytest>=8", "{needed}"]
[project.optional-dependencies]
golden = ["no-such-package>=5", "pytest>=1; sys_platform == 'nowhere'"]
"""


def write_project(folder: Path, needed: str = "numpy>=1", python: str = ">=3.11") -> Path:
    (folder / "pyproject.toml").write_text(PROJECT.format(needed=needed, python=python))
    return folder


def test_installed_package_is_not_reported_as_missing(tmp_path: Path) -> None:
    lines, broken = doctor.check_packages(write_project(tmp_path))
    assert broken == ()
    assert {line.what: line.there for line in lines} == {
        "python": True, "pytest": True, "numpy": True, "no-such-package": False}


@pytest.mark.parametrize(("needed", "sentence"), [
    ("no-such-package>=3", "no-such-package>=3 is needed, but not installed: pip install"),
    ("numpy>=999", "numpy>=999 is needed, but ")])
def test_package_that_is_missing_or_too_old_is_named(tmp_path: Path, needed: str,
                                                     sentence: str) -> None:
    (broken,) = doctor.check_packages(write_project(tmp_path, needed))[1]
    assert broken.startswith(sentence)


def test_python_that_is_too_old_is_named(tmp_path: Path) -> None:
    (broken,) = doctor.check_packages(write_project(tmp_path, python=">=4"))[1]
    assert broken.endswith("is here, but python >=4 is needed")


def provable_checks(monkeypatch: pytest.MonkeyPatch, *, nvrtc: str | None = None,
                    gpu: str | None = "no CUDA device was found",
                    proof: str = "fresh") -> dict[str, doctor.Check]:
    monkeypatch.setattr(tiers, "cuda_missing", lambda: gpu)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(receipts, "device_proof", lambda contract, root: proof)
    found = doctor.examine(ROOT, {"p3": fake_evidence.contract("p3", tier="cuda")}, lambda: nvrtc)
    return {check.what: check for check in found.provable}


def test_without_a_gpu_no_proof_on_a_device_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = provable_checks(monkeypatch)
    missing = [check for check in checks.values() if check.found == "no CUDA device was found"]
    assert {check.so for check in missing} >= {"rowtwin gate --device cuda", "rowtwin receipt"}
    assert not any(check.there for check in missing)
    assert checks["each row's bits on the CPU"].there


def test_missing_tool_makes_its_proof_impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    proof = "that kernels compile for sm_90 without contraction or spills"
    assert not provable_checks(monkeypatch, nvrtc="NVRTC was not found")[proof].there
    assert provable_checks(monkeypatch)[proof].there
    counted = provable_checks(monkeypatch, gpu=None)["how often a device reads weights"]
    assert (counted.there, counted.found) == (False, "no ncu on the PATH")


@pytest.mark.parametrize(("proof", "there"), [("fresh", True), ("stale", False), ("none", False)])
def test_only_a_fresh_receipt_is_a_proof(monkeypatch: pytest.MonkeyPatch, proof: str,
                                         there: bool) -> None:
    check = provable_checks(monkeypatch, proof=proof)["that this code passed on a device"]
    assert (check.there, "p3" in check.found) == (there, not there)


def test_torch_that_cannot_be_imported_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_import_error", lambda name: "OSError: no libtorch")
    found = doctor.examine(ROOT, {"p1": fake_evidence.contract()}, lambda: None)
    assert found.broken == ("torch is installed but cannot be used: OSError: no libtorch",)
    by_torch = [check for check in found.provable if check.found == "OSError: no libtorch"]
    assert {check.so for check in by_torch} >= {"rowtwin gate --device cpu", "rowtwin mutants"}


def run_doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
               *words: str) -> tuple[int, str]:
    monkeypatch.setattr(runner, "contracts_by_phase", lambda: {"p1": fake_evidence.contract()})
    monkeypatch.setattr(sys, "argv", ["rowtwin", "doctor", *words])
    with pytest.raises(SystemExit) as end:
        rowtwin.main()
    out, err = capsys.readouterr()
    assert err == ""
    return int(end.value.code or 0), out


def test_command_prints_plain_columns_to_a_pipe(capsys: pytest.CaptureFixture[str],
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    code, out = run_doctor(capsys, monkeypatch)
    assert code == 0
    assert out.startswith("What can be proven here\nwhat  ")
    assert "start with: rowtwin gate\n" in out
    assert not set(out) & set("\x1b┃│━─")


def test_command_prints_one_object_for_programs(capsys: pytest.CaptureFixture[str],
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    code, out = run_doctor(capsys, monkeypatch, "--json")
    found = json.loads(out)
    assert (code, found["broken"], found["phases"]) == (0, [], [["p1", "7", "-", "-", "-",
                                                                "no device case"]])


def test_missing_package_is_printed_and_exits_with_two(
        capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "check_packages", lambda root: ((), ("torch>=9 is needed",)))
    code, out = run_doctor(capsys, monkeypatch)
    assert code == 2
    assert "torch>=9 is needed\n" in out
    assert "fix the above first" in out
