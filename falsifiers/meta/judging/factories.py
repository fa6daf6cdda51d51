"""What the suite's own tests share: a made-up case, and the record of what a judge said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from contracts.schema import Budget, Case
from falsifiers.judging.errors import ParityBroken
from falsifiers.judging.verdict import Finding, Outcome, Verdict

BUDGET = Budget(cosine=0.999, norm=1e-3, near_tie=0.05, measured="a made-up floor, for tests",
                reason="a made-up reason, long enough to be one")


def make_case(
    name: str = "a",
    *,
    phase: str = "p1",
    falsifier: str = "holds",
    must_claim: bool = True,
    tier: Any = "cpu",
    **given: Any,
) -> Case:
    """Return a case that stands in no contract."""
    return Case(phase=phase, falsifier=falsifier, tier=tier, name=name, given=given, quick=True,
                must_claim=must_claim)


def judged_verdict(name: str, outcome: Outcome = "passed", **more: Any) -> Verdict:
    """Return a verdict with what its outcome needs."""
    made = make_case(name, must_claim=more.pop("must_claim", True), phase=more.pop("phase", "p1"),
                tier=more.pop("tier", "cpu"))
    all_needs: dict[str, dict[str, Any]] = {"passed": {"compared": 1},
                                            "failed": {"finding": FINDING}}
    needs = all_needs.get(outcome, {"reason": "a made-up reason"})
    told = {"case": made.id, "phase": made.phase, "falsifier": made.falsifier, "tier": made.tier,
            "subject": "in-tree", "outcome": outcome, "must_claim": made.must_claim}
    return Verdict.model_validate({**told, **needs, **more})


FINDING = Finding(rule="twin", rung="bits", sentence="out[row 0]=0x1, but should be 0x0 [p1]")


def broken_finding(attack: Callable[[], object]) -> Finding:
    """Return the finding of an attack that must break a claim."""
    with pytest.raises(ParityBroken) as caught:
        attack()
    return caught.value.finding
