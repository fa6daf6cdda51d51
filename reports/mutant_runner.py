"""Runs mutants on several processes, one torch thread each."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

from falsifiers.gate import receipts, tiers
from falsifiers.gate.runner import ROOT
from falsifiers.gate.tiers import TierSelection
from falsifiers.judging.errors import SuiteError
from falsifiers.judging.matrix import Bank, MutantResult
from falsifiers.judging.subject import Mutant
from falsifiers.mutation import mutants
from reports.evidence import MutantResults

BankOf = Callable[[str], Bank]
"""Returns a phase's bank; workers import it, so it must be a module's function."""


@dataclass(frozen=True)
class TrialResult:
    """The result of one mutant, or why there is none."""

    mutant_result: MutantResult
    inconclusive: str | None = None


def run_mutants(bank_of: BankOf, phases: Sequence[str], chosen: TierSelection, jobs: int,
                on_row: Callable[[MutantResult], None] = lambda row: None,
                on_total: Callable[[int], None] = lambda total: None,
                few: bool = False) -> MutantResults:
    """Try every mutant of the phases; with `few`, only a sample, and list the others as not run.

    A mutant whose case also fails without it has no result, but a reason.
    """
    tiers.fix_triton_mode(chosen)
    banks = [load_bank(bank_of, phase, chosen) for phase in phases]
    pairs = [(bank, mutant) for bank in banks for mutant in bank.mutants]
    work, left = pairs, list[MutantResult]()
    if few:
        drawn = {(bank.contract.phase, name) for bank in banks
                 for name in mutants.sample_names([m.name for m in bank.mutants])}
        work = [pair for pair in pairs if (pair[0].contract.phase, pair[1].name) in drawn]
        left = [untried_result(bank, mutant) for bank, mutant in pairs
                if (bank.contract.phase, mutant.name) not in drawn]
    on_total(len(work))
    if jobs > 1:
        tried = _run_in_processes(bank_of, work, chosen, jobs, on_row)
    else:
        tried = []
        for bank, mutant in work:
            tried.append(attempt(bank, mutant))
            on_row(tried[-1].mutant_result)
    inconclusive = {mutant_name(t.mutant_result): t.inconclusive for t in tried if t.inconclusive}
    not_here = [mutant_name(t.mutant_result) for t, (bank, mutant) in zip(tried, work, strict=True)
            if not t.mutant_result.from_receipt and not bank.runs_here(mutant)]
    matrix = mutants.make_matrix(banks, [*(t.mutant_result for t in tried), *left],
                                  [*not_here, *inconclusive, *map(mutant_name, left)])
    sources = {f"{bank.contract.phase}/{m.name}": m.source for bank, m in pairs if m.source}
    return MutantResults(matrix, inconclusive, sources)


def mutant_name(row: MutantResult) -> str:
    """Return a mutant's name as the matrix lists it, `p1/row_index_is_the_slot`."""
    return f"{row.phase}/{row.name}"


def load_bank(bank_of: BankOf, phase: str, chosen: TierSelection) -> Bank:
    """Return a phase's bank for the tiers that run here."""
    return bank_of(phase).on(chosen.run)


def attempt(bank: Bank, mutant: Mutant) -> TrialResult:
    """Try one mutant; for one that needs a device, return the receipt's result."""
    if not bank.runs_here(mutant):
        known = [row for receipt in receipts.load_receipts(bank.contract.phase, ROOT)
                 for row in receipt.mutants if row.name == mutant.name]
        if known:
            return TrialResult(known[-1].model_copy(update={"from_receipt": True}))
    try:
        return TrialResult(mutants.try_mutant(bank, mutant))
    except SuiteError as error:
        return TrialResult(untried_result(bank, mutant), str(error))


def untried_result(bank: Bank, mutant: Mutant) -> MutantResult:
    """Return the row of a mutant without a result."""
    return MutantResult(name=mutant.name, phase=bank.contract.phase, fault=mutant.fault,
                        device="cuda" if mutant.device == "cuda" else "cpu",
                        expected=mutant.killers)


def _run_in_processes(bank_of: BankOf, work: Sequence[tuple[Bank, Mutant]], chosen: TierSelection,
                      jobs: int, on_row: Callable[[MutantResult], None]) -> list[TrialResult]:
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    with ProcessPoolExecutor(jobs, context, _start_worker, (bank_of, chosen)) as pool:
        futures = [pool.submit(_try_by_name, bank.contract.phase, mutant.name)
                   for bank, mutant in work]
        try:
            for future in as_completed(futures):
                on_row(future.result().mutant_result)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [future.result() for future in futures]


_banks: dict[str, Bank] = {}
"""The banks of a worker process, each built once."""
_worker_setup: list[tuple[BankOf, TierSelection]] = []


def _start_worker(bank_of: BankOf, chosen: TierSelection) -> None:
    tiers.limit_torch_threads()
    _worker_setup.append((bank_of, chosen))


def _try_by_name(phase: str, name: str) -> TrialResult:
    if phase not in _banks:
        bank_of, chosen = _worker_setup[0]
        _banks[phase] = load_bank(bank_of, phase, chosen)
    bank = _banks[phase]
    return attempt(bank, next(m for m in bank.mutants if m.name == name))
