"""The answer in one line, and a few numbers."""

from __future__ import annotations

from reports.evidence import NOT_REQUESTED, Evidence
from reports.views import MARKS

EXIT_VERDICTS = {0: "PASS", 1: "FAIL", 2: "UNMEASURABLE"}


def verdict_word(evidence: Evidence) -> str:
    """Return the verdict of the run."""
    return EXIT_VERDICTS[evidence.exit_code]


def verdict_mark(evidence: Evidence) -> str:
    """Return the symbol of the verdict."""
    return MARKS[verdict_word(evidence)]


def answer(evidence: Evidence) -> str:
    """Answer the suite's question in one sentence."""
    red = [r for r in evidence.judged_results if r.verdict == "FAIL"]
    if red:
        failures = ", ".join(f"{phase_label(r.phase)} fails in {r.failed} of {r.cases} cases"
                             for r in red)
        return f"No: {failures}."
    if evidence.exit_code:
        unsure = [phase_label(r.phase) for r in evidence.judged_results if r.verdict != "PASS"]
        if not unsure:
            return "Cannot tell: nothing is proven, since nothing was judged."
        verb = "is" if len(unsure) == 1 else "are"
        return f"Cannot tell: {join_names(unsure)} {verb} not proven."
    scope = "in the requested phases" if NOT_REQUESTED in evidence.not_judged.values() else \
        "in the candidate's phases" if evidence.not_judged else "as far as it is built"
    green = [phase_label(r.phase) for r in evidence.judged_results]
    return f"Yes, {scope}: {join_names(green)} {'passes' if len(green) == 1 else 'pass'}."


def facts(evidence: Evidence) -> dict[str, str]:
    """Return the few numbers that are printed under the answer."""
    kills, verdicts = evidence.kills, evidence.every_verdict
    matrix = kills.matrix
    tried = len(matrix.mutants) - len(matrix.not_run)
    passed = sum(v.outcome == "passed" for v in verdicts)
    total = sum(r.cases for r in evidence.judged_results)
    return {
        "cases": f"{passed} of {total} passed",
        "values and laws compared": f"{sum(v.compared for v in verdicts):,}",
        "mutants": f"{tried - len(matrix.survivors)} of {tried} died" if tried else "none tried",
        "phases judged": f"{len(evidence.results)} of 10",
        "judged": evidence.subject, "made": evidence.made,
        "took": f"{evidence.seconds:.0f} s", "command": evidence.command}


def phase_label(phase: str) -> str:
    """Return a phase's name in a sentence."""
    return {"engine": "the engine", "model": "your model file"}.get(phase, phase.upper())


def join_names(names: list[str]) -> str:
    """Join names with commas and `and`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" \
        if names else ""
