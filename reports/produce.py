"""Makes a report: judges the phases and the user's model, runs the mutants, writes the files."""

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
"""Opens a file with a candidate's path, or with the tree's without a candidate."""
MAX_WORKERS = 4
"""More processes would wait for memory bandwidth."""


@dataclass(frozen=True)
class ReportOptions:
    """The options of a report."""

    out: Path
    thorough: bool = False
    device: str = "auto"
    candidate: str | None = None
    model: str | None = None
    minutes: float = 10
    command: str = "rowtwin report"
    phases: tuple[str, ...] = ()
    """The phases to judge; empty for all built phases."""
    mutants: bool = True
    """Whether to run the suite's mutants."""


def make_report(options: ReportOptions, bank_of: BankLoader, open_model: ModelOpener | None) -> int:
    """Make the report, print a summary, and return the gate's exit code."""
    if not 0 < options.minutes < float("inf"):
        raise SuiteError(f"--minutes {options.minutes:g} is refused: pass a number above 0")
    chosen, contracts = tiers.select_tiers(options.device), runner.contracts_by_phase()
    tiers.fix_triton_mode(chosen)
    built, aside = _choose_phases(options, contracts)
    opened = _open_model(options, open_model)
    folder = artefacts.prepare_folder(options.out)  # after every check that may refuse options
    started = time.perf_counter()
    user_model = _judge_user_model(options, opened)
    phases = tuple(phase for phase in built if phase not in aside)
    wanted = GateRequest(phases, candidate=options.candidate, device=options.device,
                         thorough=options.thorough,
                         jobs=1 if "cuda" in chosen.run else min(2, os.cpu_count() or 1))
    expected = expected_cases(wanted, contracts)
    with one_thread():
        gated = _run_gate(wanted, contracts, len(expected))
        kills = _run_mutants(bank_of, phases if options.mutants else (), chosen,
                             few=not options.thorough)
    verdicts = [*gated.run.verdicts,
                *missing_verdicts(expected, gated.run.verdicts, contracts, options)]
    evidence = Evidence(
        results=gated.results,
        contracts=contracts,
        verdicts=verdicts,
        kills=kills,
        user_model=user_model,
        command=options.command,
        not_judged=aside,
        # receipts are of the tree's kernels, not of a candidate
        devices={} if options.candidate else environment.receipt_devices(phases, ROOT),
        subject=options.candidate or "in-tree",
        trouble=gated.run.trouble,
        output=gated.run.output,
        environment=environment.describe_machine(ROOT, chosen),
        seconds=time.perf_counter() - started,
        speeds=() if options.candidate else speeds.load_benchmarks(ROOT, contracts),
        claims=_group_claims(phases, contracts, verdicts, options),
        code=claims.code_digest(ROOT),
        made=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        not_run=environment.list_skipped_cases({phase: contracts[phase] for phase in phases},
                                               {v.case for v in verdicts}, options.device))
    artefacts.write_report(folder, evidence)
    for line in artefacts.summary_lines(folder, evidence):
        print(line)
    return evidence.exit_code


def _choose_phases(options: ReportOptions, contracts: Mapping[str, Contract]
                   ) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the built phases, and the reasons for those that are not judged."""
    built = tuple(p for p in ("engine", *phase_status.PHASES)
                  if runner.is_built(contracts.get(p), ROOT))
    if absent := [phase for phase in options.phases if phase not in built]:
        raise SuiteError(f"phase {absent[0]} is not built")
    named = tuple(phase for phase in built if not options.phases or phase in options.phases)
    others = {phase: NOT_REQUESTED for phase in built if phase not in named}
    return built, {**others, **phases_not_judged(options.candidate, named, contracts)}


def phases_not_judged(candidate: str | None, phases: Sequence[str],
                      contracts: Mapping[str, Contract]) -> dict[str, str]:
    """Return the phases without a function of the candidate, with the reason.

    Raises `SuiteError` if the candidate has a function of no phase, or cannot be loaded.
    """
    if candidate is None:
        return {}
    offered = candidates.load_candidate(candidate)
    engine = offered.op("engine") is not None
    known = sorted({op for phase in phases for op in contracts[phase].ops})
    why = "only `rowtwin gate` judges a program in this phase" \
        if candidate.partition(":")[0] in candidates.KINDS else \
        "the candidate has none of this phase's functions"
    aside = {phase: why for phase in phases
             if not any(offered.op(op) for op in contracts[phase].ops)
             and not (engine and "step" in contracts[phase].ops)}
    if "engine" in phases:
        aside["engine"] = "candidates are compared with the engine"
    if len(aside) == len(phases):
        raise SuiteError(f"candidate {candidate} has none of the functions that phases judge: "
                         f"engine, {', '.join(known)}")
    return aside


def _group_claims(phases: Sequence[str], contracts: Mapping[str, Contract],
                  verdicts: Sequence[Verdict], options: ReportOptions) -> list[claims.ClaimGroup]:
    judged = {phase: contracts[phase] for phase in phases}
    return claims.group_claims(judged, claims.collect_proofs(judged, verdicts, ROOT,
                                                             tree=options.candidate is None))


def _open_model(options: ReportOptions, open_model: ModelOpener | None) -> UserModel | None:
    if options.model is None:
        return None
    if open_model is None:
        raise SuiteError("--model needs an opener: run `rowtwin report --model FILE`")
    return open_model(options.model, options.candidate)


def _judge_user_model(options: ReportOptions, opened: UserModel | None) -> UserModelRun | None:
    if opened is None:
        return None
    from reports.user_model import judge_model
    with ProgressBar("your model") as show:
        return judge_model(opened, options.minutes, options.candidate or "in-tree",
                           lambda line: print(line, flush=True), show)


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
    with ProgressBar("mutants") as show:
        run = run_mutants(banks, bank_of, tried, jobs=min(MAX_WORKERS, os.cpu_count() or 1),
                          few=few, on_total=show.set_total,
                          on_result=lambda result: show(result.id))
    return MutantResults(run.matrix, run.inconclusive, mutant_sources(banks))


def mutant_sources(banks: Sequence[Bank]) -> dict[str, str]:
    """Return the public report that a mutant comes from, by `phase/name`, where there is one."""
    return {f"{bank.contract.phase}/{mutant.name}": mutant.source
            for bank in banks for mutant in bank.mutants if mutant.source}


def expected_cases(wanted: GateRequest, contracts: Mapping[str, Contract]) -> list[Case]:
    """Return every case that must have a verdict, over all processes of a run."""
    return [case for device in tiers.device_passes(wanted.device) for phase in wanted.phases
            for case in runner.expected_cases(wanted, contracts[phase], device)]


def missing_verdicts(expected: Sequence[Case], verdicts: Sequence[Verdict],
                     contracts: Mapping[str, Contract],
                     options: ReportOptions) -> Iterator[Verdict]:
    """Yield an error verdict for every case without a verdict."""
    known = {verdict.case for verdict in verdicts}
    for case in expected:
        if case.id not in known:
            repro = repro_command(case, contracts[case.phase].package, options.candidate,
                                          options.device)
            yield make_verdict(case, SuiteError("it left no verdict"), None, seconds=0.0,
                                       subject=options.candidate or "in-tree", repro=repro)


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit every process started inside to one thread, since the processes share the cores."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before
