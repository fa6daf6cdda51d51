"""The command `rowtwin doctor`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reports.doctor import Check, Findings

ALWAYS_LISTED = ("python", "torch", "triton", "numpy", "transformers")
"""Packages whose version is always printed; others are printed only when missing."""

app = typer.Typer(add_completion=False)


@app.callback()
def _root() -> None:
    """Examine this machine."""


@app.command(epilog="Example: rowtwin doctor --json")
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON on stdout.")] = False,
) -> None:
    """Print what can be proven on this machine, and by which command.

    Nothing is judged. Exits 0 when the suite can run here, 2 when a requirement is missing.
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
    """Print what was found, kinds of proof first."""
    from falsifiers.console.table import print_table
    from falsifiers.gate import tiers
    print_table(("what", "here", "command", "why not"), [
        (check.what, _yes_or_no(check), check.so, check.found) for check in found.provable],
        "What can be proven here")
    print()
    print_table(("phase", *tiers.TIERS, "device proof"), found.phases, "Quick cases by tier")
    print()
    _print_checks("Machine", found.machine, "used by")
    _print_checks("Compilers and tools", found.tools, "what for")
    _print_checks("Packages", [check for check in found.packages
                               if check.what in ALWAYS_LISTED or not check.there], "needed")
    for sentence in found.broken:
        print(sentence)
    possible = sum(check.there for check in found.provable)
    print(f"{possible} of {len(found.provable)} kinds of proof are possible here; "
          + ("start with: rowtwin gate" if not found.broken else "fix the above first"))


def _print_checks(title: str, checks: Iterable[Check], so: str) -> None:
    from falsifiers.console.table import print_table
    print_table(("what", "here", "found", so), [
        (check.what, _yes_or_no(check), check.found, check.so) for check in checks], title)
    print()


def _yes_or_no(check: Check) -> str:
    return "yes" if check.there else "no"
