"""The command `rowtwin trace`, and what `rowtwin bisect --trace A --trace B` does."""

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
    """Write every op's inputs and outputs, step by step, as docs/traces.md describes."""
    from falsifiers.bisect.paired_runs import BatchRun, SoloRun
    from falsifiers.bisect.trace_files import record_trace
    from falsifiers.judging.errors import SuiteError
    if alone and candidate is not None:
        raise SuiteError("--alone runs forward_single, in which --candidate has no part: give one")
    setup, run = plan_run(model, (phase, candidate, "oracle", device), m, steps, prompt, seed)
    lane = SoloRun(setup, None, run) if alone else BatchRun(setup, setup.path(), run, m)
    engine = f"rowtwin, {'forward_single' if alone else setup.name}"
    size = record_trace(
        out, lane, run, {"engine": escape_non_utf8(engine), "model": escape_non_utf8(model)}
    )
    print(f"{escape_non_utf8(str(out))}: {len(run)} steps of {engine}, {size:,} bytes of tensors")


def compare_trace_dirs(traces: Sequence[Path], names: Path | None,
              within: tuple[float | None, float | None], html: Path | None,
              as_json: bool) -> int:
    """Compare two traces and tell where they part first; return the exit code."""
    from falsifiers.bisect import trace_compare, trace_files, trace_names
    from falsifiers.judging.errors import SuiteError
    if len(traces) != 2:
        raise SuiteError(f"give --trace twice: {len(traces)} is no pair of traces")
    if html is not None and os.path.lexists(html):
        raise SuiteError(f"--html {html} exists already, and nothing is overwritten")
    bounds = _build_bounds(*within)
    known = trace_names.load_names(names) if names is not None else trace_names.NameMap()
    found = trace_compare.compare_traces(
        trace_files.load_trace(traces[0]), trace_files.load_trace(traces[1]), known, bounds
    )
    if html is not None:
        try:
            from reports.trace_map import page
            html.write_text(page(found), encoding="utf-8")
        except OSError as error:
            raise SuiteError(f"--html {html} cannot be written: {error.strerror}") from None
    print(
        json.dumps(_comparison_dict(found), indent=2)
        if as_json
        else "\n".join(format_comparison(found))
    )
    return 1 if found.first_difference is not None else 0


def _build_bounds(cosine: float | None, norm: float | None) -> Bounds | None:
    from falsifiers.bisect.trace_compare import Bounds
    from falsifiers.judging.errors import SuiteError
    if cosine is None and norm is None:
        return None
    if cosine is None or norm is None:
        raise SuiteError("--cosine and --norm go together: a direction says nothing of a size")
    if not (0 < cosine <= 1 and 0 <= norm < 1):
        raise SuiteError(f"--cosine must be in (0, 1] and --norm in [0, 1), but are {cosine} and "
                         f"{norm}")
    return Bounds(cosine, norm)


def _comparison_dict(found: Comparison) -> dict[str, object]:
    """Return the comparison as JSON would have it."""
    cells = [{"step": cell.step, "layer": cell.layer, "compared": cell.compared,
              "differ": cell.differ, "within": cell.within} for cell in found.cells.values()]
    told = found.report.to_dict()
    told.pop("healed_by")
    told.pop("stray")
    return {**told, "steps_left_out": found.steps_left_out, "cells": cells}


def format_comparison(found: Comparison) -> list[str]:
    """Return a comparison in words."""
    from falsifiers.bisect.cli import format_location
    report = found.report
    told = [f"{report.path} held to {report.against}: {report.steps} steps, {report.compared:,} "
            f"tensors compared" + (f", {found.steps_left_out} steps of one alone left out"
                                   if found.steps_left_out else "")]
    if found.bounds is not None:
        told.append(f"a tensor agrees when every token's vector has a cosine of at least "
                    f"{found.bounds.cosine} and a norm within {found.bounds.norm} of the other's; "
                    f"{sum(cell.within for cell in found.cells.values())} agree without equal bits")
    if report.not_compared:
        told.append(f"in one of the two alone, so not compared: {', '.join(report.not_compared)}")
    told += format_location(report)
    if (
        found.first_difference is not None
        and found.first_difference.cosine is not None
        and found.bounds is not None
    ):
        told.append(f"  least cosine of a token {found.first_difference.cosine:.9f}, norm off by "
                    f"{found.first_difference.norm:.6f}")
    return told
