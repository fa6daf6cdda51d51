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
"""A file for what parts shrunk, and whether greedy runs are taken."""
app = typer.Typer(add_completion=False, no_args_is_help=True)
MAX_ROWS = 64
MODE_NOTES = {
    "silent": "steps that report their ops agree: this was seen by the state and logits of "
    "steps that do not",
    "greedy": "steps agree, as long as nothing is chosen behind them: this was seen where each "
    "is followed by argmax and greedy runs",
}


@app.callback()
def _root() -> None:
    """Find where a batch parts from its rows."""


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
        metavar="NAME", help="Run a mutant of the phase in its place, as `rowtwin mutants` names "
                             "it.")] = None,
    case: Annotated[str | None, typer.Option(
        metavar="ID", help="Run the steps that a case of the gate takes, in place of --m, --steps "
                           "and --prompt.")] = None,
    against: Annotated[str, typer.Option(
        metavar="auto|oracle|alone|N", help="What each row is held to: forward_single, the same "
        "path with that row alone, or another phase's path; auto takes the oracle, but for a "
        "candidate in an arithmetic of its own that candidate alone.")] = "auto",
    m: Width = 4,
    steps: Steps = 6,
    prompt: Prompt = 70,
    seed: Seed = 0,
    device: Annotated[str, typer.Option(
        metavar="cpu|interpret|cuda|emulate", help="Where the batch runs; interpret runs the "
        "Triton kernels of the phase's own ops, emulate every kernel for a device, on the CPU.")
        ] = "cpu",
    greedy: Annotated[bool, typer.Option(
        "--greedy", help="Once all steps agree, hold what argmax chooses behind each of them, and "
        "greedy runs from there, to the rows alone.")] = False,
    shrink: Annotated[Path | None, typer.Option(
        metavar="FILE", help="Shrink what parts to the smallest case that does, and write a "
                             "script that runs it alone; the file must not exist.")] = None,
    trace: Annotated[list[Path] | None, typer.Option(
        metavar="DIR", help="Compare two traces instead of running anything; given twice.")] = None,
    names: Annotated[Path | None, typer.Option(
        metavar="FILE", help="With --trace: a YAML file of one engine's names as the other's."
        )] = None,
    cosine: Annotated[float | None, typer.Option(
        metavar="C", help="With --trace: least cosine of a token's vector, in place of bits."
        )] = None,
    norm: Annotated[float | None, typer.Option(
        metavar="N", help="With --cosine: how far a ratio of norms may be from 1.")] = None,
    html: Annotated[Path | None, typer.Option(
        metavar="FILE", help="With --trace: also write a map of layers and steps.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON alone on stdout.")] = False,
) -> None:
    """Find the first op whose inputs agree with the row alone and whose outputs do not.

    Exits 0 without a divergence, 1 with one, 2 when it cannot be told.
    """
    from falsifiers.bisect.repro_script import BisectRequest
    stack = None if model or case or trace else _serving_phase(phase)
    if _compares_traces(model or case or stack, trace, (names, cosine, norm, html)):
        _reject_step_options((shrink, greedy), "traces are of steps that somebody else took")
        from falsifiers.bisect.trace_cli import compare_trace_dirs
        raise typer.Exit(compare_trace_dirs(trace or (), names, (cosine, norm), html, as_json))
    asked = BisectRequest(model or "nano", phase or "newest", candidate, against, device, mutant)
    if stack is not None:
        raise typer.Exit(_bisect_stack(asked, stack, None, (shrink, greedy), as_json))
    if case is not None:
        _check_options(m, steps, prompt, device)
        raise typer.Exit(_bisect_case(asked, case, (model, phase), (shrink, greedy), as_json))
    _, run = plan_run(asked.model, (asked.phase, candidate, against, device), m, steps, prompt,
                     seed)
    raise typer.Exit(_search_and_print(asked, [(run, m)], (shrink, greedy), as_json))


def _bisect_case(asked: BisectRequest, case: str, said: tuple[str | None, str | None],
             more: StepOptions, as_json: bool) -> int:
    """Bisect what a case does: a serving stack's events, or a path's steps."""
    import rowtwin
    from falsifiers.bisect import session
    from falsifiers.gate import phase_status
    found, bank, subject = rowtwin.find_case(case, asked.candidate)
    if found.phase in phase_status.SERVING_PHASES:
        return _bisect_stack(asked, found.phase, found, more, as_json)
    asked, taken = session.steps_from_case(asked, found, bank, subject, *said)
    return _search_and_print(asked, taken, more, as_json)


def _serving_phase(phase: str | None) -> str | None:
    """Return the phase of the serving stack that is meant, if one is."""
    from falsifiers.gate import phase_status
    from falsifiers.gate.runner import parse_phase
    name = None if phase in (None, "newest") else parse_phase(phase)
    return name if name in phase_status.SERVING_PHASES else None


def _bisect_stack(asked: BisectRequest, phase: str, case: Case | None,
              more: StepOptions, as_json: bool) -> int:
    """Find the first wrong event of a serving stack, in one case or in any that may show it."""
    import rowtwin
    from falsifiers.bisect.events.event_search import find_wrong_case, relevant_cases
    _reject_step_options(more, "a serving stack is told by its events")
    bank = rowtwin.phase_bank(phase)
    cases = relevant_cases(bank, asked.mutant) if case is None else [case]
    found = find_wrong_case(
        cases, bank, lambda one: rowtwin.find_case(one.id, asked.candidate)[2], asked.mutant)
    if found is None:
        of = case.id if case is not None else phase
        _print_report({"diverged": False}, [f"every event of {of} is the tree's own"], as_json)
        return 0
    where, parted = found
    words = [parted.describe()] if case is not None else [where.id, f"  {parted.describe()}"]
    _print_report({"diverged": True, "case": where.id, **parted.to_dict()}, words, as_json)
    return 1


