"""The commands `rowtwin golden make` and `rowtwin golden check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from contracts.golden import GoldenMakers

app = typer.Typer(no_args_is_help=True)
golden_app = typer.Typer(no_args_is_help=True, help="Make or check the golden logits.")
app.add_typer(golden_app, name="golden")

ModelNames = Annotated[list[str] | None, typer.Argument(
    help="Names of test models (default: all with goldens).")]


@app.callback()
def _root() -> None:
    """Work with goldens."""


@golden_app.command(epilog="Example: rowtwin golden make nano")
def make(models: ModelNames = None) -> None:
    """Compute goldens with transformers (extra `golden`) and the engine; overwrite stored ones."""
    from contracts.golden import MODELS, make_golden

    makers = _golden_makers()
    for name in models or MODELS:
        typer.echo(f"{name}: {make_golden(name, makers)}")


@golden_app.command(epilog="Example: rowtwin golden check nano")
def check(models: ModelNames = None) -> None:
    """Recompute the golden logits and compare; exit with 1 if they differ from the stored ones."""
    from contracts.golden import MODELS, compare_golden

    makers, bad = _golden_makers(), False
    for name in models or MODELS:
        faults = compare_golden(name, makers)
        bad = bad or bool(faults)
        typer.echo(f"{name}: {'; '.join(faults) or 'as stored'}")
    raise typer.Exit(int(bad))


def _golden_makers() -> GoldenMakers:
    import rowtwin
    return rowtwin.golden_makers()
