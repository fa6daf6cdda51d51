"""Put a candidate's row-twin product into a path, for commands that compare steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from engine.path import Path
from falsifiers.judging.errors import SuiteError
from falsifiers.judging.subject import Subject
from phases.p3_row_twin.increment import WIDEST

ROW_BY_ROW_PATHS = ("p1", "p3")
"""Phases whose step projects one row at a time, so that no product gets a batch."""


def path_with_candidate(subject: Subject, ops: Sequence[str]) -> Path:
    """Return a subject's path with the candidate's `gemv_rows` in it, if it has one.

    The candidate's other ops are in the path already. Raises `SuiteError` when it has none of
    `ops`.
    """
    path: Path = subject.path
    if subject.candidate.op("gemv_rows"):  # P3's op, which later paths call as `project`
        return path_with_product(path, subject.candidate)
    subject.candidate.must_offer(ops)
    return path


def path_with_product(path: Path, candidate: Any) -> Path:
    """Return a path whose projections are the candidate's `gemv_rows`.

    Raises `SuiteError` for a path that would never call it with more than one row.
    """
    if path.name in ROW_BY_ROW_PATHS:
        raise SuiteError(f"the {path.name} path projects one row at a time, so {candidate.name} "
                         f"would never get a batch: give --phase 4 or a later one")
    prepared: dict[int, tuple[Any, Any]] = {}
    """By id; the weight is stored too, so that its id is not reused."""

    def project(weight: Any, x: Tensor, out: Tensor) -> None:
        if id(weight) not in prepared:
            prepared[id(weight)] = weight, candidate.prepare(weight)
        dtype = candidate.io_dtype or x.dtype
        for row in range(0, len(x), WIDEST):
            rows, out_rows = x[row:row + WIDEST].to(dtype), out[row:row + WIDEST]
            result = out_rows if dtype == out.dtype else out_rows.to(dtype)
            candidate.gemv_rows(prepared[id(weight)][1], rows, result)
            if result is not out_rows:
                out_rows.copy_(result)

    return replace(path, project=project)
