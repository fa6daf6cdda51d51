"""The command `rowtwin mutants`: planted ones and their killers, all pairs, or random ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from falsifiers.gate.cli import AsJson, Device, Progress, banks_here

if TYPE_CHECKING:
    from falsifiers.judging.matrix import Matrix, Row
    from falsifiers.mutation.device_receipts import BankOf
    from falsifiers.mutation.mutants import Bank

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Attack wrong versions."""


@app.command(epilog="Example: rowtwin mutants --phase 1 --json")
def mutants(
    ctx: typer.Context,
    phase: Annotated[str | None, typer.Option(
        metavar="N|engine", help="One phase (default: every phase that is built).")] = None,
    device: Device = "auto",
    as_json: AsJson = False,
    faults: Annotated[bool, typer.Option(
        "--faults", help="Attack none; print which public report each mutant plants.")] = False,
    full: Annotated[bool, typer.Option(
        "--full", help="With --phase: every mutant against every quick case, and the fewest cases "
                       "that keep the kill score.")] = False,
    smallest: Annotated[Path | None, typer.Option(
        metavar="FILE", help="Attack none; print that of a matrix of --full --json.")] = None,
    at_random: Annotated[bool, typer.Option(
        "--random", help="Change operators of the suite's own code, and see which tests "
                         "notice.")] = False,
    part: Annotated[list[str] | None, typer.Option(
        metavar="NAME", help="With --random: gate, witness, gguf, judge, prefixes or scheduler; "
                             "by name alone ops, p1, p4, p5 and p6, which take long; may be "
                             "repeated.")] = None,
    seed: Annotated[int | None, typer.Option(
        metavar="N", help="What --random draws by (default: 0).")] = None,
    count: Annotated[int | None, typer.Option(
        metavar="N", help="How many --random draws of each part; 0 takes all (default: 20)."
        )] = None,
) -> None:
    """Attack every mutant and print the kill matrix."""
    from falsifiers.judging.errors import SuiteError
    if sum((faults, full, at_random, smallest is not None)) > 1:
        raise SuiteError("give one of --faults, --full, --smallest and --random")
    if faults and (phase is not None or as_json):
        raise SuiteError("--faults prints one page of every phase: give it alone")
    if full != (full and phase is not None):
        raise SuiteError("--full takes long: give --phase with it")
    if at_random and (phase is not None or as_json):
        raise SuiteError("--random changes the suite's own code: --part chooses, not --phase")
    for name, given in (("--part", part), ("--seed", seed), ("--count", count)):
        if given is not None and not at_random:
            raise SuiteError(f"{name} is about --random")
    if at_random:
        raise typer.Exit(_random(part or [], seed or 0, 20 if count is None else count))
    if smallest is not None:
        from falsifiers.mutation import full_matrix
        print("\n".join(full_matrix.lines(full_matrix.read(smallest))))
        raise typer.Exit
    banks = banks_here(ctx.obj, phase, device)
    raise typer.Exit(_faults(banks) if faults else _full(banks[0], as_json) if full
                     else _expected(banks, ctx.obj, device, as_json))


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


def _full(bank: Bank, as_json: bool) -> int:
    """Attack each mutant by every case; 1 when one survived."""
    from falsifiers.mutation import full_matrix
    with Progress(as_json) as tell:
        matrix = full_matrix.full(bank, tell)
    print(matrix.model_dump_json(indent=1) if as_json else "\n".join(full_matrix.lines(matrix)))
    return 1 if matrix.survivors() else 0


def _random(names: list[str], seed: int, count: int) -> int:
    """Try random mutants; 1 when one survived that is not known to be equivalent."""
    from falsifiers.judging.errors import SuiteError
    from falsifiers.mutation import random_mutants
    if count < 0:
        raise SuiteError(f"--count must be 0 or more, but is {count}")
    for name in names:
        if name not in random_mutants.PARTS:
            raise SuiteError(f"unknown part {name!r}: choose of {', '.join(random_mutants.PARTS)}")
    with Progress(not sys.stderr.isatty()) as tell:
        usual = [name for name, one in random_mutants.PARTS.items() if not one.by_name]
        scores = random_mutants.run(names or usual, count, seed,
                                    lambda fate: tell(fate.change.id))
    print("\n".join(random_mutants.lines(scores)))
    return 1 if any(score.survivors for score in scores) else 0


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
