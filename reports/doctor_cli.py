"""The command `rowtwin doctor`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reports.doctor import Check, Findings

ALWAYS_LISTED = ("python", "torch", "triton", "numpy", "transformers")
"""Packages that are told by version; of the others only those that are amiss."""

app = typer.Typer(add_completion=False)


@app.callback()
def _root() -> None:
    """Look at this machine."""


@app.command(epilog="Example: rowtwin doctor --json")
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON alone on stdout.")] = False,
) -> None:
    """Say what can and cannot be proven on this machine, and by which command.

    Nothing is judged. Exits 0 when the suite can run here, 2 when something it needs is missing.
    """
    from dataclasses import asdict

    from engine.toolchain import nvrtc_unavailable_reason
    from falsifiers.gate.runner import ROOT, contracts_by_phase
    from reports.doctor import examine
    found = examine(ROOT, contracts_by_phase(), nvrtc_unavailable_reason)
    if as_json:
        print(json.dumps(asdict(found), indent=2))
    else:
        print_findings(found)
    raise typer.Exit(2 if found.broken else 0)


def print_findings(found: Findings) -> None:
    """Print what was found, what can be proven first."""
    from falsifiers.console.table import print_table
    from falsifiers.gate import tiers
    print_table(("what", "here", "command", "why not"), [
        (line.what, _yes_or_no(line), line.so, line.found) for line in found.provable],
        "What can be proven here")
    print()
    print_table(("phase", *tiers.TIERS, "device proof"), found.phases, "Quick cases by tier")
    print()
    _print_checks("Machine", found.machine, "used by")
    _print_checks("Compilers and tools", found.tools, "what for")
    _print_checks(
        "Packages",
        [line for line in found.packages if line.what in ALWAYS_LISTED or not line.there],
        "needed",
    )
    for sentence in found.broken:
        print(sentence)
    away = sum(not line.there for line in found.provable)
    print(f"{len(found.provable) - away} of {len(found.provable)} kinds of proof can be had here; "
          + ("start with: rowtwin gate" if not found.broken else "mend the above first"))


def _print_checks(title: str, lines: Iterable[Check], so: str) -> None:
    from falsifiers.console.table import print_table
    print_table(("what", "here", "found", so), [
        (line.what, _yes_or_no(line), line.found, line.so) for line in lines], title)
    print()


def _yes_or_no(line: Check) -> str:
    return "yes" if line.there else "no"
