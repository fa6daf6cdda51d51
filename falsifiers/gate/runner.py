"""Runs pytest for some phases and derives their results from its verdicts."""

from __future__ import annotations

import contextlib
import difflib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from contracts.load import load_contracts
from contracts.schema import Case, Contract
from falsifiers.gate import candidates, phase_status, receipts, tiers, verdict_reporter
from falsifiers.gate.phase_status import PhaseResult
from falsifiers.judging.errors import SuiteError
from falsifiers.judging.verdict import Verdict, pytest_node

ROOT = Path(__file__).parents[2]
CASES_FILE = "cases.json"


@dataclass(frozen=True)
class GateRequest:
    """What the gate runs."""

    phases: tuple[str, ...]
    """In the order of the results."""
    candidate: str | None = None
    device: str = "auto"
    thorough: bool = False
    case: Case | None = None
    """Judge only this case."""
    cases: tuple[Case, ...] | None = None
    """Judge these cases instead of the contracts'."""
    jobs: int = 1
    junit: Path | None = None
    """Where pytest writes a JUnit file, or None."""
    root: Path = ROOT
    python: tuple[str, ...] = (sys.executable, "-m", "pytest")
    """The command that starts pytest."""


@dataclass
class PytestRun:
    """The output of one or more pytest processes."""

    verdicts: list[Verdict] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    """Errors of a process, other than verdicts."""
    output: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class GateResult:
    """The gate's results, with the evidence."""

    results: list[PhaseResult]
    run: PytestRun
    contracts: Mapping[str, Contract] = field(default_factory=dict)
    """The contracts that the phases were judged by."""


def contracts_by_phase(root: Path = ROOT) -> dict[str, Contract]:
    """Load the contracts of a checkout, by phase."""
    return load_contracts(root / "contracts")


def parse_phase(text: str) -> str:
    """Return `p3` for `3` or `p3`, and `engine`; raise `SuiteError` for anything else."""
    name = text if text == "engine" else f"p{text.removeprefix('p')}"
    if name not in ("engine", *phase_status.PHASES):
        raise SuiteError(f"unknown phase {text!r}: choose engine or a number from 0 to 8")
    return name


def is_built(contract: Contract | None, root: Path) -> bool:
    """Return whether a phase has a test_falsifier.py."""
    return contract is not None and \
        (root / contract.package.replace(".", "/") / "test_falsifier.py").is_file()


def find_case(name: str, contracts: Mapping[str, Contract]) -> Case:
    """Return the case with this id, or raise `SuiteError` with similar ids."""
    cases = {case.id: case for contract in contracts.values() for case in contract.expand()}
    if name in cases:
        return cases[name]
    near = difflib.get_close_matches(name, cases, n=3, cutoff=0.4)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise SuiteError(f"unknown case {name!r}{hint}")


def expected_cases(wanted: GateRequest, contract: Contract, device: str) -> list[Case]:
    """Return the cases of the phase that a process with this device must judge."""
    chosen = tiers.select_tiers(device)
    if wanted.case is not None:
        runs = wanted.case.phase == contract.phase and wanted.case.tier in chosen.run
        return [wanted.case] if runs else []
    table = contract.expand() if wanted.cases is None else wanted.cases
    return [case for case in table if case.phase == contract.phase
            and case.tier in chosen.tiers_for(contract) and (wanted.thorough or case.quick)]


def run_gate(wanted: GateRequest, *, through: bool = False, require_device: bool = False,
             on_verdict: Callable[[Verdict], None] = lambda verdict: None,
             contracts: Mapping[str, Contract] | None = None) -> GateResult:
    """Run pytest for the phases and judge the verdicts.

    With `through` a phase that does not pass blocks its successors. `contracts` are those of the
    checkout, by phase, where the caller has loaded them.
    """
    contracts = contracts_by_phase(wanted.root) if contracts is None else contracts
    if wanted.candidate is not None:
        candidates.check_spec(wanted.candidate)
        candidates.check_phases(wanted.candidate, wanted.phases)
        wanted = replace(wanted, candidate=candidates.make_absolute(wanted.candidate))
    ready = {p: contracts[p] for p in wanted.phases if is_built(contracts.get(p), wanted.root)}
    device = wanted.case.tier if wanted.case and wanted.device == "auto" else wanted.device
    run, expected = PytestRun(), {phase: list[Case]() for phase in ready}
    for option in tiers.device_passes(device):
        cases = {p: expected_cases(wanted, contract, option) for p, contract in ready.items()}
        for phase, found in cases.items():
            expected[phase] += found
        _run_tier(wanted, ready, cases, option, run, on_verdict)
    lacking = [f"the {tier} tier was requested, but {why}"
               for tier, why in tiers.select_tiers(device).absent.items()]
    results = [_judge(p, contracts, expected, run, wanted, lacking) for p in wanted.phases]
    if require_device:
        results = [phase_status.require_device(r)
                   if _has_device_cases(contracts.get(r.phase)) else r for r in results]
    results = phase_status.block_successors(results) if through else results
    return GateResult(results, run, contracts)


