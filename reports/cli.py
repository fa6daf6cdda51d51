"""The commands `rowtwin report` and `rowtwin report diff`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, no_args_is_help=True)
report_app = typer.Typer(add_completion=False)
app.add_typer(report_app, name="report")


@report_app.callback(invoke_without_command=True,
                     epilog="Example: rowtwin report --model my-model.gguf --minutes 5")
def report(
    ctx: typer.Context,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Write the report to this folder.")]
        = Path("reports/out"),
    phase: Annotated[list[str] | None, typer.Option(
        metavar="N|engine", help="Judge only this phase; may be repeated.")] = None,
    thorough: Annotated[bool, typer.Option(
        "--thorough", help="Run all cases and all mutants, not only the quick ones.")] = False,
    mutants: Annotated[bool, typer.Option(
        "--mutants/--no-mutants", help="Also run the suite's mutants."
    )] = True,
    device: Annotated[str, typer.Option(
        metavar="auto|cpu|interpret|cuda|emulate", help="Tier to run.")] = "auto",
    candidate: Annotated[str | None, typer.Option(
        metavar="SPEC", help="Judge file:PATH or module:pkg.attr instead of the tree.")] = None,
    model: Annotated[str | None, typer.Option(
        metavar="FILE", help="Judge this GGUF file too, before the phases.")] = None,
    minutes: Annotated[float, typer.Option(
        metavar="N", help="Time limit for FILE, in minutes.")] = 10,
) -> None:
    """Judge every phase and write an HTML report; `diff` compares two reports."""
    if ctx.invoked_subcommand is not None:
        return
    import rowtwin
    from falsifiers.gate.runner import parse_phase
    from reports.produce import ReportOptions, make_report

    options = ReportOptions(
        out=out, thorough=thorough, device=device, candidate=candidate, model=model,
        minutes=minutes, phases=tuple(map(parse_phase, phase or ())), mutants=mutants,
        command=shlex.join(["rowtwin", *sys.argv[1:]]))
    raise typer.Exit(make_report(options, bank_of=rowtwin.phase_bank,
                                 open_model=rowtwin.open_model))


@report_app.command(epilog="Example: rowtwin report diff base/ reports/out > comment.md")
def diff(
    base: Annotated[Path, typer.Argument(metavar="BASE", help="The folder of the older report.")],
    now: Annotated[Path, typer.Argument(metavar="NEW", help="The folder of the newer one.")],
    across_contracts: Annotated[bool, typer.Option(
        "--across-contracts", help="Compare runs that different contracts judged.")] = False,
    across_devices: Annotated[bool, typer.Option(
        "--across-devices", help="Compare runs on different tiers or GPUs.")] = False,
) -> None:
    """Print in Markdown what is newly broken, newly proven and no longer run since BASE.

    Exits 1 if anything is newly broken, 2 if less is proven or run than in BASE, else 0.
    """
    from falsifiers.gate.runner import contracts_by_phase
    from reports import run_metadata
    from reports.diff import compare_runs, format_diff

    found = compare_runs(run_metadata.load_run(base), run_metadata.load_run(now),
                         across_contracts=across_contracts, across_devices=across_devices)
    print(format_diff(found, contracts_by_phase()), end="")
    raise typer.Exit(found.exit_code)
