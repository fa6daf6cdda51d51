"""The commands `rowtwin mutants` and `rowtwin receipt`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from falsifiers.gate.cli import AsJson, Device, Progress

if TYPE_CHECKING:
    from falsifiers.judging.matrix import Bank, Matrix, Row
    from falsifiers.mutation.device_receipts import BankOf

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Attack wrong versions."""


@app.command(epilog="Example: rowtwin mutants --phase 1 --json")
def mutants(
    phase: Annotated[str | None, typer.Option(
        metavar="N|engine", help="One phase (default: every phase that is built).")] = None,
    device: Device = "auto",
    as_json: AsJson = False,
    faults: Annotated[bool, typer.Option(
        "--faults", help="Attack none; print which public report each mutant plants.")] = False,
) -> None:
    """Attack every mutant and print the kill matrix."""
    import rowtwin
    from falsifiers.judging.errors import SuiteError
    if faults and (phase is not None or as_json):
        raise SuiteError("--faults prints one page of every phase: give it alone")
    banks = banks_here(phase, device)
    raise typer.Exit(_faults(banks) if faults else
                     _expected(banks, rowtwin.phase_bank, device, as_json))


def _faults(banks: list[Bank]) -> int:
    from falsifiers.mutation import field_faults
    print(field_faults.page(field_faults.load(), field_faults.planted(banks)), end="")
    return 0


def _expected(banks: list[Bank], bank_of: BankOf, device: str, as_json: bool) -> int:
    """Attack each mutant by the falsifiers that must kill it."""
    from falsifiers.gate.receipts import load_receipts
    from falsifiers.gate.runner import ROOT
    from falsifiers.mutation import mutants as runner
    from falsifiers.mutation.device_receipts import device_rows
    measured = {bank.contract.phase: [row for receipt in load_receipts(bank.contract.phase, ROOT)
                                      for row in receipt.mutants] for bank in banks}
    with Progress(as_json) as tell:
        matrix = runner.run_matrix(banks, receipts=measured,
                                   apart=lambda bank: device_rows(bank, bank_of, tell),
                                   on_row=lambda row: tell(f"{row.phase}/{row.name}"))
    if as_json:
        print(json.dumps(matrix.model_dump(), indent=2))
    else:
        _print_matrix(matrix)
    return matrix_exit_code(matrix, device)


def matrix_exit_code(matrix: Matrix, device: str) -> int:
    """Return 1 if a mutant survived or a falsifier killed none, 2 if it cannot be told, else 0."""
    if matrix.survivors or matrix.idle_falsifiers:
        return 1
    return 2 if not matrix.mutants or (device == "cuda" and matrix.not_run) else 0


def _print_matrix(matrix: Matrix) -> None:
    for row in matrix.mutants:
        print(_row_line(row, matrix))
    dead = len(matrix.mutants) - len(matrix.survivors) - len(matrix.not_run)
    print(f"\n{dead} of {len(matrix.mutants)} mutants died"
          + (f", {len(matrix.not_run)} need a device" if matrix.not_run else ""))
    for name in matrix.survivors:
        print(f"survived: {name}")
    for name in matrix.idle_falsifiers:
        print(f"killed none: {name}")


def _row_line(row: Row, matrix: Matrix) -> str:
    from falsifiers.console.table import tinted
    name = f"{row.phase}/{row.name}"
    word = "not run" if name in matrix.not_run else \
        "SURVIVED" if name in matrix.survivors else f"died at {row.rung}"
    by = ", ".join(f"{'' if killer in row.killed_by else 'not '}by {killer}"
                   for killer in row.expected)
    receipt = " (from a receipt)" if row.from_receipt else ""
    return f"{name:<40} {tinted(f'{word:<15}')} {by}{receipt}\n    {row.fault}"


@app.command(epilog="Example: rowtwin receipt --phase 3")
def receipt(
    phase: Annotated[str | None, typer.Option(
        metavar="N|engine", help="One phase, without times (default: every phase with device "
                                 "cases).")] = None,
) -> None:
    """Judge every device case here and write what passed to reports/receipts/.

    Once all phases have passed, times of products and of whole steps are measured too.
    """
    import rowtwin
    from falsifiers.gate.runner import contracts_of, phase_name
    from falsifiers.mutation import device_receipts
    wanted = [c for c in contracts_of().values() if device_receipts.wants_device(c)
              and (phase is None or c.phase == phase_name(phase))]
    banks = {c.phase: bank for c in wanted
             for bank in banks_here(c.phase.removeprefix("p"), "cuda")}
    print(f"judging the device cases of {', '.join(banks) or 'no phase'}", file=sys.stderr)
    with Progress(False) as tell:
        written, refused = device_receipts.receipts(wanted, banks, rowtwin.phase_bank, tell)
    measures = rowtwin.receipt_benchmarks() if phase is None and not refused else {}
    for name, (judged, measure) in measures.items():
        print(f"measuring {name}", file=sys.stderr)
        found, lost = device_receipts.figures(name, measure, contracts_of()[judged],
                                    lambda line: print(f"  {line}", file=sys.stderr))
        written, refused = [*written, *found], [*refused, *lost]
    for path in written:
        print(path)
    for why in refused:
        print(why, file=sys.stderr)
    raise typer.Exit(1 if refused else 0 if written else 2)


def banks_here(phase: str | None, device: str) -> list[Bank]:
    """Return the mutants and falsifiers of the phases that run on this device."""
    import rowtwin
    from falsifiers.gate import tiers
    from falsifiers.gate.runner import ROOT, built, contracts_of, phase_name
    from falsifiers.judging.errors import SuiteError
    chosen = tiers.choose(device)
    for tier, why in chosen.absent.items():
        raise SuiteError(f"the {tier} tier was asked for, but {why}")
    tiers.fix_triton_mode(chosen)
    tiers.one_thread()
    ready = [p for p, contract in contracts_of().items() if built(contract, ROOT)]
    if phase is not None and (name := phase_name(phase)) not in ready:
        raise SuiteError(f"phase {name} is not built")
    banks = [rowtwin.phase_bank(p) for p in ready if phase is None or p == phase_name(phase)]
    return [made for bank in banks if (made := bank.on(chosen.run)).mutants]