def _run_tier(wanted: GateRequest, ready: Mapping[str, Contract],
              cases: Mapping[str, Sequence[Case]], device: str, run: PytestRun,
              on_verdict: Callable[[Verdict], None]) -> None:
    nodes = [_pytest_path(wanted, ready[phase]) for phase, found in cases.items() if found]
    if not nodes:
        return
    more = run_pytest(wanted, nodes, device, on_verdict)
    run.verdicts += more.verdicts
    run.trouble += more.trouble
    run.output += more.output
    run.seconds += more.seconds


def _pytest_path(wanted: GateRequest, contract: Contract) -> str:
    if wanted.case is not None:
        return pytest_node(wanted.case, contract.package)
    return contract.package.replace(".", "/") + "/test_falsifier.py"


def _judge(phase: str, contracts: Mapping[str, Contract], expected: Mapping[str, Sequence[Case]],
           run: PytestRun, wanted: GateRequest, lacking: Sequence[str]) -> PhaseResult:
    if phase not in expected:
        return phase_status.not_built_result(phase)
    trouble = [*run.trouble, *(() if expected[phase] else lacking)]  # a case has its own reason
    result = phase_status.judge_phase(phase, run.verdicts, expected[phase], trouble)
    # a receipt is about the repository's kernels, never about a candidate
    proof = "none" if wanted.candidate else receipts.device_proof(contracts[phase], wanted.root)
    if receipts.verdicts_prove(contracts[phase], run.verdicts):
        proof = "fresh"
    return result.model_copy(update={"device_proof": proof})


def _has_device_cases(contract: Contract | None) -> bool:
    return contract is not None and any(case.tier == "cuda" for case in contract.expand())


def run_pytest(wanted: GateRequest, nodes: Sequence[str], device: str,
               on_verdict: Callable[[Verdict], None]) -> PytestRun:
    """Run pytest once over the nodes; `trouble` of the result lists errors of the process."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="rowtwin-") as folder:
        book, log = Path(folder, "verdicts.jsonl"), Path(folder, "output.txt")
        if wanted.cases is not None:
            cases = json.dumps([case.model_dump() for case in wanted.cases])  # NaN stays NaN
            book.with_name(CASES_FILE).write_text(cases, encoding="utf-8")
        with log.open("wb") as out:
            process = subprocess.Popen(pytest_command(wanted, nodes, device, book), cwd=wanted.root,
                                       stdout=out, stderr=subprocess.STDOUT,
                                       stdin=subprocess.DEVNULL)
            try:
                _follow_verdicts(process, book, on_verdict)
            finally:
                if process.poll() is None:
                    process.terminate()
                process.wait()
        output = log.read_text(encoding="utf-8", errors="replace")
        run = PytestRun(output=output, seconds=time.perf_counter() - started)
        try:
            run.verdicts = verdict_reporter.read_verdicts(book) if book.exists() else []
        except SuiteError as error:
            run.trouble.append(str(error))
    run.trouble += exit_code_mismatch(process.returncode, run.verdicts)
    return run


def pytest_command(wanted: GateRequest, nodes: Sequence[str], device: str, book: Path) -> list[str]:
    """Return the command line of one pytest process."""
    parts = [*wanted.python, *nodes, "--verdicts", str(book), "--device", device, "-q",
             "--tb=short", "-p", "no:cacheprovider"]
    if wanted.thorough or (wanted.case is not None and not wanted.case.quick):
        parts.append("--thorough")
    if wanted.candidate:
        parts += ["--candidate", wanted.candidate]
    if wanted.jobs > 1:
        # worksteal keeps neighbours in one process, which caches their models and streams
        parts += ["-n", str(wanted.jobs), "--dist", "worksteal"]
    if wanted.cases is not None:
        parts += ["--cases", str(book.with_name(CASES_FILE))]
    if wanted.junit is not None:
        parts.append(f"--junitxml={wanted.junit.resolve()}")
    return parts


def _follow_verdicts(process: subprocess.Popen[bytes], book: Path,
                     on_verdict: Callable[[Verdict], None]) -> None:
    """Call `on_verdict` for each verdict as it is written, until the process ends."""
    done = 0
    running = True
    while running:
        running = process.poll() is None
        lines = book.read_text(encoding="utf-8").split("\n")[:-1] if book.exists() else []
        for line in lines[done:]:
            with contextlib.suppress(ValueError):  # read_verdicts() reports a broken line
                on_verdict(Verdict.model_validate_json(line))
        done = max(done, len(lines))
        if running:
            time.sleep(0.1)


def exit_code_mismatch(code: int, verdicts: Sequence[Verdict]) -> list[str]:
    """Return a sentence if pytest's exit code contradicts its verdicts."""
    results = [phase_status.judge_phase(phase, verdicts) for phase in {v.phase for v in verdicts}]
    expected = {0: 0, 1: 1}.get(phase_status.exit_code(results), verdict_reporter.NOT_PROVEN)
    if code == expected and verdicts:
        return []
    end = f"was killed by signal {-code}" if code < 0 else f"exited {code}"
    why = f"its {len(verdicts)} verdicts require {expected}" if verdicts else "it left no verdict"
    return [f"pytest {end}, but {why}"]
