"""Runs the command line in the process of a test."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import pytest
import typer

from falsifiers.console.cli_app import run_app

Main = Callable[..., tuple[int, str, str]]


def make_main(entry: Callable[[], None], monkeypatch: pytest.MonkeyPatch,
              capsys: pytest.CaptureFixture[str], *verb: str) -> Main:
    """Return a function that runs an entry and returns its exit code, stdout and stderr."""
    def run(*argv: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rowtwin", *verb, *map(str, argv)])
        with pytest.raises(SystemExit) as end:
            entry()
        return (int(end.value.code or 0), *capsys.readouterr())

    return run


def command_entry(app: typer.Typer, mistake: type[Exception]) -> Callable[[], None]:
    """Return an entry to the commands of one module, under the name `app`."""
    outer = typer.Typer()
    outer.add_typer(app, name="app")

    @outer.callback()
    def root() -> None:
        """Group the commands like `rowtwin`."""

    return partial(run_app, outer, lambda: (mistake,))
