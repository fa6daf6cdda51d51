"""The commands `rowtwin mutants` and `rowtwin receipt`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from falsifiers.gate.cli import AsJson, Device, ProgressLine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from contracts.schema import Contract
    from falsifiers.judging.matrix import Bank, KillMatrix, MutantResult
    from falsifiers.mutation.mutant_runner import BankLoader

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Run mutants."""


@app.command(epilog="Example: rowtwin mutants --phase 1 --json")
def mutants(
    phase: Annotated[str | None, typer.Option(
        metavar="N|engine", help="One phase (default: every phase that is built).")] = None,
    device: Device = "auto",
    as_json: AsJson = False,
    faults: Annotated[bool, typer.Option(
        "--faults", help="Print the public report of each mutant; run none.")] = False,
) -> None:
    """Attack every mutant and print the kill matrix."""
    import rowtwin
    from falsifiers.judging.errors import SuiteError
    if faults and (phase is not None or as_json):
        raise SuiteError("--faults prints a page of all phases: remove --phase and --json")
    banks = load_banks(phase, device)
    raise typer.Exit(_print_faults(banks) if faults else
                     _run_matrix(banks, rowtwin.phase_bank, device, as_json))


def _print_faults(banks: list[Bank]) -> int:
    from falsifiers.mutation.field_faults import format_page, list_planted, load_faults
    print(format_page(load_faults(), list_planted(banks)), end="")
    return 0


def _run_matrix(banks: list[Bank], load_bank: BankLoader, device: str, as_json: bool) -> int:
    """Attack each mutant with the falsifiers that must kill it."""
    from falsifiers.gate.tiers import select_tiers
    from falsifiers.judging.errors import SuiteError
    from falsifiers.mutation.mutant_runner import run_mutants
    with ProgressLine(as_json) as progress:
        run = run_mutants(banks, load_bank, select_tiers(device),
                          on_result=lambda result: progress(result.id))
    for reason in run.inconclusive.values():
        raise SuiteError(reason)
    if as_json:
        print(json.dumps(run.matrix.model_dump(), indent=2))
    else:
        _print_matrix(run.matrix)
    return matrix_exit_code(run.matrix, device)


def matrix_exit_code(matrix: KillMatrix, device: str) -> int:
    """Return 1 for a survivor or an idle falsifier, 2 if mutants did not run, else 0."""
    if matrix.survivors or matrix.idle_falsifiers:
        return 1
    return 2 if not matrix.mutants or (device == "cuda" and matrix.not_run) else 0


def _print_matrix(matrix: KillMatrix) -> None:
    for row in matrix.mutants:
        print(_result_line(row, matrix))
    dead = len(matrix.mutants) - len(matrix.survivors) - len(matrix.not_run)
    print(f"\n{dead} of {len(matrix.mutants)} mutants died"
          + (f", {len(matrix.not_run)} need a device" if matrix.not_run else ""))
    for name in matrix.survivors:
        print(f"survived: {name}")
    for name in matrix.idle_falsifiers:
        print(f"killed none: {name}")


def _result_line(row: MutantResult, matrix: KillMatrix) -> str:
    from falsifiers.console.table import color_status
    word = "not run" if row.id in matrix.not_run else \
        "SURVIVED" if row.id in matrix.survivors else f"died at {row.rung}"
    by = ", ".join(f"{'' if killer in row.killed_by else 'not '}by {killer}"
                   for killer in row.expected)
    receipt = " (from a receipt)" if row.from_receipt else ""
    return f"{row.id:<40} {color_status(f'{word:<15}')} {by}{receipt}\n    {row.fault}"


@app.command(epilog="Example: rowtwin receipt --phase 3")
def receipt(
    phase: Annotated[str | None, typer.Option(
        metavar="N|engine", help="One phase, without benchmarks (default: every phase with "
                                 "device cases).")] = None,
) -> None:
    """Judge every device case here and write receipts to reports/receipts/.

    If all phases pass, products and steps are timed too.
    """
    import rowtwin
    from falsifiers.gate.runner import contracts_by_phase, parse_phase
    from falsifiers.mutation import device_receipts
    contracts = contracts_by_phase()
    wanted = [c for c in contracts.values() if device_receipts.has_device_cases(c)
              and (phase is None or c.phase == parse_phase(phase))]
    banks = {c.phase: bank for c in wanted
             for bank in load_banks(c.phase.removeprefix("p"), "cuda", contracts)}
    print(f"judging the device cases of {', '.join(banks) or 'no phase'}", file=sys.stderr)
    with ProgressLine(False) as progress:
        written, refused = device_receipts.write_receipts(wanted, banks, rowtwin.phase_bank,
                                                          progress)
    benchmarks = rowtwin.receipt_benchmarks() if phase is None and not refused else {}
    for name, (timed_phase, measure) in benchmarks.items():
        print(f"measuring {name}", file=sys.stderr)
        paths, reasons = device_receipts.write_benchmark(
            name, measure, contracts[timed_phase],
            lambda line: print(f"  {line}", file=sys.stderr))
        written, refused = [*written, *paths], [*refused, *reasons]
    for path in written:
        print(path)
    for why in refused:
        print(why, file=sys.stderr)
    raise typer.Exit(1 if refused else 0 if written else 2)


def load_banks(phase: str | None, device: str,
               contracts: Mapping[str, Contract] | None = None) -> list[Bank]:
    """Return the banks, with mutants, of the phases for this device."""
    import rowtwin
    from falsifiers.gate import tiers
    from falsifiers.gate.runner import ROOT, contracts_by_phase, is_built, parse_phase
    from falsifiers.judging.errors import SuiteError
    chosen = tiers.select_tiers(device)
    for tier, why in chosen.absent.items():
        raise SuiteError(f"the {tier} tier was requested, but {why}")
    tiers.fix_triton_mode(chosen)
    tiers.limit_torch_threads()
    contracts = contracts_by_phase() if contracts is None else contracts
    ready = [p for p, contract in contracts.items() if is_built(contract, ROOT)]
    if phase is not None and (name := parse_phase(phase)) not in ready:
        raise SuiteError(f"phase {name} is not built")
    banks = [rowtwin.phase_bank(p) for p in ready if phase is None or p == parse_phase(phase)]
    return [here for bank in banks if (here := bank.on(chosen.run)).mutants]
