"""The command `rowtwin gate`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from contracts.schema import Case, Contract
    from falsifiers.gate.phase_status import PhaseResult
    from falsifiers.gate.runner import GateRequest, GateResult
    from falsifiers.gate.weight_sample import WeightSample

app = typer.Typer(add_completion=False, no_args_is_help=True)

Device = Annotated[str, typer.Option(
    metavar="auto|cpu|interpret|cuda|emulate",
    help="Tier to run; emulate runs CUDA C++ on the CPU.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON on stdout.")]


@app.command(epilog="Example: rowtwin gate --phase 3 --candidate file:mine.py")
def gate(
    phase: Annotated[str | None, typer.Option(metavar="N|engine", help="Judge one phase.")] = None,
    through: Annotated[int | None, typer.Option(
        metavar="N", help="Judge engine and phases 0 to N; one that fails blocks its successors "
                          "(default: every phase that is built).")] = None,
    case: Annotated[str | None, typer.Option(
        metavar="ID", help="Judge one case by its id.")] = None,
    candidate: Annotated[str | None, typer.Option(
        metavar="SPEC", help="Judge file:PATH, module:pkg.attr, cmd:PROGRAM or vectors:DIR "
                             "instead of the repository's own kernels.")] = None,
    weights: Annotated[str | None, typer.Option(
        metavar="FILE", help="With --phase 3: judge a sample of a GGUF file's tensors, of any "
                             "architecture, instead of the contract's cases.")] = None,
    tensors: Annotated[int, typer.Option(
        metavar="N", help="Tensors of --weights to sample; at least one of each type.")] = 12,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the sample of --weights.")] = 0,
    tensor: Annotated[list[str] | None, typer.Option(
        metavar="NAME", help="Judge this tensor of --weights, no sample; may be repeated.")] = None,
    device: Device = "auto",
    thorough: Annotated[bool, typer.Option(
        "--thorough", help="Run every case, not only the quick ones.")] = False,
    require_device: Annotated[bool, typer.Option(
        "--require-device", help="Pass only with a fresh device proof.")] = False,
    jobs: Annotated[int, typer.Option(
        metavar="N", help="Worker processes; one is enough for --case.")] = 2,
    bisect: Annotated[bool, typer.Option(
        "--bisect", help="With --case: exit for `git bisect run` with 0 good, 1 bad, or 125 when "
                         "the commit cannot be judged.")] = False,
    as_json: AsJson = False,
) -> None:
    """Judge phases: PASS, FAIL or UNMEASURABLE, with evidence."""
    from dataclasses import replace

    import rowtwin
    from falsifiers.gate import runner
    from falsifiers.judging.errors import SuiteError
    from phases.vector_sets import apply_program_budget
    rowtwin.register_candidate_kinds()
    contracts = runner.contracts_by_phase()
    wanted, ladder = _make_request(phase, through, case, jobs, contracts)
    if bisect and case is None:
        raise SuiteError("--bisect judges one case: add --case ID")
    sample = _sample_weights(weights, tensors, seed, tensor, wanted, thorough)
    cases = sample.cases if sample else select_vector_cases(candidate, wanted, contracts)
    wanted = replace(wanted, candidate=candidate, device=device, thorough=thorough,
                     cases=cases, jobs=1 if case else jobs)
    with ProgressLine(as_json) as progress:
        gated = runner.run_gate(wanted, through=ladder, require_device=require_device,
                                on_verdict=lambda verdict: progress(verdict.case),
                                contracts=contracts)
    if as_json:
        more = {"weights": sample.as_json()} if sample else {}
        results = [result.model_dump() | more for result in gated.results]
        print(json.dumps(results if ladder or len(results) > 1 else results[0], indent=2))
    else:
        for line in sample.lines() if sample else ():
            print(line)
        for_programs = {case.phase for case in cases or () if candidate and not sample}
        print_gate(gated, contracts | {
            name: apply_program_budget(contracts[name]) for name in for_programs})
    from falsifiers.gate.phase_status import exit_code
    raise typer.Exit(exit_code(gated.results))


def _make_request(phase: str | None, through: int | None, case: str | None, jobs: int,
                  contracts: Mapping[str, Contract]) -> tuple[GateRequest, bool]:
    """Return what to run, and whether a phase that does not pass blocks its successors."""
    from falsifiers.gate.phase_status import PHASES
    from falsifiers.gate.runner import ROOT, GateRequest, find_case, is_built, parse_phase
    from falsifiers.judging.errors import SuiteError
    if sum(option is not None for option in (phase, through, case)) > 1:
        raise SuiteError("give one of --phase, --through and --case")
    if jobs < 1:
        raise SuiteError(f"--jobs must be 1 or more, but is {jobs}")
    if case is not None:
        found = find_case(case, contracts)
        return GateRequest((found.phase,), case=found), False
    if phase is not None:
        return GateRequest((parse_phase(phase),)), False
    if through is not None:
        last = PHASES.index(parse_phase(str(through)))
        return GateRequest(("engine", *PHASES[:last + 1])), True
    ready = tuple(p for p in ("engine", *PHASES) if is_built(contracts.get(p), ROOT))
    return GateRequest(ready), True


def _sample_weights(
    weights: str | None,
    tensors: int,
    seed: int,
    named: Sequence[str] | None,
    wanted: GateRequest,
    thorough: bool,
) -> WeightSample | None:
    """Return the sample of a user's weights, or None; raise `SuiteError` for unfit options."""
    from falsifiers.judging.errors import SuiteError
    if weights is None:
        if named:
            raise SuiteError("--tensor needs a file: add --weights FILE")
        return None
    if wanted.phases != ("p3",) or wanted.case is not None:
        raise SuiteError("--weights is judged by phase 3: add --phase 3")
    if tensors < 1:
        raise SuiteError(f"--tensors must be 1 or more, but is {tensors}")
    if thorough:
        raise SuiteError("--thorough does not apply to --weights: use --tensors N")
    from phases.p3_row_twin.weights import sample
    return sample(weights, tensors, seed, named or ())


