"""Derives a phase's status, PASS, FAIL, UNMEASURABLE or BLOCKED, from verdicts.

These are pure functions of records. Missing evidence never passes: a case without a verdict
counts as an error, and a case with two verdicts prevents a pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import model_validator

from contracts.schema import Case, Contract
from falsifiers.judging.verdict import Record, Verdict

Status = Literal["PASS", "FAIL", "UNMEASURABLE", "BLOCKED"]
DeviceProof = Literal["fresh", "stale", "none"]
DECODE_PHASES = ("p1", "p3", "p4", "p5", "p6", "p8")
SERVING_PHASES = ("p0", "p2", "p7")
PHASES = tuple(f"p{n}" for n in range(9))
NOT_BUILT = "not built"
NO_DEVICE_CASE = "no device case"
"""Printed as the device proof of a phase without device cases."""


class PhaseResult(Record):
    """The gate's result for one phase."""

    phase: str
    verdict: Status
    cases: int
    """The number of expected cases, which is the sum of the counts below."""
    passed: int = 0
    failed: int = 0
    unmeasurable: int = 0
    declined: int = 0
    error: int = 0
    """Cases that crashed, compared nothing or have no verdict."""
    device_proof: DeviceProof = "none"
    """Whether a receipt from a device exists and has the digest of this code."""
    seconds: float = 0.0
    why: tuple[str, ...] = ()
    """The reasons if the verdict is not PASS, one sentence each."""

    @model_validator(mode="after")
    def _consistent(self) -> PhaseResult:
        total = self.passed + self.failed + self.unmeasurable + self.declined + self.error
        if total != self.cases:
            raise ValueError(f"{self.phase}: {total} outcomes for {self.cases} cases")
        if self.verdict == "PASS" and (self.why or not self.passed or self.failed or self.error):
            raise ValueError(f"{self.phase}: a pass contradicts its counts")
        if self.verdict != "PASS" and not self.why:
            raise ValueError(f"{self.phase}: {self.verdict} needs a reason")
        return self


def predecessors(phase: str) -> tuple[str, ...]:
    """Return the phases that `phase` depends on, in order; each blocks it if it does not pass."""
    if phase == "engine":
        return ()
    chain = next(c for c in (DECODE_PHASES, SERVING_PHASES) if phase in c)
    before = chain[:chain.index(phase)]
    return ("engine", *(("p1",) if phase in ("p2", "p7") else ()), *before)


def judge_phase(phase: str, verdicts: Sequence[Verdict], expected: Iterable[Case] | None = None,
                trouble: Sequence[str] = ()) -> PhaseResult:
    """Derive the result of one phase from its verdicts.

    Each of the cases in `expected` must have exactly one verdict; None expects those that have
    one. `trouble` lists errors of the run, which prevent a pass.
    """
    rows = [verdict for verdict in verdicts if verdict.phase == phase]
    counts = Counter[str](verdict.outcome for verdict in rows)
    why, must, total = list(trouble), {v.case for v in rows if v.must_claim}, len(rows)
    if expected is not None:
        cases = {case.id: case for case in expected}
        lost = [name for name in cases if all(v.case != name for v in rows)]
        why += _count_mismatches(rows, set(cases), lost)
        must |= {case.id for case in cases.values() if case.must_claim}
        counts["error"] += len(lost)
        total += len(lost)
    odd = tuple(why)
    unproven = sorted(must - {v.case for v in rows if v.outcome == "passed"})
    if counts["error"]:
        why.append(f"{_cases(counts['error'])} ended in an error")
    if unproven:
        reason = next((f": {v.outcome}, {v.reason}" for v in rows
                       if v.case == unproven[0] and v.reason), "")
        why.append(f"{_cases(len(unproven))} that must pass did not, the first is {unproven[0]}"
                   f"{reason}")
    if not counts["passed"]:
        why.append("no case passed")
    status: Status = "UNMEASURABLE" if why else "PASS"
    if counts["failed"]:
        first = next(v.case for v in rows if v.outcome == "failed")
        status = "FAIL"
        why = [f"{_cases(counts['failed'])} failed, the first is {first}", *odd]
    return PhaseResult(phase=phase, verdict=status, cases=total, why=tuple(why),
                       passed=counts["passed"], failed=counts["failed"], error=counts["error"],
                       unmeasurable=counts["unmeasurable"], declined=counts["declined"],
                       seconds=round(sum(v.seconds for v in rows), 3))


def _count_mismatches(rows: Sequence[Verdict], cases: set[str], lost: Sequence[str]) -> list[str]:
    """Return a sentence for missing, double and unexpected verdicts."""
    names = Counter(verdict.case for verdict in rows)
    why = [f"{_cases(len(lost))} left no verdict, the first is {lost[0]}"] if lost else []
    why += [f"{name} left {n} verdicts" for name, n in names.items() if n > 1]
    return why + [f"{name} was not expected" for name in names if name not in cases]


def _cases(count: int) -> str:
    return f"{count} case" if count == 1 else f"{count} cases"


def describe_proof(result: PhaseResult, contract: Contract | None) -> str:
    """Return a result's device proof, or `no device case`."""
    has_device_case = contract is None or any("cuda" in row.tier for row in contract.cases)
    if has_device_case or result.device_proof != "none":
        return result.device_proof
    return NO_DEVICE_CASE


def not_built_result(phase: str) -> PhaseResult:
    """Return the result of a phase without falsifiers."""
    return PhaseResult(phase=phase, verdict="UNMEASURABLE", cases=0, why=(NOT_BUILT,))


def block_successors(results: Sequence[PhaseResult]) -> list[PhaseResult]:
    """Return the results, with BLOCKED for each phase after one that did not pass."""
    red = {result.phase for result in results if result.verdict != "PASS"}
    blocked = []
    for result in results:
        cause = next((phase for phase in predecessors(result.phase) if phase in red), None)
        if cause is not None:
            result = result.model_copy(update={
                "verdict": "BLOCKED", "why": (f"{cause} did not pass", *result.why)})
        blocked.append(result)
    return blocked


def require_device(result: PhaseResult) -> PhaseResult:
    """Return the result, with UNMEASURABLE for a pass without a fresh device proof."""
    if result.verdict != "PASS" or result.device_proof == "fresh":
        return result
    return result.model_copy(update={
        "verdict": "UNMEASURABLE", "why": (f"device proof is {result.device_proof}",)})


def exit_code(results: Iterable[PhaseResult]) -> int:
    """Return 1 if any phase failed, 2 if any other phase did not pass, else 0."""
    words = [result.verdict for result in results]
    if "FAIL" in words:
        return 1
    return 2 if not words or set(words) != {"PASS"} else 0
