"""The command `rowtwin bisect`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from contracts.schema import Case
    from falsifiers.bisect.divergence import Location, Report, ValueDiff
    from falsifiers.bisect.paired_runs import Setup, Step
    from falsifiers.bisect.repro_script import BisectRequest

Width = Annotated[int, typer.Option("--m", metavar="M", help="Rows of the batch.")]
Steps = Annotated[int, typer.Option(metavar="S", help="Steps to run.")]
Prompt = Annotated[int, typer.Option(metavar="P", help="Tokens of the longest row's prompt.")]
Seed = Annotated[int, typer.Option(metavar="N", help="What tokens and slots are drawn by.")]

StepOptions = tuple[Path | None, bool]
"""The file of `--shrink`, and whether `--greedy` was given."""
app = typer.Typer(add_completion=False, no_args_is_help=True)
MAX_ROWS = 64
MODE_NOTES = {
    "silent": "steps that report their ops agree; the state or logits of silent steps differ",
    "greedy": "the steps agree; argmax or a greedy run after a step differs",
}


@app.callback()
def _root() -> None:
    """Find where a batch differs from its rows."""


@app.command(epilog="Example: rowtwin bisect nano --phase 5 --candidate file:mine.py")
def bisect(
    model: Annotated[str | None, typer.Argument(
        metavar="MODEL", help="A test model's name (nano, tiny) or a qwen35 GGUF file "
                              "(default: the case's).")] = None,
    phase: Annotated[str | None, typer.Option(
        metavar="N|newest", help="The phase whose path runs the batch (default: newest, or the "
                                 "case's).")] = None,
    candidate: Annotated[str | None, typer.Option(
        metavar="SPEC", help="Put the ops of file:PATH or module:pkg.attr into that path.")] = None,
    mutant: Annotated[str | None, typer.Option(
        metavar="NAME", help="Run a mutant of the phase instead; `rowtwin mutants` lists them."
        )] = None,
    case: Annotated[str | None, typer.Option(
        metavar="ID", help="Run the steps of a gate case instead of --m, --steps and --prompt."
        )] = None,
    against: Annotated[str, typer.Option(
        metavar="auto|oracle|alone|N", help="What each row is compared with: forward_single "
        "(oracle), the same path at m = 1 (alone), or another phase's path (N). auto is oracle, "
        "or alone for a candidate that declares its own arithmetic.")] = "auto",
    m: Width = 4,
    steps: Steps = 6,
    prompt: Prompt = 70,
    seed: Seed = 0,
    device: Annotated[str, typer.Option(
        metavar="cpu|interpret|cuda|emulate", help="Where the batch runs. On the CPU, interpret "
        "runs the phase's Triton kernels, and emulate every kernel for a device.")] = "cpu",
    greedy: Annotated[bool, typer.Option(
        "--greedy", help="If all steps agree, also compare argmax and greedy runs after each step "
        "with the solo rows.")] = False,
    shrink: Annotated[Path | None, typer.Option(
        metavar="FILE", help="Shrink a divergence to the smallest failing case, and write a "
                             "script that reproduces it; FILE must not exist.")] = None,
    trace: Annotated[list[Path] | None, typer.Option(
        metavar="DIR", help="Compare two traces and run nothing; pass it twice.")] = None,
    names: Annotated[Path | None, typer.Option(
        metavar="FILE", help="With --trace: a YAML file that maps one engine's names to the "
        "other's.")] = None,
    cosine: Annotated[float | None, typer.Option(
        metavar="C", help="With --trace: smallest cosine of a token's vector; without it, bits "
        "are compared.")] = None,
    norm: Annotated[float | None, typer.Option(
        metavar="N", help="With --cosine: largest distance of a ratio of norms from 1.")] = None,
    html: Annotated[Path | None, typer.Option(
        metavar="FILE", help="With --trace: also write a map of layers and steps.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON on stdout.")] = False,
) -> None:
    """Find the first op whose inputs agree with the solo row and whose outputs differ.

    Exits 0 without a divergence, 1 with one, 2 when it cannot be decided.
    """
    from falsifiers.bisect.repro_script import BisectRequest
    stack = None if model or case or trace else _serving_phase(phase)
    step_options = shrink, greedy
    if _compares_traces(model or case or stack, trace, (names, cosine, norm, html)):
        _reject_step_options(step_options, "--trace")
        from falsifiers.bisect.trace_cli import compare_trace_dirs
        raise typer.Exit(compare_trace_dirs(trace or (), names, (cosine, norm), html, as_json))
    request = BisectRequest(model or "nano", phase or "newest", candidate, against, device, mutant)
    if stack is not None:
        raise typer.Exit(_bisect_stack(request, stack, None, step_options, as_json))
    if case is not None:
        _check_options(m, steps, prompt, device)
        raise typer.Exit(_bisect_case(request, case, (model, phase), step_options, as_json))
    _, run = plan_run(request.model, (request.phase, candidate, against, device), m, steps, prompt,
                      seed)
    raise typer.Exit(_search_and_print(request, [(run, m)], step_options, as_json))


def _bisect_case(request: BisectRequest, case: str, model_and_phase: tuple[str | None, str | None],
                 step_options: StepOptions, as_json: bool) -> int:
    """Bisect a case: the events of a serving stack, or the steps of a path."""
    import rowtwin
    from falsifiers.bisect import session
    from falsifiers.gate import phase_status
    found, bank, subject = rowtwin.find_case(case, request.candidate)
    if found.phase in phase_status.SERVING_PHASES:
        return _bisect_stack(request, found.phase, found, step_options, as_json)
    request, runs = session.steps_from_case(request, found, bank, subject, *model_and_phase)
    return _search_and_print(request, runs, step_options, as_json)


def _serving_phase(phase: str | None) -> str | None:
    """Return the phase if it is a serving phase, else None."""
    from falsifiers.gate import phase_status
    from falsifiers.gate.runner import parse_phase
    name = None if phase in (None, "newest") else parse_phase(phase)
    return name if name in phase_status.SERVING_PHASES else None


def _bisect_stack(request: BisectRequest, phase: str, case: Case | None,
                  step_options: StepOptions, as_json: bool) -> int:
    """Find the first wrong event of a serving stack in one case, or in all relevant cases."""
    import rowtwin
    from falsifiers.bisect.events.event_search import find_wrong_case, relevant_cases
    _reject_step_options(step_options, "a serving stack, whose events are compared")
    bank = rowtwin.phase_bank(phase)
    cases = relevant_cases(bank, request.mutant) if case is None else [case]
    found = find_wrong_case(
        cases, bank, lambda case: rowtwin.find_case(case.id, request.candidate)[2], request.mutant)
    if found is None:
        compared = case.id if case is not None else phase
        _print_report({"diverged": False},
                      [f"every event of {compared} equals the reference stack's"], as_json)
        return 0
    wrong, divergence = found
    line = divergence.describe()
    _print_report({"diverged": True, "case": wrong.id, **divergence.to_dict()},
                  [line] if case is not None else [wrong.id, f"  {line}"], as_json)
    return 1


def _reject_step_options(step_options: StepOptions, target: str) -> None:
    from falsifiers.judging.errors import SuiteError
    for value, option in zip(step_options, ("--shrink", "--greedy"), strict=True):
        if value:
            raise SuiteError(f"{option} needs steps to run, so it does not go with {target}")


def _search_and_print(request: BisectRequest, runs: list[tuple[list[Step], int]],
                      step_options: StepOptions, as_json: bool) -> int:
    """Search the steps, shrink a divergence on request, and print; return the exit code."""
    import rowtwin
    from falsifiers.bisect import session
    from falsifiers.judging.errors import SuiteError
    shrink, greedy = step_options
    if shrink is not None and shrink.exists():
        raise SuiteError(f"--shrink {shrink} exists and is not overwritten: pass a new file")
    build = rowtwin.build_bisect_setup
    report, scenario = session.search_runs(request.build_setup(build), runs, greedy)
    data, lines = report.to_dict(), format_report(report)
    if shrink is not None and report.place is not None:
        shrunk = session.shrink_and_write(build, request, scenario, report, shrink)
        data["shrunk"] = shrunk.to_dict()
        lines += session.format_shrunk(shrunk, shrink)
    _print_report(data, lines, as_json)
    return 1 if report.place is not None else 0


def _print_report(data: dict[str, Any], lines: list[str], as_json: bool) -> None:
    print(json.dumps(data, indent=2) if as_json else "\n".join(lines))


def _compares_traces(target: str | None, trace: list[Path] | None,
                     trace_options: tuple[object, ...]) -> bool:
    """Return whether traces are compared; raise `SuiteError` for both inputs or none."""
    from falsifiers.judging.errors import SuiteError
    if target is None and not trace:
        raise SuiteError("missing input: pass MODEL, --case ID, two --trace DIR, or --phase 0/2/7")
    if target is not None and trace:
        raise SuiteError(f"--trace runs nothing, so it does not go with {target}: drop one of them")
    if not trace and any(option is not None for option in trace_options):
        raise SuiteError("--names, --cosine, --norm and --html need --trace A --trace B")
    return bool(trace)


def plan_run(model: str, options: tuple[str, str | None, str, str], m: int, steps: int,
             prompt: int, seed: int) -> tuple[Setup, list[Step]]:
    """Return the setup for (phase, candidate, against, device), and the planned steps."""
    import rowtwin
    from falsifiers.bisect.paired_runs import plan
    from falsifiers.judging.errors import SuiteError
    _check_options(m, steps, prompt, options[-1])
    setup: Setup = rowtwin.build_bisect_setup(model, *options)
    if prompt > (context := setup.model.config.context):
        raise SuiteError(f"--prompt {prompt} is past the model's context of {context}")
    return setup, plan(m, steps, prompt, setup.model.config.vocab, seed)


def _check_options(m: int, steps: int, prompt: int, device: str) -> None:
    from falsifiers.gate import tiers
    from falsifiers.judging.errors import SuiteError
    for name, value, most in (("--m", m, MAX_ROWS), ("--steps", steps, 1 << 16),
                              ("--prompt", prompt, 1 << 20)):
        if not 1 <= value <= most:
            raise SuiteError(f"{name} must be 1 to {most}, but is {value}")
    if device not in tiers.TIERS:
        raise SuiteError(f"unknown device {device!r}: choose one of {', '.join(tiers.TIERS)}")
    for tier, why in tiers.select_tiers(device).absent.items():
        raise SuiteError(f"the batch cannot run on {tier}: {why}")
    tiers.fix_triton_mode(tiers.select_tiers(device))
    tiers.limit_torch_threads()


def format_report(report: Report) -> list[str]:
    """Return a report as lines of text."""
    lines = [f"{report.path} in batches, each row compared with {report.against}: "
             f"{report.steps} steps, {report.compared:,} digests compared"]
    if report.not_compared:
        lines.append(f"not compared, as only one side reports it: {', '.join(report.not_compared)}")
    lines += format_location(report)
    if report.place is None:
        return lines
    if report.stray:
        lines.append(f"written in slots that the step does not name: {', '.join(report.stray)}")
    swapped = " and ".join(report.healed_by)
    lines.append(f"swapping back {swapped} heals the run" if swapped
                 else "no op swapped back heals the run: look at how the step combines its ops")
    return lines


def format_location(report: Report) -> list[str]:
    """Return lines that say where two runs first differ."""
    if report.place is None:
        return ["no divergence"]
    lines = [_describe_location(report, report.place)]
    lines += [f"  {MODE_NOTES[report.seen]}"] if report.seen in MODE_NOTES else []
    if report.values is not None:
        lines += _format_values(report.values)
    if report.note:
        lines.append(f"  {report.note}")
    return lines


def _describe_location(report: Report, place: Location) -> str:
    from falsifiers.bisect.divergence import split_op_id
    layer, op = split_op_id(place.op)
    at = f"step {place.step}, " + (f"layer {layer}, " if layer is not None else "") + \
        f"slot {place.slot}" + (f", row {report.row}" if report.row is not None else "")
    sentence = {
        "stray": f"{op} writes {place.name} of a slot that the step does not name",
        "state": f"{op} leaves another state {place.name}, though all before it agrees",
        "input": f"{op} reads another {place.name}, though the outputs of all ops before it agree",
        "handed": f"{place.name}, returned for the row, are overwritten during step {place.step}",
        "choice": f"{op} of the step's {place.name} differs from the solo row's",
        "run": f"a greedy run after the step differs from the solo row in {place.name}",
        "refusal": f"{op} after the step must refuse its input: {place.name}",
        "logits": "the step returns other logits than its last op computed",
    }.get(place.kind, f"{op} differs in its output, though its inputs agree")
    return f"{sentence} [{at}]"


def _format_values(values: ValueDiff) -> list[str]:
    apart = f" ({values.ulps} ulp)" if values.ulps is not None else ""
    ends = f"{values.first_shown}..{values.first_shown + len(values.got_around) - 1}"
    return [f"  first at element {values.element}: {values.got}, but should be {values.want}"
            f"{apart}; {values.differing} of {values.of} elements differ",
            *(f"  {word} {ends}: {'  '.join(f'{x:.9g}' for x in around)}" for word, around in
              (("got      ", values.got_around), ("should be", values.want_around)))]
