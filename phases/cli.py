"""Commands that measure speed on a device; no figure without its conditions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(no_args_is_help=True)
bench_app = typer.Typer(no_args_is_help=True, help="Measure kernels on a device, beside the floor.")
app.add_typer(bench_app, name="bench")

Widths = Annotated[str, typer.Option("--m", help="Widths, separated by commas.")]
Out = Annotated[Path | None, typer.Option(help="Also write the figures as JSON to this file.")]


@app.callback()
def _root() -> None:
    """Measure."""


@bench_app.command(epilog="Example: rowtwin bench gemv --m 1,8,16")
def gemv(widths: Widths = "1,2,4,8,16,32", out: Out = None) -> None:
    """Measure P3's exact product on the matrices of a 4B file."""
    _need_device()
    from phases.p3_row_twin.speed import measure

    _keep(measure(_widths(widths), tell=typer.echo), out)


@bench_app.command(epilog="Example: rowtwin bench gdn --m 1,8,16")
def gdn(widths: Widths = "1,4,8,16,32", out: Out = None,
        tokens: Annotated[int, typer.Option(min=1, help="Tokens of each row.")] = 1) -> None:
    """Measure P5's recurrent ops on a layer of a 4B model."""
    _need_device()
    from phases.p3_row_twin.speed import bandwidth, timed
    from phases.p5_batched_gdn.speed import measure

    _keep(measure(_widths(widths), timed, bandwidth(), tokens, tell=typer.echo), out)


def _widths(text: str) -> list[int]:
    from engine.errors import InputError

    try:
        widths = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"--m {text!r} is not a list of numbers separated by commas") from None
    if any(not 1 <= m <= 64 for m in widths):
        raise InputError(f"--m {text!r} has a width outside 1 to 64")
    return widths


def _need_device() -> None:
    import torch

    from engine.errors import InputError

    if not torch.cuda.is_available():
        raise InputError("a benchmark of kernels needs a CUDA device, and none is usable here")


def _keep(figures: dict[str, Any], out: Path | None) -> None:
    if out is not None:
        out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
