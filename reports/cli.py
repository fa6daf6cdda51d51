"""The command `rowtwin report`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.command(epilog="Example: rowtwin report --model my-model.gguf --minutes 5")
def report(
    ctx: typer.Context,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the files go.")]
        = Path("reports/out"),
    thorough: Annotated[bool, typer.Option(
        "--thorough", help="Run every case and try every mutant, not the quick ones.")] = False,
    device: Annotated[str, typer.Option(
        metavar="auto|cpu|interpret|cuda", help="Tier to run.")] = "auto",
    candidate: Annotated[str | None, typer.Option(
        metavar="SPEC", help="Judge file:PATH or module:pkg.attr instead of the tree.")] = None,
    model: Annotated[str | None, typer.Option(
        metavar="FILE", help="Judge this GGUF file too, before the phases.")] = None,
    minutes: Annotated[float, typer.Option(
        metavar="N", help="The most time to spend on FILE.")] = 10,
) -> None:
    """Judge every phase and write a page to look at."""
    from reports.produce import Asked, produce
    asked = Asked(out=out, thorough=thorough, device=device, candidate=candidate, model=model,
                  minutes=minutes, command=shlex.join(["rowtwin", *sys.argv[1:]]))
    raise typer.Exit(produce(asked, bank_of=ctx.obj, open_model=ctx.meta.get("open_model")))