def select_vector_cases(candidate: str | None, wanted: GateRequest,
                        contracts: Mapping[str, Contract]) -> tuple[Case, ...] | None:
    """Return the cases for a program or a directory of vectors, or None for the contracts' own.

    A program gets the contracts' cases and those that its phase adds for programs. Raises
    `SuiteError` where the phases cannot judge a program.
    """
    import rowtwin
    from falsifiers.judging.errors import SuiteError
    from falsifiers.vectors.candidate_kinds import phase_of
    from phases.vector_sets import require_programs
    if candidate and candidate.startswith("cmd:"):
        require_programs(candidate, wanted.phases)
        return None if wanted.case else _contract_and_program_cases(wanted.phases, contracts)
    phase = phase_of(candidate) if candidate else None
    if phase is None:
        return None
    if wanted.phases != (phase,) or wanted.case is not None:
        raise SuiteError(f"candidate {candidate} answers only calls of {phase}: add --phase "
                         f"{phase.removeprefix('p')}")
    return tuple(map(_with_gate_repro, rowtwin.phase_vectors(phase).cases))


def _contract_and_program_cases(
        phases: Sequence[str], contracts: Mapping[str, Contract]) -> tuple[Case, ...] | None:
    """Return the phases' cases and those for programs, or None when there are none of these."""
    from phases.vector_sets import program_cases
    for_programs = [case for phase in phases for case in program_cases(phase)]
    if not for_programs:
        return None
    contract_cases = [case for phase in phases for case in contracts[phase].expand()]
    return (*contract_cases, *map(_with_gate_repro, for_programs))


def _with_gate_repro(case: Case) -> Case:
    """Return a case with the gate's command to run it, since pytest cannot collect it."""
    command = f"rowtwin gate --phase {case.phase.removeprefix('p')}"
    return case.model_copy(update={"repro": command})


class ProgressLine:
    """Prints the progress of a long command on stderr, if that is a terminal."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet or not sys.stderr.isatty()
        self.count = 0

    def __enter__(self) -> Callable[[str], None]:
        return self.count_step

    def count_step(self, what: str) -> None:
        """Overwrite the line with one more step."""
        self.count += 1
        if not self.quiet:
            sys.stderr.write(f"\r\x1b[K{self.count} done, the last is {what}"[:110])
            sys.stderr.flush()

    def __exit__(self, *exc: object) -> None:
        if not self.quiet:
            sys.stderr.write("\r\x1b[K")


def print_gate(gated: GateResult, contracts: Mapping[str, Contract]) -> None:
    """Print every phase's status, and an explanation of each case that failed."""
    from falsifiers.judging.verdict import explain_failure
    failed = [v for v in gated.run.verdicts if v.outcome in ("failed", "error")]
    for verdict in failed[:10]:
        print(f"{explain_failure(verdict, contracts[verdict.phase])}\n")
    if len(failed) > 10:
        print(f"and {len(failed) - 10} more cases failed or ended in an error\n")
    for trouble in gated.run.trouble:
        print(f"{trouble}; it ended with:\n{_tail(gated.run.output)}\n")
    for result in gated.results:
        contract = contracts.get(result.phase)
        print(_result_lines(result, contract))
        if contract is not None:
            print(_rules_and_claim(contract, full=len(gated.results) == 1), end="")


def _tail(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines()[-15:])


def _result_lines(result: PhaseResult, contract: Contract | None) -> str:
    title = f"  {contract.title}" if contract else ""
    counts = ", ".join(f"{count} {word}" for word in
                       ("passed", "failed", "error", "unmeasurable", "declined")
                       if (count := getattr(result, word)))
    why = "".join(f"\n    {reason}" for reason in result.why)
    from falsifiers.console.table import color_status
    from falsifiers.gate.phase_status import describe_proof
    word = color_status(f"{result.verdict:<13}")
    return (f"{result.phase:<7}{word}{title}\n    {counts or 'no case ran'}; "
            f"device proof: {describe_proof(result, contract)}; {result.seconds:.1f} s{why}")


def _rules_and_claim(contract: Contract, full: bool) -> str:
    """Return the budgets; with `full` also the claim and what a pass does not show."""
    from textwrap import fill

    from falsifiers.gate.verdict_reporter import format_rules
    lines = [rule for rule in format_rules(contract) if full or not rule.endswith(": bitwise")]
    if full:
        lines = [f"claim: {contract.claim}", *lines, f"a pass does not say: {contract.not_proven}"]
    return "".join(fill(line, 100, initial_indent="    ", subsequent_indent="      ") + "\n"
                   for line in lines)
