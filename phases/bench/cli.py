"""The commands `rowtwin bench` and `rowtwin weak`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engine.cli import KV_OPTION

if TYPE_CHECKING:
    from falsifiers.gate.benchmark_records import BenchmarkRecord

app = typer.Typer(no_args_is_help=True)
bench_app = typer.Typer(no_args_is_help=True, help="Measure kernels and steps on a device.")
app.add_typer(bench_app, name="bench")

WidthsOption = Annotated[str, typer.Option("--m", help="Widths, separated by commas.")]
OutOption = Annotated[Path | None, typer.Option(help="Also write the times to this JSON file.")]


@app.callback()
def _root() -> None:
    """Measure."""


@bench_app.command(epilog="Example: rowtwin bench gemv --m 1,8,16")
def gemv(widths: WidthsOption = "1,2,4,8,16,32", out: OutOption = None) -> None:
    """Measure P3's exact product on matrices of the 4B shape."""
    _require_device()
    from phases.bench.gemv import measure

    _write_json(measure(_parse_numbers("--m", widths, 64), tell=typer.echo), out)


@bench_app.command(epilog="Example: rowtwin bench gdn --m 1,8,16")
def gdn(widths: WidthsOption = "1,4,8,16,32", out: OutOption = None,
        tokens: Annotated[int, typer.Option(min=1, help="Tokens of each row.")] = 1) -> None:
    """Measure P5's recurrent ops on a layer of the 4B shape."""
    _require_device()
    from phases.bench.gdn import measure

    _write_json(measure(_parse_numbers("--m", widths, 64), tokens, tell=typer.echo), out)


@bench_app.command(epilog="Example: rowtwin bench step --model 4b.gguf --m 1,8 --context 128")
def step(
    model: Annotated[Path, typer.Option(metavar="FILE", help="A qwen35 GGUF file.")],
    widths: WidthsOption = "1,2,4,8,16,32",
    contexts: Annotated[str, typer.Option(
        "--context", help="Cached tokens in every slot, separated by commas.")] = "128,4096",
    path: Annotated[str, typer.Option(
        metavar="pN|newest|SPEC", help="A path, or a candidate's ops in the newest.")] = "newest",
    against: Annotated[str | None, typer.Option(
        metavar="pN|newest|SPEC", help="A second path; the steps of both take turns.")] = None,
    prefill: Annotated[int, typer.Option(
        metavar="T", help="Also time a prompt of T tokens; 0 times none.")] = 0,
    kv: Annotated[str, KV_OPTION] = "f32",
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON on stdout.")] = False,
    out: OutOption = None,
) -> None:
    """Measure whole decode steps; each is compared with the looped path before it is timed.

    Without a CUDA device the command runs on the CPU and says so; use a small file.
    """
    import rowtwin
    from falsifiers.gate.benchmark_records import BitsDifferError
    from phases.bench.step_tables import report_lines
    from phases.bench.step_timing import make_benchmark

    chosen = [rowtwin.decode_path(name) for name in dict.fromkeys([path, against or path])]
    try:
        figures = make_benchmark(
            model, rowtwin.decode_path("p1"), chosen, ms=_parse_numbers("--m", widths, 64),
            contexts=_parse_numbers("--context", contexts), prefill=prefill, kv=kv,
            tell=lambda line: typer.echo(line, err=True)).run()
    except BitsDifferError as broken:
        typer.echo(f"nothing was timed, since bits differ: {broken}", err=True)
        raise typer.Exit(1) from None
    typer.echo(figures.model_dump_json(indent=1) if as_json else "\n".join(report_lines(figures)))
    _write_json(figures, out)


def _parse_numbers(option: str, text: str, most: int | None = None) -> tuple[int, ...]:
    """Return an option's numbers in order, without repetitions."""
    from engine.errors import InputError

    try:
        numbers = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise InputError(f"{option} {text!r} is not a list of numbers separated by commas: pass "
                         f"for example {option} 1,8") from None
    if any(n < 1 or (most is not None and n > most) for n in numbers):
        raise InputError(f"{option} {text!r} has a number "
                         + (f"outside 1 to {most}" if most else "below 1"))
    return numbers


def _require_device() -> None:
    import torch

    from engine.errors import InputError

    if not torch.cuda.is_available():
        raise InputError("this benchmark needs a CUDA device, and none is usable here")


def _write_json(figures: BenchmarkRecord, out: Path | None) -> None:
    from engine.errors import InputError

    if out is None:
        return
    try:
        out.write_text(figures.model_dump_json(indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written: {error.strerror}") from None


@app.command(epilog="Example: rowtwin weak --phase 1")
def weak(
    phase: Annotated[str | None, typer.Option(
        metavar="N", help="One phase (default: every phase of the decode path).")] = None,
    keep: Annotated[bool, typer.Option(
        "--keep", help="Also store the results in phases/weak_styles.json and write "
                       "docs/weak-arms.md.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON on stdout.")] = False,
) -> None:
    """Print which mutants of the decode path pass common styles of test."""
    import rowtwin
    from falsifiers.gate import tiers
    from falsifiers.gate.runner import parse_phase
    from falsifiers.judging.errors import SuiteError
    from phases import weak_styles, weak_styles_report

    names = weak_styles.PHASES if phase is None else (parse_phase(phase),)
    if not set(names) <= set(weak_styles.PHASES):
        raise SuiteError(f"{names[0]} has no mutants of a decode path: choose one of "
                         f"{', '.join(weak_styles.PHASES)}")
    tiers.limit_torch_threads()
    results = []
    for name in names:
        typer.echo(f"trying the mutants of {name}", err=True)
        results.append(weak_styles_report.measure_phase(rowtwin.phase_bank(name)))
        if keep:
            weak_styles_report.save_results(results[-1])
    if as_json:
        typer.echo(json.dumps([phase.model_dump() for phase in results], indent=2))
    else:
        typer.echo("\n".join(weak_styles_report.summary_lines(results)))
