"""Times stand beside receipts with their conditions, and none without green bits."""

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

Tell = Callable[[str], None]


@pytest.mark.parametrize("wrong", [
    {"equal_values": 0}, {"steps": 0}, {"fastest": 9.0, "slowest": 1.0}, {"milliseconds": 0.0},
    {"guessed": True}])
def test_time_without_equal_bits_or_with_nonsense_is_no_record(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        step(4, **wrong)


def test_figure_that_stands_twice_is_refused() -> None:
    with pytest.raises(ValidationError, match="stand twice"):
        steps(step(4), step(4))


def test_verdicts_say_s7_and_the_goal_of_p4_from_the_figures() -> None:
    told = steps(step(1), step(4), step(8)).verdicts()
    assert "at m = 4 at 0.62 of its rate at m = 1" in told[0]
    assert told[0].endswith("holds")
    assert told[1].endswith("m = 8 takes 2.40 times m = 1 on the device; P4's goal is 1.50: not "
                            "reached")
    slow = steps(step(1), step(4, milliseconds=2.6)).verdicts()
    assert [line.rpartition(": ")[2] for line in slow] == ["is broken"]
    assert steps(step(4), step(8)).verdicts() == []
    assert len(steps(step(1, split={}), step(8)).verdicts()) == 0


def test_kept_figures_of_the_tree_can_be_read() -> None:
    assert [found.device for found in benchmark_records.load_products(rowtwin.ROOT)]
    assert all(found.digest for found in benchmark_records.load_steps(rowtwin.ROOT))


def test_broken_figures_are_named(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER / "made-up"
    folder.mkdir(parents=True)
    (folder / "step.json").write_text(steps().model_dump_json().replace('"m":', '"n":'))
    with pytest.raises(SuiteError, match=r"step\.json: holds no figures"):
        benchmark_records.load_steps(tmp_path)
    (folder / "gemv.json").write_text("{")
    with pytest.raises(SuiteError, match=r"gemv\.json: holds no figures"):
        benchmark_records.load_products(tmp_path)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with a made-up device, whose receipts go to a folder of the test."""
    monkeypatch.setattr(
        device_receipts, "device_and_versions", lambda: ("a made-up device", {"driver": "1"})
    )
    monkeypatch.setattr(device_receipts, "device_folder", lambda name: tmp_path / "made-up")
    monkeypatch.setattr(device_receipts, "ROOT", tmp_path)
    monkeypatch.setattr(
        device_receipts, "phase_digest", lambda contract, root: f"digest of {contract.phase}")
    return tmp_path


def test_figures_are_kept_with_day_versions_and_digest(device: Path) -> None:
    contract = load_contracts()["p4"]
    written, lost = device_receipts.write_benchmark("step", lambda tell: steps(), contract, print)
    assert (written, lost) == ([Path("made-up/step.json")], [])
    kept = benchmark_records.StepTimes.model_validate_json((device / written[0]).read_bytes())
    assert (kept.digest, kept.versions, kept.measured) == ("digest of p4", {"driver": "1"},
                                                           device_receipts.today())
    assert kept.figures == steps().figures


def test_wrong_bits_leave_no_figures(device: Path) -> None:
    def broken(tell: Tell) -> Any:
        raise BitsDifferError("logits[row 1] are wrong")

    assert device_receipts.write_benchmark("step", broken, load_contracts()["p4"], print) == (
        [], ["step: no figures, since logits[row 1] are wrong"])
    assert list(device.iterdir()) == []


@pytest.mark.parametrize(("argv", "refused", "measured"), [
    ([], [], ["gemv", "step"]), ([], ["p3: no receipt"], []), (["--phase", "3"], [], [])])
def test_times_are_measured_after_every_phase_was_proved(
        argv: list[str], refused: list[str], measured: list[str], device: Path,
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    took: list[str] = []

    def measure(name: str) -> Callable[[Tell], Any]:
        def run(tell: Tell) -> Any:
            took.append(name)
            return steps() if name == "step" else products()
        return run

    monkeypatch.setattr(rowtwin, "receipt_benchmarks", lambda: {name: ("p3", measure(name))
                                                        for name in ("gemv", "step")})
    monkeypatch.setattr(
        device_receipts, "write_receipts", lambda *given: ([Path("p3.json")], refused)
    )
    monkeypatch.setattr(cli, "load_banks", lambda *given: [])
    monkeypatch.setattr(sys, "argv", ["rowtwin", "receipt", *argv])
    with pytest.raises(SystemExit) as end:
        rowtwin.main()
    out, err = capsys.readouterr()
    assert took == measured
    assert end.value.code == (1 if refused else 0)
    assert out.split() == ["p3.json", *(f"made-up/{name}.json" for name in measured)]
    assert err.startswith("judging the device cases of ")
    assert all(why in err for why in refused)
