"""A candidate's product runs inside the compared steps, or the phase is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import rowtwin
from falsifiers.bisect.divergence import Report
from falsifiers.bisect.paired_runs import plan
from falsifiers.bisect.search import Bisection
from falsifiers.gate.candidates import load_candidate
from falsifiers.judging.errors import SuiteError
from phases.candidate_path import path_with_product

PRODUCT = """\
import torch
{more}


def prepare(weight):
    return weight.rows(list(range(weight.n)))


def gemv_rows(weight, x, out):
    for row, out_row in zip(x, out):
        out_row.copy_((weight * row.float()).sum(1){wrong})
"""


def write_candidate(folder: Path, wrong: str = "", more: str = "") -> str:
    path = folder / "mine.py"
    path.write_text(PRODUCT.format(wrong=wrong, more=more))
    return f"file:{path}"


def bisect_candidate(spec: str, phase: str = "4") -> Report:
    setup = rowtwin.build_bisect_setup("nano", phase, spec, "auto", "cpu")
    return Bisection(setup, plan(2, 1, 2, setup.model.config.vocab, 0), 2).run()


def test_right_product_shows_no_divergence(tmp_path: Path) -> None:
    assert bisect_candidate(write_candidate(tmp_path)).place is None


def test_product_that_depends_on_its_width_is_located(tmp_path: Path) -> None:
    report = bisect_candidate(write_candidate(tmp_path, " * (1 + (len(x) > 1) * 2.0 ** -20)"))
    assert report.place is not None
    assert report.place.op.split(".")[1] == "project"
    assert report.healed_by == ["project"]


@pytest.mark.parametrize("phase", ["1", "3"])
def test_path_of_one_row_at_a_time_is_refused(tmp_path: Path, phase: str) -> None:
    with pytest.raises(SuiteError, match=r"projects one row at a time.*give --phase 4"):
        bisect_candidate(write_candidate(tmp_path), phase)


def test_product_gets_its_declared_dtype_and_every_width(tmp_path: Path) -> None:
    candidate = load_candidate(write_candidate(tmp_path, more="io_dtype = torch.bfloat16"))
    path = path_with_product(rowtwin.assemble("p4", None).path, candidate)
    model = rowtwin.load_model("nano")
    weight = next(iter(model.weights.matrices()))
    x = torch.arange(70 * weight.k, dtype=torch.float32).reshape(70, -1) % 7 - 3
    out = torch.full((70, weight.n), float("nan"))
    path.project(weight, x, out)
    want = (weight.rows(list(range(weight.n))) @ x.T).T
    assert torch.allclose(out, want, rtol=0.02, atol=0.05)
