"""The command `rowtwin paths`: which function runs each op of a decode path."""

from __future__ import annotations

import json
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.callback()
def _root() -> None:
    """Look at paths."""


@app.command(epilog="Example: rowtwin paths --phase 5 --json")
def paths(
    phase: Annotated[str, typer.Option(
        metavar="N|newest", help="A phase of the decode path.")] = "newest",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON alone on stdout.")] = False,
) -> None:
    """Print each op of a decode path and the function that each tier runs for it.

    The tier `cpu` runs plain PyTorch, `interpret` Triton, and `cuda` CUDA C++ where there is some.
    """
    import rowtwin
    path = rowtwin.decode_path(rowtwin.parse_decode_phase(phase))
    print(json.dumps({"path": path.name, "ops": path.kernels()}, indent=2) if as_json else path)
