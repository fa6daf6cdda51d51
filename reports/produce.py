"""Making a report: judge, try the mutants, look at the user's file, and write it all down."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from contracts.schema import Case, Contract
from falsifiers.console.progress import ProgressBar
from falsifiers.gate import candidates, phase_status, runner, tiers
from falsifiers.gate.runner import ROOT, GateRequest, GateResult
from falsifiers.judging.errors import SuiteError
from falsifiers.judging.matrix import Bank
from falsifiers.judging.verdict import Verdict, make_verdict, repro_command
from falsifiers.mutation.mutant_runner import BankLoader, run_mutants
from falsifiers.mutation.mutants import make_matrix
from reports import artefacts, claims, environment, speeds
from reports.evidence import NOT_REQUESTED, Evidence, MutantResults, UserModelRun

if TYPE_CHECKING:
    from reports.user_model import UserModel

ModelOpener = Callable[[str, str | None], "UserModel"]
"""Opens a file for a candidate's path, or for the tree's when there is no candidate."""
MAX_WORKERS = 4
"""More processes than this wait for memory rather than for each other."""


@dataclass(frozen=True)
class ReportOptions:
    """What a report was asked for."""

    out: Path
    thorough: bool = False
    device: str = "auto"
    candidate: str | None = None
    model: str | None = None
    minutes: float = 10
    command: str = "rowtwin report"
    phases: tuple[str, ...] = ()
    """The phases to judge; none for all that are built."""
    mutants: bool = True
    """Whether to try the suite's own mutants."""


def make_report(asked: ReportOptions, bank_of: BankLoader, open_model: ModelOpener | None) -> int:
    """Make the report, say where it lies, and return the gate's exit code."""
    if not 0 < asked.minutes < float("inf"):
        raise SuiteError(f"--minutes {asked.minutes:g} is refused: give a number above 0")
    chosen, contracts = tiers.select_tiers(asked.device), runner.contracts_by_phase()
    tiers.fix_triton_mode(chosen)
    built, aside = _choose_phases(asked, contracts)
    opened = _open_model(asked, open_model)
    folder = artefacts.prepare_folder(asked.out)  # only now: a mistake leaves an older report alone
    started = time.perf_counter()
    own = _judge_user_model(asked, opened)
    phases = tuple(phase for phase in built if phase not in aside)
    wanted = GateRequest(
        phases,
        candidate=asked.candidate,
        device=asked.device,
        thorough=asked.thorough,
        jobs=1 if "cuda" in chosen.run else min(2, os.cpu_count() or 1),
    )
    expected = expected_cases(wanted, contracts)
    with one_thread():
        gated = _run_gate(wanted, contracts, len(expected))
        kills = _run_mutants(
            bank_of, phases if asked.mutants else (), chosen, few=not asked.thorough
        )
    verdicts = [
        *gated.run.verdicts,
        *missing_verdicts(expected, gated.run.verdicts, contracts, asked),
    ]
    evidence = Evidence(
        results=gated.results,
        contracts=contracts,
        verdicts=verdicts,
        kills=kills,
        user_model=own,
        command=asked.command,
        not_judged=aside,
        devices={}
        if asked.candidate
        else environment.receipt_devices(phases, ROOT),  # a candidate borrows nobody's receipts
        subject=asked.candidate or "in-tree",
        trouble=gated.run.trouble,
        output=gated.run.output,
        environment=environment.describe_machine(ROOT, chosen),
        seconds=time.perf_counter() - started,
        speeds=() if asked.candidate else speeds.load_benchmarks(ROOT, contracts),
        claims=_group_claims(phases, contracts, verdicts, asked),
        code=claims.code_digest(ROOT),
        made=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        not_run=environment.list_skipped_cases(
            {phase: contracts[phase] for phase in phases}, {v.case for v in verdicts}, asked.device
        ),
    )
    artefacts.write_report(folder, evidence)
    for line in artefacts.summary_lines(folder, evidence):
        print(line)
    return evidence.exit_code