def _reject_step_options(more: StepOptions, but: str) -> None:
    from falsifiers.judging.errors import SuiteError
    for given, option in zip(more, ("--shrink", "--greedy"), strict=True):
        if given:
            raise SuiteError(f"{option} is about steps, and {but}")


def _search_and_print(asked: BisectRequest, runs: list[tuple[list[Step], int]],
              more: StepOptions, as_json: bool) -> int:
    """Search steps, shrink what parts if a file is given for it, and tell; return the code."""
    import rowtwin
    from falsifiers.bisect import session
    from falsifiers.judging.errors import SuiteError
    shrink, greedy = more
    if shrink is not None and shrink.exists():
        raise SuiteError(f"{shrink} exists and is not overwritten")
    wired = rowtwin.build_bisect_setup
    report, scene = session.search_runs(asked.build_setup(wired), runs, greedy)
    told, words = report.to_dict(), format_report(report)
    if shrink is not None and report.place is not None:
        smallest = session.shrink_and_write(wired, asked, scene, report, shrink)
        told, words = (
            told | {"shrunk": smallest.to_dict()},
            words + session.format_shrunk(smallest, shrink),
        )
    _print_report(told, words, as_json)
    return 1 if report.place is not None else 0


def _print_report(told: dict[str, Any], words: list[str], as_json: bool) -> None:
    print(json.dumps(told, indent=2) if as_json else "\n".join(words))


def _compares_traces(
    model: str | None, trace: list[Path] | None, others: tuple[object, ...]
) -> bool:
    """Return whether traces are compared; refuse a command that names both, or neither."""
    from falsifiers.judging.errors import SuiteError
    if (model is None) == (not trace):
        raise SuiteError("name a MODEL to run, or give --trace A --trace B to compare two runs, or "
                         "--case ID, or --phase 0, 2 or 7")
    if not trace and any(other is not None for other in others):
        raise SuiteError("--names, --cosine, --norm and --html are about --trace A --trace B")
    return bool(trace)


def plan_run(model: str, wired: tuple[str, str | None, str, str], m: int, steps: int,
            prompt: int, seed: int) -> tuple[Setup, list[Step]]:
    """Return what runs, for a phase, candidate, peer and device, and the steps that it takes."""
    import rowtwin
    from falsifiers.bisect.paired_runs import plan
    from falsifiers.judging.errors import SuiteError
    _check_options(m, steps, prompt, wired[-1])
    setup: Setup = rowtwin.build_bisect_setup(model, *wired)
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
    """Return a report in words."""
    told = [f"{report.path} in batches, each row held to {report.against}: {report.steps} steps, "
            f"{report.compared:,} digests compared"]
    if report.not_compared:
        told.append(f"reported by one side alone, so not compared: "
                    f"{', '.join(report.not_compared)}")
    told += format_location(report)
    if report.place is None:
        return told
    if report.stray:
        told.append(f"written, though the step does not name the slot: {', '.join(report.stray)}")
    swapped = " and ".join(report.healed_by)
    told.append(f"swapping back {swapped} heals the run" if swapped
                else "no op swapped back heals the run: look at how the step puts ops together")
    return told


def format_location(report: Report) -> list[str]:
    """Return in words where two runs part, if they do."""
    if report.place is None:
        return ["no divergence"]
    told = [_describe_location(report, report.place)]
    told += [f"  {MODE_NOTES[report.seen]}"] if report.seen in MODE_NOTES else []
    if report.values is not None:
        told += _format_values(report.values)
    if report.note:
        told.append(f"  {report.note}")
    return told


def _describe_location(report: Report, place: Location) -> str:
    from falsifiers.bisect.divergence import split_op_id
    layer, op = split_op_id(place.op)
    at = f"step {place.step}, " + (f"layer {layer}, " if layer is not None else "") + \
        f"slot {place.slot}" + (f", row {report.row}" if report.row is not None else "")
    if place.kind == "stray":
        return f"{op} writes {place.name} of a slot that the step does not name [{at}]"
    if place.kind == "state":
        return f"{op} leaves another state {place.name}, though all before it agrees [{at}]"
    if place.kind == "input":
        return (f"{op} is handed another {place.name}, though the outputs of all ops before it "
                f"agree [{at}]")
    if place.kind == "handed":
        return (f"{place.name}, handed out for the row, are overwritten during step {place.step} "
                f"[{at}]")
    if place.kind == "choice":
        return f"{op} chooses otherwise than the row alone, of the step's {place.name} [{at}]"
    if place.kind == "run":
        return f"a greedy run behind the step parts from the row alone in {place.name} [{at}]"
    if place.kind == "refusal":
        return f"behind the step, {op} does not refuse as it must: {place.name} [{at}]"
    if place.kind == "logits":
        return f"the step returns other logits than its ops made [{at}]"
    return f"{op} differs in its output, though its inputs agree [{at}]"


def _format_values(values: ValueDiff) -> list[str]:
    apart = f" ({values.ulps} ulp)" if values.ulps is not None else ""
    ends = f"{values.first_shown}..{values.first_shown + len(values.got_around) - 1}"
    return [f"  first at element {values.element}: {values.got}, but should be {values.want}"
            f"{apart}; {values.differing} of {values.of} elements differ",
            *(f"  {word} {ends}: {'  '.join(f'{x:.9g}' for x in around)}" for word, around in
              (("got      ", values.got_around), ("should be", values.want_around)))]
