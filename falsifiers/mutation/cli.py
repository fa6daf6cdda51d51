"""The commands `rowtwin mutants` and `rowtwin receipt`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from falsifiers.gate.cli import AsJson, Device, ProgressLine

if TYPE_CHECKING:
    from falsifiers.judging.matrix import Bank, KillMatrix, MutantResult
    from falsifiers.mutation.mutant_runner import BankLoader

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
    """Return 1 if a mutant survived or a falsifier killed none, 2 if it cannot be told, else 0."""
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
        metavar="N|engine", help="One phase, without times (default: every phase with device "
                                 "cases).")] = None,
) -> None:
    """Judge every device case here and write what passed to reports/receipts/.

    Once all phases have passed, times of products and of whole steps are measured too.
    """
    import rowtwin
    from falsifiers.gate.runner import contracts_by_phase, parse_phase
    from falsifiers.mutation import device_receipts
    wanted = [c for c in contracts_by_phase().values() if device_receipts.has_device_cases(c)
              and (phase is None or c.phase == parse_phase(phase))]
    banks = {c.phase: bank for c in wanted
             for bank in load_banks(c.phase.removeprefix("p"), "cuda")}
    print(f"judging the device cases of {', '.join(banks) or 'no phase'}", file=sys.stderr)
    with ProgressLine(False) as tell:
        written, refused = device_receipts.write_receipts(wanted, banks, rowtwin.phase_bank, tell)
    measures = rowtwin.receipt_benchmarks() if phase is None and not refused else {}
    for name, (judged, measure) in measures.items():
        print(f"measuring {name}", file=sys.stderr)
        found, lost = device_receipts.write_benchmark(name, measure, contracts_by_phase()[judged],
                                    lambda line: print(f"  {line}", file=sys.stderr))
        written, refused = [*written, *found], [*refused, *lost]
    for path in written:
        print(path)
    for why in refused:
        print(why, file=sys.stderr)
    raise typer.Exit(1 if refused else 0 if written else 2)


def load_banks(phase: str | None, device: str) -> list[Bank]:
    """Return the mutants and falsifiers of the phases that run on this device."""
    import rowtwin
    from falsifiers.gate import tiers
    from falsifiers.gate.runner import ROOT, contracts_by_phase, is_built, parse_phase
    from falsifiers.judging.errors import SuiteError
    chosen = tiers.select_tiers(device)
    for tier, why in chosen.absent.items():
        raise SuiteError(f"the {tier} tier was asked for, but {why}")
    tiers.fix_triton_mode(chosen)
    tiers.limit_torch_threads()
    ready = [p for p, contract in contracts_by_phase().items() if is_built(contract, ROOT)]
    if phase is not None and (name := parse_phase(phase)) not in ready:
        raise SuiteError(f"phase {name} is not built")
    banks = [rowtwin.phase_bank(p) for p in ready if phase is None or p == parse_phase(phase)]
    return [made for bank in banks if (made := bank.on(chosen.run)).mutants]
