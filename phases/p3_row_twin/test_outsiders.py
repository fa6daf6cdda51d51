"""Candidates from another folder: one that P3 takes by its budget, and one that it refuses."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.schema import Case, load_contract
from falsifiers.candidates import Candidate, load
from falsifiers.errors import Declined, ParityBroken
from falsifiers.judge import Judge
from falsifiers.subject import Subject
from phases.p3_row_twin import test_falsifier
from phases.p3_row_twin.harness import CONTRACT

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def offered(folder: Path, name: str) -> Candidate:
    """Return an example as an outsider would offer it, from a folder of his own."""
    return load(f"file:{shutil.copy(EXAMPLES / name, folder / name)}")


def cases(*falsifiers: str) -> Iterator[Case]:
    """Yield the quick Q4_K cases of these falsifiers under the interpreter."""
    for case in load_contract(CONTRACT).expand():
        if case.falsifier in falsifiers and case.tier == "interpret" and case.quick \
                and case.given.get("kind") == "Q4_K" and case["arithmetic"] == "exact-23":
            yield case


def judged(case: Case, candidate: Candidate) -> Judge:
    judge = Judge(case)
    function = getattr(test_falsifier, f"test_{case.falsifier}")
    function(case, Subject("outsider", models=lambda name: None, candidate=candidate), judge)
    assert judge.compared > 0
    return judge


@pytest.mark.tier("interpret")
def test_dot_kernel_passes_twin_in_bits_and_truth_by_the_budget(tmp_path: Path) -> None:
    candidate = offered(tmp_path, "dot_rows.py")
    attacks = ("rows_equal_alone", "products_are_true", "strides_and_offsets_do_not_matter",
               "neighbours_cannot_reach_a_row", "weights_are_read_once",
               "loads_and_stores_stay_inside")
    rungs = {case.falsifier: {w.rung for w in judged(case, candidate).worst}
             for case in cases(*attacks)}
    assert set(rungs) == set(attacks)
    assert rungs["rows_equal_alone"] == {"bits"}
    assert rungs["products_are_true"] == {"budget"}


@pytest.mark.tier("interpret")
def test_split_of_k_by_the_width_fails_twin(tmp_path: Path) -> None:
    candidate = offered(tmp_path, "split_by_width.py")
    (case,) = cases("rows_equal_alone")
    with pytest.raises(ParityBroken) as broken:
        judged(case, candidate)
    assert (broken.value.finding.rule, broken.value.finding.rung) == ("twin", "bits")
    assert broken.value.finding.where["m"] == 2
    judged(next(cases("products_are_true")), candidate)  # its sums are as good as any


@pytest.mark.tier("interpret")
def test_candidate_that_is_not_triton_is_not_said_to_read_once(tmp_path: Path) -> None:
    path = tmp_path / "plain.py"
    path.write_text("def prepare(weight):\n    return weight.rows(list(range(weight.n)))\n\n\n"
                    "def gemv_rows(weight, x, out):\n    out.copy_(x @ weight.T)\n")
    with pytest.raises(Declined, match="not Triton's"):
        judged(next(cases("weights_are_read_once")), load(f"file:{path}"))
