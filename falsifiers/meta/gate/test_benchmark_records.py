"""Benchmarks are stored with their conditions, and only after equal bits."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import rowtwin
from contracts.load import load_contracts
from falsifiers.gate import benchmark_records
from falsifiers.gate.benchmark_records import BitsDifferError
from falsifiers.gate.receipts import FOLDER
from falsifiers.judging.errors import SuiteError
from falsifiers.meta.gate.fake_benchmarks import products, step, steps
from falsifiers.mutation import cli, device_receipts

Progress = Callable[[str], None]


@pytest.mark.parametrize("wrong", [
    {"equal_values": 0}, {"steps": 0}, {"fastest": 9.0, "slowest": 1.0}, {"milliseconds": 0.0},
    {"guessed": True}])
def test_time_without_equal_bits_or_with_invalid_values_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        step(4, **wrong)


def test_duplicate_figure_is_refused() -> None:
    with pytest.raises(ValidationError, match="two figures have the same path"):
        steps(step(4), step(4))


def test_verdicts_compare_the_figures_with_s7_and_the_goal_of_p4() -> None:
    lines = steps(step(1), step(4), step(8)).verdicts()
    assert "at m = 4 at 0.62 of its rate at m = 1" in lines[0]
    assert lines[0].endswith("holds")
    assert lines[1].endswith("m = 8 takes 2.40 times m = 1 on the device; P4's goal is 1.50: not "
                            "reached")
    slow = steps(step(1), step(4, milliseconds=2.6)).verdicts()
    assert [line.rpartition(": ")[2] for line in slow] == ["is broken"]
    assert steps(step(4), step(8)).verdicts() == []
    assert len(steps(step(1, split={}), step(8)).verdicts()) == 0


def test_stored_benchmarks_can_be_read() -> None:
    assert [record.device for record in benchmark_records.load_products(rowtwin.ROOT)]
    assert all(record.digest for record in benchmark_records.load_steps(rowtwin.ROOT))


def test_broken_record_is_named(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER / "fake"
    folder.mkdir(parents=True)
    (folder / "step.json").write_text(steps().model_dump_json().replace('"m":', '"n":'))
    with pytest.raises(SuiteError, match=r"step\.json: is not a benchmark record"):
        benchmark_records.load_steps(tmp_path)
    (folder / "gemv.json").write_text("{")
    with pytest.raises(SuiteError, match=r"gemv\.json: is not a benchmark record"):
        benchmark_records.load_products(tmp_path)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Fake a device, whose receipts go to a folder of the test."""
    monkeypatch.setattr(
        device_receipts, "device_and_versions", lambda: ("a fake device", {"driver": "1"}))
    monkeypatch.setattr(device_receipts, "device_folder", lambda name: tmp_path / "fake")
    monkeypatch.setattr(device_receipts, "ROOT", tmp_path)
    monkeypatch.setattr(
        device_receipts, "phase_digest", lambda contract, root: f"digest of {contract.phase}")
    return tmp_path


def test_benchmark_is_stored_with_day_versions_and_digest(device: Path) -> None:
    contract = load_contracts()["p4"]
    result = device_receipts.write_benchmark("step", lambda progress: steps(), contract, print)
    written, _ = result
    assert result == ([Path("fake/step.json")], [])
    record = benchmark_records.StepTimes.model_validate_json((device / written[0]).read_bytes())
    assert (record.digest, record.versions, record.measured) == (
        "digest of p4", {"driver": "1"}, device_receipts.today())
    assert record.figures == steps().figures


def test_wrong_bits_write_no_benchmark(device: Path) -> None:
    def broken(progress: Progress) -> Any:
        raise BitsDifferError("logits[row 1] are wrong")

    assert device_receipts.write_benchmark("step", broken, load_contracts()["p4"], print) == (
        [], ["step: not timed, since logits[row 1] are wrong"])
    assert list(device.iterdir()) == []


@pytest.mark.parametrize(("argv", "refused", "measured"), [
    ([], [], ["gemv", "step"]), ([], ["p3: no receipt"], []), (["--phase", "3"], [], [])])
def test_benchmarks_run_after_every_phase_has_a_receipt(
        argv: list[str], refused: list[str], measured: list[str], device: Path,
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ran: list[str] = []

    def measure(name: str) -> Callable[[Progress], Any]:
        def run(progress: Progress) -> Any:
            ran.append(name)
            return steps() if name == "step" else products()
        return run

    monkeypatch.setattr(rowtwin, "receipt_benchmarks", lambda: {name: ("p3", measure(name))
                                                        for name in ("gemv", "step")})
    monkeypatch.setattr(
        device_receipts, "write_receipts", lambda *args: ([Path("p3.json")], refused))
    monkeypatch.setattr(cli, "load_banks", lambda *args: [])
    monkeypatch.setattr(sys, "argv", ["rowtwin", "receipt", *argv])
    with pytest.raises(SystemExit) as end:
        rowtwin.main()
    out, err = capsys.readouterr()
    assert ran == measured
    assert end.value.code == (1 if refused else 0)
    assert out.split() == ["p3.json", *(f"fake/{name}.json" for name in measured)]
    assert err.startswith("judging the device cases of ")
    assert all(why in err for why in refused)
