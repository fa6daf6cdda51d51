"""The command `rowtwin gate`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from contracts.schema import Case, Contract
    from falsifiers.gate.phase_status import PhaseResult
    from falsifiers.gate.runner import GateRequest, GateResult
    from falsifiers.gate.weight_sample import WeightSample

app = typer.Typer(add_completion=False, no_args_is_help=True)

Device = Annotated[str, typer.Option(
    metavar="auto|cpu|interpret|cuda|emulate", help="Tier to run; emulate takes CUDA C++ to the "
                                                    "CPU.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON alone on stdout.")]


@app.command(epilog="Example: rowtwin gate --phase 3 --candidate file:mine.py")
def gate(
    phase: Annotated[str | None, typer.Option(metavar="N|engine", help="Judge one phase.")] = None,
    through: Annotated[int | None, typer.Option(
        metavar="N", help="Judge engine and phases 0 to N; a red one blocks those built on it "
                          "(default: as far as it is built).")] = None,
    case: Annotated[str | None, typer.Option(
        metavar="ID", help="Judge one case, as a verdict names it.")] = None,
    candidate: Annotated[str | None, typer.Option(
        metavar="SPEC", help="Judge file:PATH, module:pkg.attr, cmd:PROGRAM or vectors:DIR "
                             "instead of the tree.")] = None,
    weights: Annotated[str | None, typer.Option(
        metavar="FILE", help="With --phase 3: attack a sample of a GGUF file's own tensors, of any "
                             "architecture, in place of the contract's cases.")] = None,
    tensors: Annotated[int, typer.Option(
        metavar="N", help="Tensors of --weights to draw; one of each type at least.")] = 12,
    seed: Annotated[int, typer.Option(metavar="N", help="What --weights draws by.")] = 0,
    tensor: Annotated[list[str] | None, typer.Option(
        metavar="NAME", help="Take this tensor of --weights, none drawn; may be repeated.")] = None,
    device: Device = "auto",
    thorough: Annotated[bool, typer.Option(
        "--thorough", help="Run every case, not the quick ones.")] = False,
    require_device: Annotated[bool, typer.Option(
        "--require-device", help="Pass only what a device has shown to pass.")] = False,
    jobs: Annotated[int, typer.Option(
        metavar="N", help="Worker processes; one is enough for --case.")] = 2,
    bisect: Annotated[bool, typer.Option(
        "--bisect", help="With --case: exit as `git bisect run` wants, 0 good, 1 bad, 125 when "
                         "a commit cannot be judged.")] = False,
    as_json: AsJson = False,
) -> None:
    """Judge phases: PASS, FAIL or UNMEASURABLE, with evidence."""
    from dataclasses import replace

    import rowtwin
    from falsifiers.gate import runner
    from falsifiers.judging.errors import SuiteError
    from phases.vector_sets import apply_program_budget
    rowtwin.register_candidate_kinds()
    wanted, ladder = _make_request(phase, through, case, jobs)
    if bisect and case is None:
        raise SuiteError("--bisect is about one case: give --case ID with it")
    sample = _sample_weights(weights, tensors, seed, tensor, wanted, thorough)
    cases = sample.cases if sample else select_vector_cases(candidate, wanted)
    wanted = replace(wanted, candidate=candidate, device=device, thorough=thorough,
                     cases=cases, jobs=1 if case else jobs)
    with ProgressLine(as_json) as tell:
        gated = runner.run_gate(wanted, through=ladder, require_device=require_device,
                                 on_verdict=lambda verdict: tell(verdict.case))
    if as_json:
        told = {"weights": sample.as_json()} if sample else {}
        _print_json([result.model_dump() | told for result in gated.results], alone=not ladder)
    else:
        for line in sample.lines() if sample else ():
            print(line)
        asked = {case.phase for case in cases or () if candidate and not sample}
        print_gate(gated, runner.contracts_by_phase() | {
            phase: apply_program_budget(contract) for phase, contract in
            runner.contracts_by_phase().items() if phase in asked})
    from falsifiers.gate.phase_status import exit_code
    raise typer.Exit(exit_code(gated.results))


def _make_request(phase: str | None, through: int | None, case: str | None,
            jobs: int) -> tuple[GateRequest, bool]:
    """Return what to run, and whether it is a ladder on which red blocks what rests on it."""
    from falsifiers.gate.phase_status import PHASES
    from falsifiers.gate.runner import (
        ROOT,
        GateRequest,
        contracts_by_phase,
        find_case,
        is_built,
        parse_phase,
    )
    from falsifiers.judging.errors import SuiteError
    if sum(given is not None for given in (phase, through, case)) > 1:
        raise SuiteError("give one of --phase, --through and --case")
    if jobs < 1:
        raise SuiteError(f"--jobs must be 1 or more, but is {jobs}")
    contracts = contracts_by_phase()
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
    """Return the sample of a user's weights to judge, or None; refuse options that do not fit."""
    from falsifiers.judging.errors import SuiteError
    if weights is None:
        if named:
            raise SuiteError("--tensor names a tensor of --weights FILE, which is missing")
        return None
    if wanted.phases != ("p3",) or wanted.case is not None:
        raise SuiteError("--weights is judged by the row-twin product: give --phase 3 with it")
    if tensors < 1:
        raise SuiteError(f"--tensors must be 1 or more, but is {tensors}")
    if thorough:
        raise SuiteError("--thorough is about the contract's cases: give --tensors with --weights")
    from phases.p3_row_twin.weights import sample
    return sample(weights, tensors, seed, named or ())


