"""Made-up evidence for tests of the report: green, red, hostile or empty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from contracts.schema import (
    Budget,
    Case,
    CaseTableRow,
    Contract,
    Falsifier,
    MutantEntry,
    Parity,
    StatedTier,
)
from falsifiers.gate import phase_status
from falsifiers.judging import matrix
from falsifiers.judging.verdict import Finding, Verdict, Worst
from reports.evidence import Evidence, MutantResults, SkippedCases, UserModelRun

HOSTILE_TEXT = ("</style></td><script>alert('1')</script><img src=http://x/y onerror=z>"
           "\"'`|$&_*[a](b)\x07\u202e")
PLAIN_TEXT = "a plain word"
BUDGET = Budget(cosine=0.999, norm=1e-3, near_tie=0.05, reason="a made-up reason, long enough",
                measured="a made-up floor")


def contract(phase: str = "p1", text: str = PLAIN_TEXT, truth: Any = "bitwise",
             tier: StatedTier = "cpu") -> Contract:
    """Return a contract of two falsifiers, one with a table of cases and one with a single case."""
    attacks = tuple(Falsifier(id=name, attacks=f"{text} attacks", if_fails=f"{text}: look here ...")
                    for name in ("rows_hold", "slots_hold"))
    cases = (CaseTableRow(falsifier="rows_hold", id="{model}-m{m}", tier=(tier,),
                 given={"model": ["nano", "tiny"], "m": [1, 2, 3]}),
             CaseTableRow(falsifier="slots_hold", id="all"))
    return Contract(phase=phase, package=f"phases.{phase}_made_up", title=f"{text}, the title",
                    claim=f"{text} is what this made-up phase claims", ops=("step",),
                    not_proven=f"{text}, and speed", parity=Parity(twin="bitwise", truth=truth),
                    falsifiers=attacks, cases=cases, mutants=tuple(
                        MutantEntry(id=name, fault="It is wrong.", killed_by=("rows_hold",))
                        for name in ("rolled", "copied", "shown_on_gpu")))


def verdict(case: Case, outcome: str = "passed", text: str = PLAIN_TEXT, **more: Any) -> Verdict:
    """Return a verdict on a case with what its outcome needs."""
    needs: dict[str, Any] = {"reason": f"{text} is why"}
    if outcome == "passed":
        needs = {"compared": 10, "evidence": {"rows_a_step": 3, "kind": text},
                 "worst": (Worst(op="logits", rung="bits", ulps=0, compared=10),)}
    if outcome == "failed":
        needs = {"finding": Finding(rule="twin", rung="bits", sentence=f"{case.id}: {text}",
                                    where={"row": 3, "op": text}, got="0x1", want="0x0", ulps=1,
                                    differing=7)}
    return Verdict.model_validate({
        "case": case.id, "phase": case.phase, "falsifier": case.falsifier, "tier": case.tier,
        "subject": text, "outcome": outcome, "must_claim": True, "seconds": 0.5,
        "repro": f"pytest '{case.id}' --candidate '{text}'", **needs, **more})


def kills(text: str = PLAIN_TEXT, **fates: Any) -> MutantResults:
    """Return a matrix of three mutants: one that died, one as `fates` say, one for a device."""
    def row(name: str, device: Any = "cpu", **more: Any) -> matrix.MutantResult:
        return matrix.MutantResult(
            name=name, phase="p1", fault=f"{text} is wrong.", device=device, **more
        )

    died = row("rolled", expected=("rows_hold",), killed_by=("rows_hold",), rung="bits",
               seconds=1.0)
    other = row("copied", expected=("rows_hold", "slots_hold"), killed_by=("rows_hold",),
                rung="law")
    away = row("shown_on_gpu", "cuda", expected=("slots_hold",))
    untold = fates.get("untold", {})
    return MutantResults(
        matrix.KillMatrix(
            mutants=(died, other, away),
            survivors=fates.get("survivors", ()),
            idle_falsifiers=fates.get("idle", ()),
            not_run=("p1/shown_on_gpu", *untold),
        ),
        untold,
        {"p1/rolled": "B036"},
    )


def evidence(
    outcomes: Sequence[str] = ("passed",) * 7, text: str = PLAIN_TEXT, **more: Any
) -> Evidence:
    """Return a report's evidence on one phase whose seven cases ended as `outcomes` say."""
    fake_contract = contract(text=text)
    verdicts = [verdict(case, outcome, text)
                for case, outcome in zip(fake_contract.expand(), outcomes, strict=True)]
    return Evidence(
        **{
            "results": [phase_status.judge_phase("p1", verdicts, fake_contract.expand())],
            "contracts": {"p1": fake_contract},
            "verdicts": verdicts,
            "kills": kills(text),
            "environment": {"torch": text},
            "command": f"rowtwin report --candidate {text}",
            "made": "2026-01-31 12:00 UTC",
            "subject": text,
            "seconds": 12.0,
            "not_run": [
                SkippedCases(f"2 cases: {text}", "no device is here", "rowtwin report --thorough")
            ],
            "devices": {"p1": f"{text}, 2026-01-30"},
            **more,
        }
    )


def user_model_run(outcome: str = "passed", text: str = PLAIN_TEXT) -> UserModelRun:
    """Return what judging one file said."""
    falsifier = Falsifier(id="streams_equal_solo", attacks=f"{text} attacks a file",
                          if_fails=f"{text}: look at the file")
    case = Case(phase="model", falsifier=falsifier.id, tier="cpu", name=f"m3 {text}", given={},
                quick=True, must_claim=False)
    return UserModelRun(
        text,
        {"file": text},
        (falsifier,),
        (case,),
        (verdict(case, outcome, text),),
        (f"{text} was left out",),
    )


MIXED_OUTCOMES = ("failed", "failed", "failed", "failed", "declined", "unmeasurable", "error")


def failing_evidence(text: str = PLAIN_TEXT) -> Evidence:
    """Return evidence in which everything that can go wrong did."""
    return evidence(
        MIXED_OUTCOMES,
        text,
        user_model=user_model_run("failed", text),
        trouble=[f"pytest died of {text}"],
        output=f"the last words\n{text}",
        not_judged={"p2": f"{text} is why"},
        kills=kills(
            text,
            survivors=("p1/copied",),
            idle=("p1/slots_hold",),
            untold={"p1/rolled": f"{text} fails without it"},
        ),
    )


def empty_evidence() -> Evidence:
    """Return the evidence of a checkout in which nothing is built."""
    none = MutantResults(
        matrix.KillMatrix(mutants=(), survivors=(), idle_falsifiers=(), not_run=())
    )
    return Evidence([], {}, [], none, {}, "rowtwin report", "2026-01-31 12:00 UTC")
