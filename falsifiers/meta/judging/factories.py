"""Made-up cases, verdicts and findings for the suite's own tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from contracts.schema import Budget, Case
from falsifiers.judging.errors import ParityBroken
from falsifiers.judging.verdict import Finding, Outcome, Verdict

BUDGET = Budget(cosine=0.999, norm=1e-3, near_tie=0.05, measured="a fake floor, for tests",
                reason="a fake reason, long enough to be one")


def make_case(
    name: str = "a",
    *,
    phase: str = "p1",
    falsifier: str = "holds",
    must_claim: bool = True,
    tier: Any = "cpu",
    **parameters: Any,
) -> Case:
    """Return a case that is in no contract."""
    return Case(phase=phase, falsifier=falsifier, tier=tier, name=name, given=parameters,
                quick=True, must_claim=must_claim)


def judged_verdict(name: str, outcome: Outcome = "passed", **more: Any) -> Verdict:
    """Return a verdict with the fields that its outcome needs."""
    case = make_case(name, must_claim=more.pop("must_claim", True), phase=more.pop("phase", "p1"),
                     tier=more.pop("tier", "cpu"))
    by_outcome: dict[str, dict[str, Any]] = {"passed": {"compared": 1},
                                             "failed": {"finding": FINDING}}
    fields = {"case": case.id, "phase": case.phase, "falsifier": case.falsifier,
              "tier": case.tier, "subject": "in-tree", "outcome": outcome,
              "must_claim": case.must_claim}
    needed = by_outcome.get(outcome, {"reason": "a fake reason"})
    return Verdict.model_validate({**fields, **needed, **more})


FINDING = Finding(rule="twin", rung="bits", sentence="out[row 0]=0x1, but should be 0x0 [p1]")


def broken_finding(attack: Callable[[], object]) -> Finding:
    """Return the finding of a call that must break a claim."""
    with pytest.raises(ParityBroken) as caught:
        attack()
    return caught.value.finding