def _choose_phases(
    asked: ReportOptions, contracts: Mapping[str, Contract]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the phases that are built, and those of them that are not judged, with the reason."""
    built = tuple(
        p for p in ("engine", *phase_status.PHASES) if runner.is_built(contracts.get(p), ROOT)
    )
    if absent := [phase for phase in asked.phases if phase not in built]:
        raise SuiteError(f"phase {absent[0]} is not built")
    named = tuple(phase for phase in built if not asked.phases or phase in asked.phases)
    others = {phase: NOT_REQUESTED for phase in built if phase not in named}
    return built, {**others, **phases_not_judged(asked.candidate, named, contracts)}


def phases_not_judged(candidate: str | None, phases: Sequence[str],
              contracts: Mapping[str, Contract]) -> dict[str, str]:
    """Return the phases that a candidate has no part in, with the reason.

    Raises `SuiteError` when it has a part in none of them, or cannot be loaded.
    """
    if candidate is None:
        return {}
    offered = candidates.load_candidate(candidate)
    engine = offered.op("engine") is not None
    known = sorted({op for phase in phases for op in contracts[phase].ops})
    why = "what this phase asks of a program, if anything, is asked by `rowtwin gate` alone" \
        if candidate.partition(":")[0] in candidates.KINDS else \
        "the candidate has none of this phase's functions"
    aside = {phase: why for phase in phases
             if not any(offered.op(op) for op in contracts[phase].ops)
             and not (engine and "step" in contracts[phase].ops)}
    if "engine" in phases:
        aside["engine"] = "candidates are held to the engine, so it is not theirs"
    if len(aside) == len(phases):
        raise SuiteError(f"candidate {candidate} offers none of the functions that phases judge: "
                         f"engine, {', '.join(known)}")
    return aside


def _group_claims(phases: Sequence[str], contracts: Mapping[str, Contract],
            verdicts: Sequence[Verdict], asked: ReportOptions) -> list[claims.ClaimGroup]:
    mine = {phase: contracts[phase] for phase in phases}
    return claims.group_claims(
        mine, claims.collect_proofs(mine, verdicts, ROOT, tree=asked.candidate is None)
    )


def _open_model(asked: ReportOptions, open_model: ModelOpener | None) -> UserModel | None:
    if asked.model is None:
        return None
    if open_model is None:
        raise SuiteError("--model needs the wiring that `rowtwin` gives it")
    return open_model(asked.model, asked.candidate)


def _judge_user_model(asked: ReportOptions, opened: UserModel | None) -> UserModelRun | None:
    if opened is None:
        return None
    from reports.user_model import judge_model
    with ProgressBar("your model") as tell:
        return judge_model(opened, asked.minutes, asked.candidate or "in-tree",
                           lambda line: print(line, flush=True), tell)


def _run_gate(wanted: GateRequest, contracts: Mapping[str, Contract], total: int) -> GateResult:
    with ProgressBar("cases", total) as tell:
        return runner.run_gate(wanted, through=True, on_verdict=lambda v: tell(v.case),
                               contracts=contracts)


def _run_mutants(
    bank_of: BankLoader, phases: Sequence[str], chosen: tiers.TierSelection, few: bool
) -> MutantResults:
    if chosen.absent or not phases:  # what was asked for cannot be had: nothing can be killed
        return MutantResults(make_matrix([], [], []))
    here = tiers.select_tiers("auto")  # a mutant that another tier shows has not survived this one
    tried = chosen if "cuda" in (*here.run, *chosen.run) else here
    tiers.fix_triton_mode(tried)
    banks = [bank_of(phase).on(tried.run) for phase in phases]
    with ProgressBar("mutants") as tell:
        run = run_mutants(banks, bank_of, tried, jobs=min(MAX_WORKERS, os.cpu_count() or 1),
                          few=few, on_total=tell.set_total,
                          on_result=lambda result: tell(result.id))
    return MutantResults(run.matrix, run.inconclusive, mutant_sources(banks))


def mutant_sources(banks: Sequence[Bank]) -> dict[str, str]:
    """Return the public report that a mutant comes from, by `phase/name`, where there is one."""
    return {f"{bank.contract.phase}/{mutant.name}": mutant.source
            for bank in banks for mutant in bank.mutants if mutant.source}


def expected_cases(wanted: GateRequest, contracts: Mapping[str, Contract]) -> list[Case]:
    """Return every case that must leave a verdict, over all the processes of a run."""
    return [case for device in tiers.device_passes(wanted.device) for phase in wanted.phases
            for case in runner.expected_cases(wanted, contracts[phase], device)]


def missing_verdicts(
    expected: Sequence[Case],
    verdicts: Sequence[Verdict],
    contracts: Mapping[str, Contract],
    asked: ReportOptions,
) -> Iterator[Verdict]:
    """Yield an error for every case that left no verdict, so that it is told like any other."""
    known = {verdict.case for verdict in verdicts}
    for case in expected:
        if case.id not in known:
            repro = repro_command(case, contracts[case.phase].package, asked.candidate,
                                       asked.device)
            yield make_verdict(case, SuiteError("it left no verdict"), None, seconds=0.0,
                                   subject=asked.candidate or "in-tree", repro=repro)


@contextmanager
def one_thread() -> Iterator[None]:
    """Give every process started inside one thread: they share the cores as whole processes."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before
