"""The kill matrix: every mutant is attacked in-process by the falsifiers that must catch it."""

from __future__ import annotations

import gc
import hashlib
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from contracts.schema import Case
from falsifiers.judging.errors import Declined, ParityBroken, SuiteError, Unmeasurable
from falsifiers.judging.judge import Judge
from falsifiers.judging.matrix import Attack, Bank, KillMatrix, MutantResult
from falsifiers.judging.subject import Mutant, Subject

SAMPLE_SIZE = 5
"""The number of a phase's mutants in a quick run; `rowtwin mutants` tries all."""


def replace_source(source: str, right: str, wrong: str) -> str:
    """Return a source with `right` replaced by `wrong`; raise `ValueError` without `right`."""
    if right not in source:
        raise ValueError(f"the source does not contain {right!r}")
    return source.replace(right, wrong)


def attack(function: Attack, case: Case, subject: Subject) -> str | None:
    """Run one case; return the rung at which it failed, `crash`, or None if it passed."""
    judge = Judge(case)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # as in pytest's configuration
            with subject.around():
                function(case=case, subject=subject, judge=judge)
    except ParityBroken as broken:
        return broken.finding.rung
    except (SuiteError, Declined, Unmeasurable):
        return None
    except Exception:
        return "crash"
    return None


def kill(bank: Bank, mutant: Mutant, falsifier: str) -> str | None:
    """Return the rung at which the falsifier first kills the mutant, or None.

    The right subject must pass the same case, since a test that always fails detects nothing.
    Raises `SuiteError` if it does not.
    """
    function = bank.falsifiers[falsifier]
    for case in bank.cases(falsifier, mutant):
        right = bank.subject_for(case)
        if case.tier == "cuda":  # a mutant may corrupt the device context of this process
            _require_healthy(bank, function, case, right)
        rung = attack(function, case, mutant.build(right))
        if rung is not None:
            _collect_garbage()
            _require_healthy(bank, function, case, right)
            return rung
    return None


def sample_names(names: Iterable[str]) -> list[str]:
    """Return a sample of names that depends only on the set of names."""
    salt = hashlib.sha256("".join(sorted(names)).encode()).hexdigest()
    drawn = sorted(names, key=lambda name: hashlib.sha256(f"{salt}{name}".encode()).digest())
    return drawn[:SAMPLE_SIZE]


def _collect_garbage() -> None:
    """Collect objects that a mutant left open, so that no later test gets their warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def _require_healthy(bank: Bank, function: Attack, case: Case, right: Subject) -> None:
    if case.id not in bank.healthy:
        judge = Judge(case)
        try:
            with right.around():
                function(case=case, subject=right, judge=judge)
        except Exception as error:
            raise SuiteError(f"{case.id} fails without a mutant too: "
                             f"{type(error).__name__}: {error}") from error
        bank.healthy[case.id] = judge.compared > 0
    if not bank.healthy[case.id]:
        raise SuiteError(f"{case.id} compares nothing, so it cannot kill a mutant")


def try_killers(bank: Bank, mutant: Mutant, killers: Iterable[str]) -> dict[str, str]:
    """Attack a mutant with some of its falsifiers; return the rung by each that kills it."""
    kills = dict[str, str]()
    for falsifier in killers if bank.runs_here(mutant) else ():
        if falsifier not in bank.falsifiers:
            raise SuiteError(f"mutant {bank.contract.phase}/{mutant.name} names unknown "
                             f"falsifier {falsifier!r}")
        rung = kill(bank, mutant, falsifier)
        if rung is not None:
            kills[falsifier] = rung
    return kills


def try_mutant(bank: Bank, mutant: Mutant) -> MutantResult:
    """Attack one mutant with each falsifier that must kill it, in this process."""
    started = time.perf_counter()
    kills = try_killers(bank, mutant, mutant.killers)
    return make_result(bank, mutant, kills, time.perf_counter() - started)


def make_result(
    bank: Bank, mutant: Mutant, kills: Mapping[str, str] | None = None, seconds: float = 0.0
) -> MutantResult:
    """Return a mutant's row of the matrix; `kills` is the rung by killer, None if not tried."""
    kills = kills or {}
    return MutantResult(name=mutant.name, phase=bank.contract.phase, fault=mutant.fault,
                        device=_device(mutant), expected=mutant.killers, killed_by=tuple(kills),
                        rung=next(iter(kills.values()), None), seconds=round(seconds, 3))


def _device(mutant: Mutant) -> Any:
    if mutant.device not in ("cpu", "interpret", "cuda"):
        raise SuiteError(f"mutant {mutant.name} names unknown device {mutant.device!r}")
    return mutant.device


def make_matrix(
    banks: Sequence[Bank], rows: Sequence[MutantResult], not_run: Sequence[str]
) -> KillMatrix:
    """Return the matrix with survivors and falsifiers that killed no mutant."""
    ran = [row for row in rows if row.id not in not_run]
    survivors = [row.id for row in ran if set(row.expected) - set(row.killed_by)]
    kills = {f"{row.phase}/{name}" for row in ran for name in row.killed_by}
    waiting = {f"{row.phase}/{name}" for row in rows if row not in ran for name in row.expected}
    idle = [name for bank in banks for falsifier in bank.falsifiers
            if (name := f"{bank.contract.phase}/{falsifier}") not in kills | waiting]
    return KillMatrix(mutants=tuple(rows), survivors=tuple(survivors), idle_falsifiers=tuple(idle),
                  not_run=tuple(not_run))