def select_vector_cases(candidate: str | None, wanted: GateRequest) -> tuple[Case, ...] | None:
    """Return the cases that a directory of vectors answers, when it is the candidate.

    A program is asked the contract's, and those that its phase has for programs beside them. Where
    it cannot be judged it is refused before any case runs.
    """
    import rowtwin
    from falsifiers.judging.errors import SuiteError
    from falsifiers.vectors.candidate_kinds import phase_of
    from phases.vector_sets import require_programs
    if candidate and candidate.startswith("cmd:"):
        require_programs(candidate, wanted.phases)
        return None if wanted.case else _contract_and_program_cases(wanted.phases)
    phase = phase_of(candidate) if candidate else None
    if phase is None:
        return None
    if wanted.phases != (phase,) or wanted.case is not None:
        raise SuiteError(f"candidate {candidate} answers calls of {phase} alone: give --phase "
                         f"{phase.removeprefix('p')} with it")
    return tuple(map(_with_gate_repro, rowtwin.phase_vectors(phase).cases))


def _contract_and_program_cases(phases: Sequence[str]) -> tuple[Case, ...] | None:
    """Return the contracts' cases of phases and those beside them, or None when there are none."""
    from falsifiers.gate.runner import contracts_by_phase
    from phases import vector_sets
    beside = [case for phase in phases for case in vector_sets.program_cases(phase)]
    if not beside:
        return None
    own = [case for phase in phases for case in contracts_by_phase()[phase].expand()]
    return (*own, *map(_with_gate_repro, beside))


def _with_gate_repro(case: Case) -> Case:
    """Return a case with the command that runs it, since pytest collects no such case."""
    alone = f"rowtwin gate --phase {case.phase.removeprefix('p')}"
    return case.model_copy(update={"repro": alone})


def _print_json(objects: Sequence[dict[str, Any]], alone: bool) -> None:
    print(json.dumps(objects[0] if alone and len(objects) == 1 else objects, indent=2))


class ProgressLine:
    """Says on stderr, to a person at a terminal alone, how far a long command has come."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet or not sys.stderr.isatty()
        self.count = 0

    def __enter__(self) -> Callable[[str], None]:
        return self.tell

    def tell(self, what: str) -> None:
        """Overwrite the line with one more thing done."""
        self.count += 1
        if not self.quiet:
            sys.stderr.write(f"\r\x1b[K{self.count} done, the last is {what}"[:110])
            sys.stderr.flush()

    def __exit__(self, *exc: object) -> None:
        if not self.quiet:
            sys.stderr.write("\r\x1b[K")


def print_gate(gated: GateResult, contracts: dict[str, Contract]) -> None:
    """Print the gate's word on every phase, and what a reader needs on what failed."""
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
            print(_rules_and_claim(contract, whole=len(gated.results) == 1), end="")


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


def _rules_and_claim(contract: Contract, whole: bool) -> str:
    """Return the budgets in force; with `whole` the claim too, and what a pass does not say."""
    from textwrap import fill

    from falsifiers.gate.verdict_reporter import format_rules
    told = [rule for rule in format_rules(contract) if whole or not rule.endswith(": bitwise")]
    if whole:
        told = [f"claim: {contract.claim}", *told, f"a pass does not say: {contract.not_proven}"]
    return "".join(fill(line, 100, initial_indent="    ", subsequent_indent="      ") + "\n"
                   for line in told)
