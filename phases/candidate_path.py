"""A candidate's row-twin product inside a whole step, for commands that compare steps."""

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
"""Phases whose step projects one row at a time, so that no product meets a batch."""


def path_with_candidate(subject: Subject, ops: Sequence[str]) -> Path:
    """Return a subject's path with its candidate's product in it, where it offers one.

    Its other ops stand there already; raises `SuiteError` when it has none of `ops`.
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
        raise SuiteError(f"the {path.name} path projects one row at a time, so it would show "
                         f"nothing of {candidate.name}: give --phase 4 or a later one")
    prepared: dict[int, tuple[Any, Any]] = {}

    def project(weight: Any, x: Tensor, out: Tensor) -> None:
        if id(weight) not in prepared:
            prepared[id(weight)] = weight, candidate.prepare(weight)  # kept, so that an id is one
        dtype = candidate.io_dtype or x.dtype
        for row in range(0, len(x), WIDEST):
            rows, into = x[row:row + WIDEST].to(dtype), out[row:row + WIDEST]
            made = into if dtype == out.dtype else into.to(dtype)
            candidate.gemv_rows(prepared[id(weight)][1], rows, made)
            if made is not into:
                into.copy_(made)

    return replace(path, project=project)
