"""The reading of a profiler's report, with stand-ins for it; a device runs the real one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.load import load_contract
from contracts.schema import Case
from falsifiers.gate.candidates import Candidate
from falsifiers.judging.errors import ParityBroken, Unmeasurable
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from phases.p3_row_twin import device_counters
from phases.p3_row_twin.harness import CONTRACT
from phases.p3_row_twin.test_falsifier import test_device_reads_weights_once as attack

WEIGHT_BYTES = 4096 * 16 * 1440
CSV_HEADER = (
    '"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"'
)
Ncu = Callable[..., None]


def find_case(kind: str = "Q4_K") -> Case:
    return next(case for case in load_contract(CONTRACT).expand() if case.given["kind"] == kind
                and case.falsifier == "device_reads_weights_once")


def format_report(values: Iterable[object], metric: str = device_counters.METRIC) -> str:
    rows = "".join(f'"{i}","7","gemv","counters","{metric}","byte","{value}"\n'
                   for i, value in enumerate(values))
    return f'==PROF== Connected to process 7\n==PROF== Profiling "gemv": 100%\n{CSV_HEADER}\n{rows}'


@pytest.fixture
def ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ncu:
    """Return a function that puts a stand-in for ncu on the PATH: what it prints at each m."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def put(one: str, more: str | None = None, code: int = 0) -> None:
        (tmp_path / "one").write_text(one)
        (tmp_path / "more").write_text(one if more is None else more)
        tool = tmp_path / "ncu"
        tool.write_text("#!/bin/sh\nfor last; do :; done\n"
                        f"[ $last = 1 ] && cat {tmp_path}/one || cat {tmp_path}/more\n"
                        f"exit {code}\n")
        tool.chmod(0o755)

    return put


def test_launches_of_a_product_are_added_and_the_least_product_counts(ncu: Ncu) -> None:
    ncu(format_report(["1,000", "20", "1,500", "30", "999.0", "20"]))
    assert device_counters.measure_bytes_read(find_case(), "", 1) == 1019


@pytest.mark.parametrize(("output", "sentence"), [
    ("==ERROR== The user does not have permission to access counters\n==PROF== x\n",
     "0 launches of 3 products: ==ERROR== The user does not have permission"),
    ("", "0 launches of 3 products: it said nothing"),
    ("Traceback\nRuntimeError: no device\n", "no device"),
    (format_report([1, 2]), "ncu counted 2 launches"),
    (format_report(["n/a", "n/a", "n/a"]), "ncu counted 0 launches"),
    (format_report([1, 2, 3], metric="other"), "ncu counted 0 launches")])
def test_counters_that_cannot_be_read_are_unmeasurable(ncu: Ncu, output: str,
                                                       sentence: str) -> None:
    ncu(output, code=1)
    with pytest.raises(Unmeasurable, match=sentence):
        device_counters.measure_bytes_read(find_case(), "", 1)


def test_machine_without_the_profiler_is_unmeasurable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Unmeasurable, match="not on the PATH"):
        device_counters.measure_bytes_read(find_case(), "", 1)


def judge_case(candidate: Candidate | None = None) -> Judge:
    judge = Judge(find_case())
    attack(judge.case, replace(Subject("x", models=str), candidate=candidate), judge)
    return judge


def test_weights_read_once_at_every_m_hold(ncu: Ncu) -> None:
    ncu(format_report([WEIGHT_BYTES, 900, WEIGHT_BYTES + 5000] * 3))
    with pytest.raises(ParityBroken, match="but the weights are"):
        judge_case()
    ncu(format_report([WEIGHT_BYTES + 1000] * 3), format_report([WEIGHT_BYTES + 90_000] * 3))
    assert judge_case().evidence["device_bytes_read"] == {
        "1": WEIGHT_BYTES + 1000,
        "16": WEIGHT_BYTES + 90_000,
    }


@pytest.mark.parametrize(
    ("one", "more"),
    [(WEIGHT_BYTES, 2 * WEIGHT_BYTES), (16 * WEIGHT_BYTES, WEIGHT_BYTES), (WEIGHT_BYTES // 2,) * 2],
)
def test_weights_read_again_or_not_at_all_are_told(ncu: Ncu, one: int, more: int) -> None:
    ncu(format_report([one] * 3), format_report([more] * 3))
    with pytest.raises(ParityBroken, match="the device reads"):
        judge_case()


def test_candidate_s_layout_may_have_another_size(ncu: Ncu) -> None:
    own = Candidate("module:mine", type("Own", (), {"gemv_rows": staticmethod(print)}))
    ncu(format_report([3 * WEIGHT_BYTES] * 3))
    assert judge_case(own).compared > 0
    ncu(format_report([3 * WEIGHT_BYTES] * 3), format_report([48 * WEIGHT_BYTES] * 3))
    with pytest.raises(ParityBroken, match="at m = 16"):
        judge_case(own)
