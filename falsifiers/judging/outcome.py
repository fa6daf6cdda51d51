"""From what a falsifier did to the record of it: the outcome follows from the exception's type."""

from __future__ import annotations

from typing import Any

from contracts.schema import Case, Contract
from falsifiers.judging.errors import Declined, ParityBroken, Unmeasurable
from falsifiers.judging.verdict import Finding, Verdict

COMPARED_NOTHING = "it compared nothing"


def pytest_node(case: Case, package: str) -> str:
    """Return a case's pytest node id, `phases/p1_looped_step/test_falsifier.py::test_x[cpu-a]`."""
    folder = package.replace(".", "/")
    return f"{folder}/test_falsifier.py::test_{case.falsifier}[{case.tier}-{case.name}]"


def repro_command(case: Case, package: str, candidate: str | None, device: str) -> str:
    """Return the command, to be pasted at the repository's root, that runs a case alone."""
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
    """Return the verdict of a case that ended with `error`, or that returned (None).

    `judge` is the case's Judge, or None when the case ended before it had one; `faults` are the
    subject's.
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
            "reason": f"the record of it is broken: {first_line(broken)}"})


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
        return {"outcome": "error", "reason": COMPARED_NOTHING}
    return {"outcome": "passed"}


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's text, or a stand-in when it has none."""
    return next(iter(str(error).splitlines()), "") or "(no text)"


def explain_failure(verdict: Verdict, contract: Contract) -> str:
    """Return what a reader needs on a case that failed: what broke, what it means, how to rerun."""
    falsifier = next(f for f in contract.falsifiers if f.id == verdict.falsifier)
    finding = verdict.finding
    if finding is None:
        return f"{verdict.case}: {verdict.outcome}: {verdict.reason}\nrun it alone: {verdict.repro}"
    lines = [finding.sentence, f"rule: {finding.rule}, broken at the rung: {finding.rung}"]
    if finding.differing is not None and finding.differing > 1:
        lines[-1] += f", {finding.differing} elements differ"
    if finding.rung != "crash":  # where nothing was compared, what differs tells nothing
        lines += [f"attacked: {falsifier.attacks}", f"likely: {falsifier.if_fails}"]
    return "\n".join([*lines, f"run it alone: {verdict.repro}"])
