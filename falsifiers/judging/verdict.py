"""The records of a judgement, and how the end of a case becomes its verdict.

Each record validates itself. The type of the exception that ended a case decides its outcome.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from contracts.schema import Case, Contract
from falsifiers.judging.errors import Declined, ParityBroken, Unmeasurable

Outcome = Literal["passed", "failed", "declined", "unmeasurable", "error"]
RED: tuple[Outcome, ...] = ("failed", "error")
Rule = Literal["twin", "truth", "law"]
Rung = Literal["shape", "dtype", "finite", "bits", "budget", "law", "frame", "crash"]


class Record(BaseModel):
    """A frozen record that refuses unknown fields."""

    # the published schema takes each field's description from the docstring below it
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Finding(Record):
    """One broken claim: which rule and rung, where, and the sentence a reader sees."""

    rule: Rule
    """twin: a batch against single rows; truth: against the engine; law: a property by itself."""
    rung: Rung
    """The first rung of the ladder that failed."""
    sentence: str
    """The message for a reader."""
    where: dict[str, int | str] = {}
    """row, slot, step, layer, op and element, as far as they apply."""
    got: str | None = None
    """The first differing element's bit pattern, or its value for integers."""
    want: str | None = None
    """The expected bit pattern or value."""
    ulps: int | None = None
    """Their distance in units in the last place."""
    differing: int | None = None
    """The number of elements that differ; the message has the first."""


class Worst(Record):
    """The largest deviation of one op in a case."""

    op: str
    rung: Rung
    ulps: int
    """0 for bitwise equality."""
    cosine: float | None = None
    """The smallest per-row cosine, where a budget was used."""
    norm_error: float | None = None
    """The largest per-row | norm ratio - 1 |, where a budget was used."""
    compared: int
    """The number of values compared."""


class Verdict(Record):
    """The record of judging one case."""

    case: str
    """The case's full id, `p1/streams_equal_solo[cpu-nano-m3]`."""
    phase: str
    """`engine` or `p0` .. `p8`."""
    falsifier: str
    tier: Literal["cpu", "interpret", "cuda", "emulate"]
    subject: str
    """What was judged: `in-tree`, or the candidate's spec."""
    outcome: Outcome
    must_claim: bool = False
    finding: Finding | None = None
    reason: str | None = None
    """Why the case was declined, unmeasurable or an error."""
    compared: int = 0
    """The number of values or laws checked; a pass needs at least one."""
    worst: tuple[Worst, ...] = ()
    evidence: dict[str, Any] = {}
    """Measurements of what ran: bytes read, rows a step, tokens prefilled."""
    repro: str = ""
    """The command that runs only this case."""
    seconds: float = 0.0

    @model_validator(mode="after")
    def _consistent(self) -> Verdict:
        if (self.outcome == "failed") != (self.finding is not None):
            raise ValueError(f"{self.case}: a finding and the outcome 'failed' go together")
        if self.outcome == "passed" and self.compared == 0:
            raise ValueError(f"{self.case}: a case that compared nothing cannot pass")
        if self.outcome in ("declined", "unmeasurable", "error") and not self.reason:
            raise ValueError(f"{self.case}: outcome {self.outcome!r} needs a reason")
        return self


def pytest_node(case: Case, package: str) -> str:
    """Return a case's pytest node id, `phases/p1_looped_step/test_falsifier.py::test_x[cpu-a]`."""
    folder = package.replace(".", "/")
    return f"{folder}/test_falsifier.py::test_{case.falsifier}[{case.tier}-{case.name}]"


def repro_command(case: Case, package: str, candidate: str | None, device: str) -> str:
    """Return the command that runs only this case, from the repository's root."""
    parts = [case.repro] if case.repro else ["pytest", f"'{pytest_node(case, package)}'"]
    if not case.quick:
        parts.append("--thorough")
    if candidate:
        parts.append(f"--candidate '{candidate}'")
    if device != "auto":
        parts.append(f"--device {device}")
    return " ".join(parts)


def make_verdict(case: Case, error: BaseException | None, judge: Any = None, *, subject: str,
                 repro: str, seconds: float, faults: tuple[type[Exception], ...] = ()) -> Verdict:
    """Return the verdict of a case that raised `error`, or returned (None).

    `judge` is the case's Judge, or None when the case ended before it got one. `faults` are the
    subject's exceptions that count as a failure.
    """
    if isinstance(error, faults):
        error = ParityBroken(Finding(rule="law", rung="crash",
                                     sentence=f"{first_line(error)} [{case.label}]"))
    known: dict[str, Any] = {
        "case": case.id, "phase": case.phase, "falsifier": case.falsifier, "tier": case.tier,
        "must_claim": case.must_claim, "subject": subject, "repro": repro, "seconds": seconds}
    if judge is not None:
        known.update(compared=judge.compared, worst=judge.worst, evidence=judge.evidence)
    try:
        return Verdict.model_validate({**known, **_outcome_fields(error, judge)})
    except ValueError as broken:
        return Verdict.model_validate({
            **known, "outcome": "error", "worst": (), "evidence": {},
            "reason": f"its record is invalid: {first_line(broken)}"})


def _outcome_fields(error: BaseException | None, judge: Any) -> dict[str, Any]:
    if isinstance(error, ParityBroken):
        return {"outcome": "failed", "finding": error.finding}
    if isinstance(error, Declined):
        return {"outcome": "declined", "reason": str(error) or "no reason given"}
    if isinstance(error, Unmeasurable):
        return {"outcome": "unmeasurable", "reason": str(error) or "no reason given"}
    if error is not None:
        return {"outcome": "error", "reason": f"{type(error).__name__}: {first_line(error)}"}
    if judge is None or judge.compared == 0:
        return {"outcome": "error", "reason": "no value was compared"}
    return {"outcome": "passed"}


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's text, or `(no text)`."""
    return next(iter(str(error).splitlines()), "") or "(no text)"


def explain_failure(verdict: Verdict, contract: Contract) -> str:
    """Explain a case that failed: what broke, what it means and how to run it again."""
    falsifier = next(f for f in contract.falsifiers if f.id == verdict.falsifier)
    finding = verdict.finding
    if finding is None:
        return f"{verdict.case}: {verdict.outcome}: {verdict.reason}\nrun it alone: {verdict.repro}"
    lines = [finding.sentence, f"rule: {finding.rule}, broken at the rung: {finding.rung}"]
    if finding.differing is not None and finding.differing > 1:
        lines[-1] += f", {finding.differing} elements differ"
    if finding.rung != "crash":  # after a crash no values were compared
        lines += [f"attacked: {falsifier.attacks}", f"likely: {falsifier.if_fails}"]
    return "\n".join([*lines, f"run it alone: {verdict.repro}"])
