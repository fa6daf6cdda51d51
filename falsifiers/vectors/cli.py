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

NOT_PROVEN = ("other calls than these of {ops}, and that each call was computed by itself: files "
              "cannot show it, {but}")
"""What a pass of a directory does not prove, besides the contract's list."""
PROCESS_NOTE = "but cmd:PROGRAM runs each in its own process"
AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON on stdout.")]


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
    written = exchange.export(folder, rowtwin.phase_vectors(phase))
    name = escape_non_utf8(str(folder))
    print(f"{name}: {len(written.calls)} calls of {written.phase}; write the answer to "
          f"{name}/inputs/NAME into {name}/outputs/NAME, then: rowtwin vectors check {name}")


@vectors_app.command(epilog="Example: rowtwin vectors check p3-vectors")
def check(
    folder: Annotated[Path, typer.Argument(
        metavar="DIR", help="A directory of vectors whose outputs have been written.")],
    as_json: AsJson = False,
) -> None:
    """Judge the outputs by the phase's falsifiers: exit 0 PASS, 1 FAIL, 2 undecided."""
    import rowtwin
    from falsifiers.gate import phase_status, tiers
    from falsifiers.gate.cli import ProgressLine, print_gate
    from falsifiers.gate.runner import GateResult, PytestRun
    from falsifiers.vectors import exchange, manifest
    tiers.limit_torch_threads()
    listed = manifest.load_manifest(folder)
    vectors = rowtwin.phase_vectors(listed.phase)
    reason = vectors.ops_class.no_program_reason
    not_proven = NOT_PROVEN.format(ops=", ".join(sorted({call.op for call in listed.calls})),
                                   but=f"and {reason}" if reason else PROCESS_NOTE)
    with ProgressLine(as_json) as show_progress:
        verdicts = exchange.check(folder, vectors, show_progress)
    result = phase_status.judge_phase(vectors.contract.phase, verdicts, vectors.cases)
    if as_json:
        print(json.dumps(result.model_dump() | {
            "not_proven": f"{vectors.contract.not_proven.strip()} Nor: {not_proven}.",
            "verdicts": [verdict.model_dump() for verdict in verdicts]}, indent=2))
    else:
        print_gate(GateResult([result], PytestRun(verdicts)), {result.phase: vectors.contract})
        print(f"    nor: {not_proven}")
    raise typer.Exit(phase_status.exit_code([result]))
