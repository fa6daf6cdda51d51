"""The commands `rowtwin trace` and `rowtwin bisect --trace A --trace B`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from falsifiers.bisect.cli import Prompt, Seed, Steps, Width, plan_run
from falsifiers.console.cli_app import escape_non_utf8

if TYPE_CHECKING:
    from falsifiers.bisect.trace_compare import Bounds, Comparison

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Write and compare traces."""


@app.command(epilog="Example: rowtwin trace nano --out batched; "
                    "rowtwin trace nano --alone --out alone")
def trace(
    model: Annotated[str, typer.Argument(
        metavar="MODEL", help="A test model's name (nano, tiny) or a qwen35 GGUF file.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="A new or empty directory.")],
    phase: Annotated[str, typer.Option(
        metavar="N|newest", help="The phase whose path runs the batch.")] = "newest",
    candidate: Annotated[str | None, typer.Option(
        metavar="SPEC", help="Put the ops of a candidate into that path.")] = None,
    alone: Annotated[bool, typer.Option(
        "--alone", help="Run each row by itself through forward_single instead.")] = False,
    m: Width = 4,
    steps: Steps = 6,
    prompt: Prompt = 70,
    seed: Seed = 0,
    device: Annotated[str, typer.Option(
        metavar="cpu|cuda", help="Where the batch runs.")] = "cpu",
) -> None:
    """Write every op's inputs and outputs, step by step, in the format of docs/traces.md."""
    from falsifiers.bisect.paired_runs import BatchRun, SoloRun
    from falsifiers.bisect.trace_files import record_trace
    from falsifiers.judging.errors import SuiteError
    if alone and candidate is not None:
        raise SuiteError("--alone runs forward_single without --candidate: drop one of them")
    setup, planned = plan_run(model, (phase, candidate, "oracle", device), m, steps, prompt, seed)
    run = SoloRun(setup, None, planned) if alone else BatchRun(setup, setup.path(), planned, m)
    engine = f"rowtwin, {'forward_single' if alone else setup.name}"
    header = {"engine": escape_non_utf8(engine), "model": escape_non_utf8(model)}
    size = record_trace(out, run, planned, header)
    print(f"{escape_non_utf8(str(out))}: {len(planned)} steps of {engine}, {size:,} bytes of "
          f"tensors")


def compare_trace_dirs(traces: Sequence[Path], names: Path | None,
                       limits: tuple[float | None, float | None], html: Path | None,
                       as_json: bool) -> int:
    """Compare two traces and print where they first differ; return the exit code."""
    from falsifiers.bisect import trace_compare, trace_files, trace_names
    from falsifiers.judging.errors import SuiteError
    if len(traces) != 2:
        raise SuiteError(f"pass --trace DIR twice, not {len(traces)} times")
    if html is not None and os.path.lexists(html):
        raise SuiteError(f"--html {html} exists and is not overwritten: pass a new file")
    bounds = _build_bounds(*limits)
    name_map = trace_names.load_names(names) if names is not None else trace_names.NameMap()
    got, want = map(trace_files.load_trace, traces)
    found = trace_compare.compare_traces(got, want, name_map, bounds)
    if html is not None:
        try:
            from reports.trace_map import page
            html.write_text(page(found), encoding="utf-8")
        except OSError as error:
            raise SuiteError(f"--html {html} cannot be written: {error.strerror}") from None
    print(json.dumps(_comparison_dict(found), indent=2) if as_json
          else "\n".join(format_comparison(found)))
    return 1 if found.first_difference is not None else 0


def _build_bounds(cosine: float | None, norm: float | None) -> Bounds | None:
    from falsifiers.bisect.trace_compare import Bounds
    from falsifiers.judging.errors import SuiteError
    if cosine is None and norm is None:
        return None
    if cosine is None or norm is None:
        raise SuiteError("--cosine and --norm go together: pass both")
    if not (0 < cosine <= 1 and 0 <= norm < 1):
        raise SuiteError(f"--cosine must be in (0, 1] and --norm in [0, 1), but are {cosine} and "
                         f"{norm}")
    return Bounds(cosine, norm)


def _comparison_dict(found: Comparison) -> dict[str, object]:
    """Return the comparison as a JSON object."""
    cells = [{"step": cell.step, "layer": cell.layer, "compared": cell.compared,
              "differ": cell.differ, "within": cell.within} for cell in found.cells.values()]
    report = {key: value for key, value in found.report.to_dict().items()
              if key not in ("healed_by", "stray")}
    return {**report, "steps_left_out": found.steps_left_out, "cells": cells}


def format_comparison(found: Comparison) -> list[str]:
    """Return a comparison as lines of text."""
    from falsifiers.bisect.cli import format_location
    report, bounds, first = found.report, found.bounds, found.first_difference
    lines = [f"{report.path} compared with {report.against}: {report.steps} steps, "
             f"{report.compared:,} tensors compared"]
    if found.steps_left_out:
        lines[0] += f", {found.steps_left_out} steps left out, as only one trace has them"
    if bounds is not None:
        lines.append(f"a tensor agrees when every token's vector has a cosine of at least "
                     f"{bounds.cosine} and a norm within {bounds.norm} of the other's; "
                     f"{sum(cell.within for cell in found.cells.values())} agree without equal "
                     f"bits")
    if report.not_compared:
        lines.append(f"not compared, as only one trace has it: {', '.join(report.not_compared)}")
    lines += format_location(report)
    if first is not None and first.cosine is not None and bounds is not None:
        lines.append(f"  smallest cosine of a token {first.cosine:.9f}, norm off by "
                     f"{first.norm:.6f}")
    return lines
