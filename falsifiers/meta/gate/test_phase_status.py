"""Phase status: what passes, fails, is unmeasurable or blocked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.schema import Contract
from falsifiers.gate import phase_status
from falsifiers.gate.phase_status import PhaseResult, exit_code, judge_phase, predecessors
from falsifiers.judging.verdict import Verdict
from falsifiers.meta.gate.fake_checkout import fake_case_row, fake_contract
from falsifiers.meta.judging.factories import FINDING, judged_verdict, make_case

OUTCOMES = ("passed", "failed", "declined", "unmeasurable", "error")
books = st.lists(st.tuples(st.sampled_from(OUTCOMES), st.booleans()), max_size=6).map(
    lambda rows: [judged_verdict(f"c{i}", outcome, must_claim=must)  # type: ignore[arg-type]
                  for i, (outcome, must) in enumerate(rows)])


@given(books)
def test_status_follows_its_definition(book: list[Verdict]) -> None:
    result = judge_phase("p1", book)
    outcomes = {v.outcome for v in book}
    unclaimed = any(v.must_claim and v.outcome != "passed" for v in book)
    if "failed" in outcomes:
        assert result.verdict == "FAIL"
    elif "passed" not in outcomes or "error" in outcomes or unclaimed:
        assert result.verdict == "UNMEASURABLE"
    else:
        assert result.verdict == "PASS"


@given(books, st.sampled_from(OUTCOMES))
def test_worse_evidence_never_helps(book: list[Verdict], outcome: str) -> None:
    rank = {"PASS": 0, "UNMEASURABLE": 1, "FAIL": 2}
    more = [*book, judged_verdict("more", outcome, must_claim=True)]  # type: ignore[arg-type]
    if outcome != "passed":
        assert rank[judge_phase("p1", more).verdict] >= rank[judge_phase("p1", book).verdict]


@given(books)
def test_error_of_the_run_never_passes(book: list[Verdict]) -> None:
    assert judge_phase("p1", book, trouble=["pytest was killed by signal 9"]).verdict != "PASS"


@given(books)
def test_missing_verdict_never_passes(book: list[Verdict]) -> None:
    cases = [make_case(f"c{i}", must_claim=v.must_claim) for i, v in enumerate(book)]
    result = judge_phase("p1", book, [*cases, make_case("lost", must_claim=False)])
    assert result.verdict != "PASS"
    assert result.cases == len(book) + 1
    assert any("p1/holds[cpu-lost]" in why for why in result.why)


def test_no_verdict_at_all_is_unmeasurable() -> None:
    assert judge_phase("p1", []).verdict == "UNMEASURABLE"
    assert judge_phase("p1", [judged_verdict("a", phase="p3")]).verdict == "UNMEASURABLE"


def test_double_or_unexpected_verdict_never_passes() -> None:
    a = judged_verdict("a")
    assert judge_phase("p1", [a], [make_case("a")]).verdict == "PASS"
    assert judge_phase("p1", [a, a], [make_case("a")]).verdict == "UNMEASURABLE"
    assert judge_phase("p1", [a, judged_verdict("b")], [make_case("a")]).verdict == "UNMEASURABLE"


@pytest.mark.parametrize(("phase", "before"), [
    ("engine", ()), ("p0", ("engine",)), ("p1", ("engine",)), ("p2", ("engine", "p1", "p0")),
    ("p3", ("engine", "p1")), ("p5", ("engine", "p1", "p3", "p4")),
    ("p7", ("engine", "p1", "p0", "p2")), ("p8", ("engine", "p1", "p3", "p4", "p5", "p6"))])
def test_phase_depends_on_its_chain(phase: str, before: tuple[str, ...]) -> None:
    assert predecessors(phase) == before


def result(phase: str, word: str) -> PhaseResult:
    if word == "PASS":
        return judge_phase(phase, [judged_verdict("a", phase=phase)])
    outcome = "failed" if word == "FAIL" else "error"
    return judge_phase(phase, [judged_verdict("a", outcome, phase=phase)])  # type: ignore[arg-type]


ladders = st.lists(st.sampled_from(["PASS", "FAIL", "UNMEASURABLE"]), min_size=10, max_size=10).map(
    lambda words: [result(p, w)
                   for p, w in zip(("engine", *phase_status.PHASES), words, strict=True)])


@given(ladders)
def test_phase_is_blocked_only_by_predecessors_that_do_not_pass(ladder: list[PhaseResult]) -> None:
    before = {r.phase: r.verdict for r in ladder}
    for after in phase_status.block_successors(ladder):
        blocked = any(before[phase] != "PASS" for phase in predecessors(after.phase))
        assert after.verdict == ("BLOCKED" if blocked else before[after.phase])


@given(ladders)
def test_exit_code_is_zero_only_if_every_phase_passes(ladder: list[PhaseResult]) -> None:
    words = {r.verdict for r in phase_status.block_successors(ladder)}
    assert exit_code(phase_status.block_successors(ladder)) == (
        1 if "FAIL" in words else 2 if words - {"PASS"} else 0)


def test_no_result_is_no_success() -> None:
    assert exit_code([]) == 2


@pytest.mark.parametrize(("proof", "word"), [
    ("fresh", "PASS"), ("stale", "UNMEASURABLE"), ("none", "UNMEASURABLE")])
def test_require_device_makes_a_pass_without_proof_unmeasurable(proof: str, word: str) -> None:
    passed = result("p3", "PASS").model_copy(update={"device_proof": proof})
    assert passed.verdict == "PASS"
    assert phase_status.require_device(passed).verdict == word
    failed = result("p3", "FAIL").model_copy(update={"device_proof": proof})
    assert phase_status.require_device(failed).verdict == "FAIL"


@pytest.mark.parametrize("contradiction", [
    {"outcome": "failed", "finding": None}, {"outcome": "passed", "finding": FINDING},
    {"outcome": "passed", "compared": 0}, {"outcome": "declined", "reason": None},
    {"outcome": "unmeasurable", "reason": ""}, {"outcome": "error", "reason": None}])
def test_verdict_cannot_contradict_itself(contradiction: dict[str, object]) -> None:
    valid = judged_verdict("a").model_dump()
    Verdict.model_validate(valid)
    with pytest.raises(ValueError, match="p1/holds"):
        Verdict.model_validate({**valid, **contradiction})


@pytest.mark.parametrize("contradiction", [
    {"failed": 1}, {"passed": 0, "error": 1}, {"why": ("it is late",)}, {"verdict": "FAIL"},
    {"cases": 2}])
def test_phase_result_cannot_contradict_itself(contradiction: dict[str, object]) -> None:
    valid = result("p1", "PASS").model_dump()
    PhaseResult.model_validate(valid)
    with pytest.raises(ValueError, match="p1"):
        PhaseResult.model_validate({**valid, **contradiction})


@pytest.mark.parametrize(("must", "word"), [(True, "UNMEASURABLE"), (False, "PASS")])
def test_must_claim_is_read_from_the_contract_not_the_verdict(must: bool, word: str) -> None:
    book = [judged_verdict("a", "declined", must_claim=False),
            judged_verdict("b", must_claim=False)]
    expected = [make_case("a", must_claim=must), make_case("b", must_claim=False)]
    assert judge_phase("p1", book, expected).verdict == word


def test_reasons_count_their_cases_and_quote_the_first() -> None:
    book = [judged_verdict("c", "unmeasurable"), judged_verdict("a"),
            judged_verdict("b", "declined"), judged_verdict("d", "error")]
    assert judge_phase("p1", book).why == (
        "1 case ended in an error",
        "3 cases that must pass did not, the first is p1/holds[cpu-b]: declined, a fake reason")


def test_phase_that_is_not_built_has_no_cases() -> None:
    missing = phase_status.not_built_result("p3")
    assert (missing.verdict, missing.cases, missing.why) == ("UNMEASURABLE", 0, ("not built",))


def test_seconds_are_those_of_all_verdicts_to_a_thousandth() -> None:
    book = [judged_verdict("a", seconds=1.00049), judged_verdict("b", seconds=2.0),
            judged_verdict("c", phase="p3")]
    assert judge_phase("p1", book).seconds == 3.0


@pytest.mark.parametrize(("tier", "proof", "words"), [
    ("cuda", "none", "none"), ("cuda", "fresh", "fresh"), ("cpu", "none", "no device case"),
    ("cpu", "stale", "stale"), (None, "none", "none")])
def test_proof_is_described_as_missing_only_with_a_device_case(
    tier: str | None, proof: phase_status.DeviceProof, words: str
) -> None:
    contract = None if tier is None else Contract.model_validate(
        fake_contract("p1", [fake_case_row("a"), fake_case_row("b", tier=tier)]))
    result = judge_phase("p1", [judged_verdict("a", "passed")]).model_copy(
        update={"device_proof": proof})
    assert phase_status.describe_proof(result, contract) == words
