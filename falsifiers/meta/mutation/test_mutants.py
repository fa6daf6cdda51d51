"""The kill matrix: phase_bank-up mutants first, then every mutant of the repository."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

import rowtwin
from contracts.load import load_contracts
from contracts.schema import Contract
from falsifiers.gate import receipts
from falsifiers.gate.pytest_plugin import THOROUGH
from falsifiers.gate.tiers import TierSelection, select_tiers
from falsifiers.judging.errors import Declined, SuiteError
from falsifiers.judging.judge import Judge
from falsifiers.judging.matrix import Bank, KillMatrix
from falsifiers.judging.subject import Mutant, Subject
from falsifiers.meta.gate.fake_checkout import fake_case_row, fake_contract
from falsifiers.mutation import mutant_runner
from falsifiers.mutation.cli import matrix_exit_code
from falsifiers.mutation.mutant_runner import Attempt, run_mutants
from falsifiers.mutation.mutants import kill, sample_names, try_mutant

CONTRACTS = load_contracts(rowtwin.ROOT / "contracts")
CPU = TierSelection(("cpu",), {}, {})


def attack(case: Any, subject: Subject, judge: Judge) -> None:
    """Judge the phase_bank-up subject."""
    if subject.path == "crash":
        raise IndexError("row 3")
    if subject.path == "decline":
        raise Declined("not mine")
    if subject.path == "suite":
        raise SuiteError("the golden file is gone")
    if case["does"] == "watch":
        judge.law(subject.path != "wrong", "row 1 differs from its single run")
    judge.law(True, "a law of every subject")


def always_passes(case: Any, subject: Subject, judge: Judge) -> None:
    """Pass for every subject."""
    judge.law(True, "a law of every subject")


def always_fails(case: Any, subject: Subject, judge: Judge) -> None:
    """Fail for every subject, the right one included."""
    judge.law(False, "no subject is right")


def bank(*mutants: Mutant, falsifier: Callable[..., None] = attack) -> Bank:
    data = fake_contract("p1", [
        fake_case_row("blind", "look away"), fake_case_row("a", "watch"),
        fake_case_row("b", "watch"), fake_case_row("there", "watch", tier="cuda")])
    return Bank(Contract.model_validate(data), {"rows_hold": falsifier}, mutants,
                lambda case: Subject("in-tree", models=str, path="right"))


def run_matrix(*banks: Bank) -> KillMatrix:
    """Return the matrix of phase_bank-up banks, tried in this process."""
    return run_mutants(banks, lambda phase: banks[0], CPU).matrix


def mutant(path: str = "wrong", **more: Any) -> Mutant:
    return replace(Mutant("odd_row", "row 1 is read from row 0", ("rows_hold",),
                          lambda subject: replace(subject, path=path)), **more)


@pytest.mark.parametrize(("path", "rung"), [
    ("wrong", "law"), ("crash", "crash"), ("right", None), ("decline", None), ("suite", None)])
def test_mutant_dies_at_the_rung_it_broke(path: str, rung: str | None) -> None:
    built = try_mutant(bank(), mutant(path))
    assert built.rung == rung
    assert built.killed_by == (("rows_hold",) if rung else ())


def test_attack_stops_at_the_first_kill() -> None:
    calls: list[str] = []

    def watched(case: Any, subject: Subject, judge: Judge) -> None:
        calls.append(f"{case.name} {subject.path}")
        attack(case, subject, judge)

    kill(bank(falsifier=watched), mutant(), "rows_hold")
    assert calls == ["blind wrong", "a wrong", "a right"]


def test_falsifier_that_fails_on_the_right_subject_too_kills_nothing() -> None:
    with pytest.raises(SuiteError, match="fails without a mutant too"):
        kill(bank(falsifier=always_fails), mutant(), "rows_hold")


def test_case_that_is_not_quick_kills_nothing() -> None:
    data = fake_contract("p1", [fake_case_row("quick", "look away"),
                                fake_case_row("slow", "watch", quick=False)])
    phase_bank = replace(bank(), contract=Contract.model_validate(data))
    assert kill(phase_bank, mutant(), "rows_hold") is None


def test_survivor_and_idle_falsifier_are_named() -> None:
    matrix = run_matrix(bank(mutant(), falsifier=always_passes))
    assert matrix.survivors == ("p1/odd_row",)
    assert matrix.idle_falsifiers == ("p1/rows_hold",)
    assert matrix_exit_code(matrix, "auto") == 1


def test_killed_mutant_leaves_an_empty_report() -> None:
    matrix = run_matrix(bank(mutant()))
    assert (matrix.survivors, matrix.idle_falsifiers, matrix.not_run) == ((), (), ())
    assert matrix_exit_code(matrix, "auto") == 0
    assert set(matrix.mutants[0].model_dump()) == {
        "name", "phase", "fault", "device", "expected", "killed_by", "rung", "seconds",
        "from_receipt"}


def test_empty_matrix_is_no_success() -> None:
    assert matrix_exit_code(run_matrix(), "auto") == 2


def test_mutant_of_a_device_needs_one_or_a_receipt(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipts, "load_receipts", lambda phase, root: [])
    there = mutant(device="cuda")
    matrix = run_matrix(bank(there))
    assert (matrix.survivors, matrix.idle_falsifiers) == ((), ())
    assert matrix.not_run == ("p1/odd_row",)
    assert (matrix_exit_code(matrix, "auto"), matrix_exit_code(matrix, "cuda")) == (0, 2)
    measured = matrix.mutants[0].model_copy(update={"killed_by": ("rows_hold",), "rung": "bits"})
    stored = SimpleNamespace(mutants=[measured])
    monkeypatch.setattr(receipts, "load_receipts", lambda phase, root: [stored])
    read = run_matrix(bank(there))
    assert (read.not_run, read.survivors, read.mutants[0].from_receipt) == ((), (), True)


def test_mutant_of_a_device_is_tried_in_a_new_process_for_each_killer(
        monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(reference: Subject) -> Subject:
        pytest.fail("it may corrupt the device context of this process")

    def run_elsewhere(work: Any, load_bank: Any, chosen: Any, jobs: int,
                      tasks_per_process: int) -> Any:
        assert tasks_per_process == 1
        attacks.extend(killers for _, _, killers in work)
        yield from (Attempt(f"p1/{m.name}", {killers[0]: "crash"}, 0.1) for _, m, killers in work)

    attacks: list[tuple[str, ...]] = []
    monkeypatch.setattr(mutant_runner, "_run_in_processes", run_elsewhere)
    device = mutant(device="cuda", build=broken, killers=("rows_hold", "slots_hold"))
    both = replace(bank(device, mutant(name="odd_slot")), tiers=("cpu", "cuda"))
    matrix = run_matrix(both)
    assert attacks == [("rows_hold",), ("slots_hold",)]
    assert matrix.mutants[0].killed_by == ("rows_hold", "slots_hold")
    assert (matrix.mutants[0].rung, matrix.mutants[0].seconds) == ("crash", 0.2)
    assert matrix.mutants[1].killed_by == ("rows_hold",)
    attacks.clear()
    assert run_matrix(bank(replace(device, killers=("rows_hold",)))).not_run == ("p1/odd_row",)
    assert attacks == []


def test_emulate_tries_only_mutants_of_a_device() -> None:
    data = fake_contract("p1", [
        fake_case_row("seen", "watch", tier="cuda"), fake_case_row("there", "watch", tier="cuda"),
        fake_case_row("blind", "watch")])
    contract = Contract.model_validate(data | {"emulated": {"rows_hold": ["s*"]}})
    phase_bank = replace(bank(mutant(device="cuda"), mutant("right")), contract=contract)
    here = phase_bank.on(("emulate",))
    assert [mutant.device for mutant in here.mutants] == ["cuda"]
    assert [case.id for case in here.cases("rows_hold", here.mutants[0])] == [
        "p1/rows_hold[emulate-seen]"]
    matrix = run_matrix(here)
    assert (matrix.survivors, matrix.idle_falsifiers, matrix.not_run) == ((), (), ())
    assert bank(mutant(device="cuda")).on(("emulate",)).mutants == []


def test_mutant_with_an_unknown_falsifier_or_device_is_refused() -> None:
    with pytest.raises(SuiteError, match="names unknown falsifier 'rows_hald'"):
        try_mutant(bank(), mutant(killers=("rows_hald",)))
    with pytest.raises(SuiteError, match="unknown device 'tpu'"):
        run_matrix(bank(mutant(device="tpu")))


@cache
def real(phase: str) -> Bank:
    """Return a phase's bank, cached with the cases that pass on the right subject."""
    phase_bank = rowtwin.phase_bank(phase)
    phase_bank.tiers = select_tiers("auto").run
    return phase_bank


