"""The commands `rowtwin vectors export` and `rowtwin vectors check`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from falsifiers.console.cli_app import escape_non_utf8

app = typer.Typer(add_completion=False, no_args_is_help=True)
vectors_app = typer.Typer(no_args_is_help=True,
                          help="Judge a program in any language by files of calls.")
app.add_typer(vectors_app, name="vectors")

NOT_PROVEN = ("more than these calls of {ops} ask, or that each call was made by itself: files "
              "cannot show it, {but}")
PROCESS_NOTE = "but cmd:PROGRAM runs each in a process of its own"
"""What a pass of a directory does not say, beside the contract's."""
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON alone on stdout.")]


@app.callback()
def _root() -> None:
    """Exchange calls as files."""


@vectors_app.command(epilog="Example: rowtwin vectors export p3-vectors --phase 3")
def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty directory.")],
    phase: Annotated[str, typer.Option(metavar="N", help="The phase whose calls to write.")],
) -> None:
    """Write a phase's calls: inputs, expected outputs and a manifest."""
    import rowtwin
    from falsifiers.gate import tiers
    from falsifiers.vectors import exchange
    tiers.limit_torch_threads()
    made = exchange.export(folder, rowtwin.phase_vectors(phase))
    name = escape_non_utf8(str(folder))
    print(f"{name}: {len(made.calls)} calls of {made.phase}; write the answer to "
          f"{name}/inputs/NAME into {name}/outputs/NAME, then: rowtwin vectors check {name}")


@vectors_app.command(epilog="Example: rowtwin vectors check p3-vectors")
def check(
    folder: Annotated[Path, typer.Argument(
        metavar="DIR", help="A directory of vectors whose outputs have been written.")],
    as_json: AsJson = False,
) -> None:
    """Judge the outputs by the phase's own falsifiers: exit 0 PASS, 1 FAIL, 2 cannot tell."""
    import rowtwin
    from falsifiers.gate import phase_status, tiers
    from falsifiers.gate.cli import ProgressLine, print_gate
    from falsifiers.gate.runner import GateResult, PytestRun
    from falsifiers.vectors import exchange, manifest
    tiers.limit_torch_threads()
    told = manifest.load_manifest(folder)
    wanted = rowtwin.phase_vectors(told.phase)
    not_proven = NOT_PROVEN.format(
        ops=", ".join(sorted({call.op for call in told.calls})),
        but=f"and {wanted.ops_class.no_program_reason}"
        if wanted.ops_class.no_program_reason
        else PROCESS_NOTE,
    )
    with ProgressLine(as_json) as tell:
        verdicts = exchange.check(folder, wanted, tell)
    result = phase_status.judge_phase(wanted.contract.phase, verdicts, wanted.cases)
    if as_json:
        print(json.dumps(result.model_dump() | {
            "not_proven": f"{wanted.contract.not_proven.strip()} Nor: {not_proven}.",
            "verdicts": [verdict.model_dump() for verdict in verdicts]}, indent=2))
    else:
        print_gate(GateResult([result], PytestRun(verdicts)), {result.phase: wanted.contract})
        print(f"    nor: {not_proven}")
    raise typer.Exit(phase_status.exit_code([result]))
