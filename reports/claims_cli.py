"""The command `rowtwin claims`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from falsifiers.judging.verdict import Verdict

app = typer.Typer(add_completion=False)


@app.callback()
def _root() -> None:
    """Examine claims."""


@app.command(epilog="Example: rowtwin claims --report reports/out --open")
def claims(
    report: Annotated[Path | None, typer.Option(
        metavar="DIR", help="A report of this tree, for cpu and interpret (default: only receipts, "
                            "which cover cuda).")] = None,
    phase: Annotated[str | None, typer.Option(
        metavar="N|engine", help="One phase (default: all).")] = None,
    only_open: Annotated[bool, typer.Option(
        "--open", help="Print only claims that are not fully shown.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON on stdout.")] = False,
) -> None:
    """Compare what the contracts claim with what is shown for this code.

    Exits 0 if everything is shown, 1 if something is broken, else 2.
    """
    from dataclasses import asdict

    from falsifiers.console.table import print_table
    from falsifiers.gate.runner import ROOT, contracts_by_phase, parse_phase
    from reports import claims as known
    contracts = contracts_by_phase()
    if phase is not None:
        contracts = {name: c for name, c in contracts.items() if name == parse_phase(phase)}
    verdicts, fresh, source = _load_verdicts(report)
    proofs = known.collect_proofs(contracts, verdicts, ROOT, fresh=fresh, by=source)
    lines = known.group_claims(contracts, proofs)
    sums = known.count_by_tier(lines)
    code = 1 if any(red for _, _, red in sums.values()) else \
        0 if all(shown == cases for cases, shown, _ in sums.values()) else 2
    if only_open:
        lines = [line for line in lines
                 if any(claim.word != "shown" for claim in line.claims.values())]
    if as_json:
        print(json.dumps([asdict(line) for line in lines], indent=2))
        raise typer.Exit(code)
    print_table(known.HEADER, [known.table_row(line) for line in lines])
    print()
    for tier, (cases, shown, red) in sums.items():
        broken = f", {red:,} broken" if red else ""
        print(f"{tier}: {shown:,} of {cases:,} cases are shown{broken}")
    if report is None:
        print("a report shows cpu and interpret: run rowtwin report --thorough, "
              "then pass --report reports/out")
    raise typer.Exit(code)


def _load_verdicts(report: Path | None) -> tuple[list[Verdict], bool, str]:
    """Return a report's verdicts, whether they are of this code, and their source."""
    from falsifiers.gate.runner import ROOT
    from falsifiers.judging.errors import SuiteError, shorten_name
    from reports import run_metadata
    from reports.claims import code_digest
    if report is None:
        return [], True, ""
    saved = run_metadata.load_run(report)
    if saved.run.subject != "in-tree":
        raise SuiteError(f"{report}: judged {shorten_name(saved.run.subject)}; pass a report of "
                         f"this tree")
    return (list(saved.verdicts.values()), saved.run.code == code_digest(ROOT),
            f"report of {saved.run.made}")