@pytest.mark.parametrize("phase", CONTRACTS)
def test_contract_lists_every_mutant(phase: str) -> None:
    builders = importlib.import_module(f"{CONTRACTS[phase].package}.mutants").MUTANTS
    assert sorted(builders) == sorted(CONTRACTS[phase].mutant_ids)


@pytest.mark.parametrize("phase", CONTRACTS)
def test_every_falsifier_is_named_by_a_mutant(phase: str) -> None:
    phase_bank = real(phase)
    named = {falsifier for m in phase_bank.mutants for falsifier in m.killers}
    assert named == set(phase_bank.falsifiers)
    assert [m.name for m in phase_bank.mutants if not m.killers or len(m.fault) < 10] == []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Select every mutant with --thorough, and otherwise a sample of each phase."""
    if "name" in metafunc.fixturenames:
        metafunc.parametrize(("phase", "name"), [
            (phase, name) for phase, listed in CONTRACTS.items()
            for name in (listed.mutant_ids if metafunc.config.getoption(THOROUGH)
                         else sample_names(listed.mutant_ids))])


def test_mutant_dies_by_each_killer_it_names(phase: str, name: str) -> None:
    mutants = real(phase)
    tried = mutants.mutant(name)
    if mutants.runs_here(tried):
        assert set(try_mutant(mutants, tried).killed_by) == set(tried.killers)
    else:
        assert tried.device == "cuda"
