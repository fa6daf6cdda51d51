"""Runs mutants against their falsifiers: in this process, in several, or each in a new one.

A mutant of a device may corrupt the context of its process, so that later launches fail there.
Each falsifier therefore attacks it in a new process. Other mutants share `jobs` processes.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field

from falsifiers.gate import receipts, tiers
from falsifiers.gate.runner import ROOT
from falsifiers.gate.tiers import TierSelection
from falsifiers.judging.errors import SuiteError
from falsifiers.judging.matrix import Bank, KillMatrix, MutantResult
from falsifiers.judging.subject import Mutant
from falsifiers.mutation.mutants import make_matrix, make_result, sample_names, try_killers

BankLoader = Callable[[str], Bank]
"""Returns a phase's bank; every process calls it, so it must be importable."""
DEVICE_JOBS = 14
"""New processes at a time on a device; more do not fit its memory."""


@dataclass(frozen=True)
class Attempt:
    """What some falsifiers of a mutant did in one process."""

    mutant_id: str
    kills: Mapping[str, str] = field(default_factory=dict)
    """The rung by falsifier."""
    seconds: float = 0.0
    inconclusive: str | None = None
    """Why the attack says nothing: the right version fails the same case, for example."""


@dataclass(frozen=True)
class MutantRun:
    """The kill matrix, and the mutants for which there is no answer."""

    matrix: KillMatrix
    inconclusive: Mapping[str, str] = field(default_factory=dict)
    """The reason by `phase/name`."""


Work = tuple[Bank, Mutant, tuple[str, ...]]
"""A mutant and the falsifiers that attack it in one process."""


def run_mutants(
    banks: Sequence[Bank],
    load_bank: BankLoader,
    chosen: TierSelection,
    *,
    jobs: int = 1,
    few: bool = False,
    on_total: Callable[[int], None] = lambda total: None,
    on_result: Callable[[MutantResult], None] = lambda result: None,
) -> MutantRun:
    """Try every mutant of the banks, or with `few` a sample of each; the rest is `not_run`.

    A receipt's result is used for a mutant that cannot run here.
    """
    samples = {bank.contract.phase: set(sample_names([m.name for m in bank.mutants]))
               for bank in banks}
    pairs = [(bank, mutant) for bank in banks for mutant in bank.mutants]
    work = [(bank, mutant) for bank, mutant in pairs
            if not few or mutant.name in samples[bank.contract.phase]]
    on_total(len(work))
    here = [(bank, mutant) for bank, mutant in work if bank.runs_here(mutant)]
    results, inconclusive = try_mutants(here, load_bank, chosen, jobs, on_result)
    for bank, mutant in work:
        if not bank.runs_here(mutant):
            stored = _stored_result(bank, mutant)
            results |= {stored.id: stored} if stored else {}
            on_result(stored or make_result(bank, mutant))
    untried = [make_result(bank, mutant) for bank, mutant in pairs]
    rows = [results.get(row.id, row) for row in untried]
    not_run = [row.id for row in rows if row.id not in results or row.id in inconclusive]
    return MutantRun(make_matrix(banks, rows, not_run), inconclusive)


def try_mutants(
    pairs: Sequence[tuple[Bank, Mutant]],
    load_bank: BankLoader,
    chosen: TierSelection,
    jobs: int = 1,
    on_result: Callable[[MutantResult], None] = lambda result: None,
) -> tuple[dict[str, MutantResult], dict[str, str]]:
    """Return the results of mutants that run here, and why some are inconclusive, by id."""
    isolated, shared = list[Work](), list[Work]()
    for bank, mutant in pairs:
        if mutant.device == "cuda" and "cuda" in bank.tiers:
            isolated += [(bank, mutant, (killer,)) for killer in mutant.killers]
        else:
            shared.append((bank, mutant, mutant.killers))
    by_id = {f"{bank.contract.phase}/{mutant.name}": (bank, mutant) for bank, mutant in pairs}
    attempts: dict[str, list[Attempt]] = {name: [] for name in by_id}
    results, inconclusive = dict[str, MutantResult](), dict[str, str]()
    for attempt in _run_all(isolated, shared, load_bank, chosen, jobs):
        name, (bank, mutant) = attempt.mutant_id, by_id[attempt.mutant_id]
        attempts[name].append(attempt)
        if attempt.inconclusive:
            inconclusive[name] = attempt.inconclusive
        if len(attempts[name]) == sum(work[1] is mutant for work in (*isolated, *shared)):
            kills = {killer: one.kills[killer] for killer in mutant.killers
                     for one in attempts[name] if killer in one.kills}
            results[name] = make_result(bank, mutant, {} if name in inconclusive else kills,
                                        sum(one.seconds for one in attempts[name]))
            on_result(results[name])
    return {name: results[name] for name in by_id if name in results}, inconclusive


def _run_all(isolated: Sequence[Work], shared: Sequence[Work], load_bank: BankLoader,
             chosen: TierSelection, jobs: int) -> Iterator[Attempt]:
    if isolated:
        yield from _run_in_processes(isolated, load_bank, chosen,
                                     min(DEVICE_JOBS, os.cpu_count() or 1), tasks_per_process=1)
    if jobs > 1 and shared:
        yield from _run_in_processes(shared, load_bank, chosen, jobs)
    else:
        for bank, mutant, killers in shared:
            yield attack_mutant(bank, mutant, killers)


def attack_mutant(bank: Bank, mutant: Mutant, killers: Sequence[str]) -> Attempt:
    """Attack a mutant with some of its falsifiers in this process."""
    name, started = f"{bank.contract.phase}/{mutant.name}", time.perf_counter()
    try:
        kills = try_killers(bank, mutant, killers)
    except SuiteError as error:
        return Attempt(name, {}, time.perf_counter() - started, str(error))
    return Attempt(name, kills, time.perf_counter() - started)


def _stored_result(bank: Bank, mutant: Mutant) -> MutantResult | None:
    """Return the last receipt's result of a mutant, or None."""
    found = [row for receipt in receipts.load_receipts(bank.contract.phase, ROOT)
             for row in receipt.mutants if row.name == mutant.name]
    return found[-1].model_copy(update={"from_receipt": True}) if found else None


def _run_in_processes(work: Sequence[Work], load_bank: BankLoader, chosen: TierSelection,
                      jobs: int, tasks_per_process: int | None = None) -> Iterator[Attempt]:
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    with ProcessPoolExecutor(jobs, context, _start_worker, (load_bank, chosen),
                             max_tasks_per_child=tasks_per_process) as pool:
        futures = [pool.submit(_attack_by_name, bank.contract.phase, mutant.name, killers)
                   for bank, mutant, killers in work]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


_banks: dict[str, Bank] = {}
"""The banks of a worker process, each loaded once."""
_worker_setup: list[tuple[BankLoader, TierSelection]] = []


def _start_worker(load_bank: BankLoader, chosen: TierSelection) -> None:
    tiers.fix_triton_mode(chosen)
    tiers.limit_torch_threads()
    _worker_setup.append((load_bank, chosen))


def _attack_by_name(phase: str, name: str, killers: tuple[str, ...]) -> Attempt:
    if phase not in _banks:
        load_bank, chosen = _worker_setup[0]
        _banks[phase] = load_bank(phase).on(chosen.run)
    return attack_mutant(_banks[phase], _banks[phase].mutant(name), killers)
