"""A fake bank of mutants that worker processes can import."""

from __future__ import annotations

from dataclasses import replace

from contracts.schema import Case
from falsifiers.judging.judge import Judge
from falsifiers.judging.matrix import Bank
from falsifiers.judging.subject import Mutant, Subject
from reports.fake_evidence import contract


def rows_hold(case: Case, subject: Subject, judge: Judge) -> None:
    """Check a law that only the wrong subject breaks."""
    judge.law(subject.name != "wrong", "the row is wrong", row=1)


def bank_of(phase: str) -> Bank:
    """Return a bank in which one mutant dies and one survives."""
    def named(name: str) -> Mutant:
        return Mutant(name, f"{name}, on purpose.", ("rows_hold",),
                      lambda subject: replace(subject, name=name),
                      "B036" if name == "wrong" else "")

    return Bank(contract(phase), {"rows_hold": rows_hold}, (named("wrong"), named("unseen")),
                lambda case: Subject("in-tree", models=str))
