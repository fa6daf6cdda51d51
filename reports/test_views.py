"""The views of a page: worst cases, engagement, fates of mutants, the answer."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.schema import Parity
from reports import fake_evidence, summary_line, views
from reports.evidence import Evidence
from reports.kill_view import kill_view

CASES = list(fake_evidence.contract().expand())


def make_worst(case: int, op: str = "logits", **values: Any) -> Any:
    record = {"op": op, "rung": "bits", "ulps": 0, "compared": 5, **values}
    return fake_evidence.verdict(CASES[case], worst=[record])


def test_worst_of_an_op_is_the_least_cosine_and_then_the_most_ulps() -> None:
    rows = views.worst_by_op([make_worst(0, ulps=900), make_worst(1, cosine=0.99, rung="budget"),
                           make_worst(2, cosine=0.98, rung="budget"), make_worst(3, "exp(nan)"),
                           make_worst(4, "exp(inf)", ulps=1), make_worst(4, "exp(0)")])
    expected = {row.worst.op: (row.case, row.worst.compared, row.cases) for row in rows}
    assert expected == {"logits": (CASES[2].id, 15, 3), "exp": (CASES[4].id, 15, 2)}


@pytest.mark.parametrize(("op", "expected"), [
    ("slot 1, 3.conv", "conv"), ("0.delta", "delta"), ("input 4", "input"), ("exp(nan)", "exp"),
    ("3.project.attn_qkv", "project.attn_qkv"), ("logits of prefill", "logits of prefill"),
    ("(3)", "(3)")])
def test_op_family_drops_the_location(op: str, expected: str) -> None:
    assert views.op_family(op) == expected


@pytest.mark.parametrize(("values", "expected"), [
    ((3, 3), "3"), ((1, 2000), "1 to 2,000"), (("a", "b", "a"), "a, b"), ((True, False),
     "True, False"), (tuple("abcdefgh"), "a, b, c, d, e, f and 2 more")])
def test_engagement_is_summarised_over_the_cases(values: tuple[Any, ...], expected: str) -> None:
    verdicts = [fake_evidence.verdict(case, evidence={"rows_a_step": value, "near_ties": 1})
                for case, value in zip(CASES * 2, values, strict=False)]
    names = [line for line in views.measured_work(verdicts) if line[0] == "rows_hold"]
    if len(values) < 7:
        assert names == [("rows_hold", "rows a step", expected)]
    assert views.summarise_values(values) == expected


def test_mutants_have_the_fate_that_the_matrix_says() -> None:
    kills = fake_evidence.kills(
        survivors=("p1/copied",), untold={"p1/rolled": "it fails without it"}
    )
    view = kill_view(kills, "p1")
    assert {line.result.name: line.fate for line in view.lines} == {"rolled": "cannot tell",
                                                                 "copied": "survived"}
    assert view.not_tried == ("shown_on_gpu",)
    assert (kill_view(kills, "p2").lines, kill_view(kills, "p2").not_tried) == ((), ())


def test_matrix_with_a_survivor_is_never_folded_away() -> None:
    assert kill_view(fake_evidence.kills(survivors=("p1/copied",)), "p1").open
    assert kill_view(fake_evidence.kills(), "p1").killers == ("rows_hold", "slots_hold")


def test_budget_of_another_arithmetic_is_shown_if_a_case_used_it() -> None:
    own = fake_evidence.contract().model_copy(update={"parity": Parity(
        twin="bitwise", truth="bitwise", own=fake_evidence.BUDGET)})
    within = make_worst(0, rung="budget", cosine=0.9995)
    for verdicts, budget in (([make_worst(0)], None), ([within], fake_evidence.BUDGET)):
        (section,) = views.sections(
            fake_evidence.evidence(verdicts=verdicts, contracts={"p1": own})
        )
        assert section.budget == budget


def test_cells_are_coloured_by_the_rung_that_broke() -> None:
    (section,) = views.sections(fake_evidence.evidence(("failed",) + ("passed",) * 6))
    assert section.rungs == ("bits",)
    cell, _ = section.attacks[0].listing[0]
    assert (cell.kind, cell.word, cell.failed) == ("failed rung-bits", "bits", True)


@pytest.mark.parametrize(
    ("evidence", "word", "start"),
    [
        (fake_evidence.evidence(), "PASS", "Yes, as far as it is built: P1 passes."),
        (
            fake_evidence.evidence(not_judged={"p2": "why"}),
            "PASS",
            "Yes, in the candidate's phases: P1",
        ),
        (
            fake_evidence.failing_evidence(),
            "FAIL",
            "No: P1 fails in 4 of 7 cases, your model file fails in 1 of 1",
        ),
        (
            fake_evidence.evidence(user_model=fake_evidence.user_model_run("failed")),
            "FAIL",
            "No: your model file fails",
        ),
        (
            fake_evidence.evidence(("declined",) * 7),
            "UNMEASURABLE",
            "Cannot tell: P1 is not proven",
        ),
        (fake_evidence.empty_evidence(), "UNMEASURABLE", "Cannot tell: nothing is proven"),
    ],
)
def test_answer_says_what_the_exit_code_says(evidence: Evidence, word: str, start: str) -> None:
    assert summary_line.verdict_word(evidence) == word
    assert summary_line.answer(evidence).startswith(start)
    assert evidence.exit_code == {"PASS": 0, "FAIL": 1, "UNMEASURABLE": 2}[word]
