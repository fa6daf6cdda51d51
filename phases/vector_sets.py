"""The vector sets of the phases: their calls for programs in other languages."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from contracts.schema import Case, Contract
from falsifiers.judging.errors import SuiteError
from falsifiers.judging.matrix import Bank
from falsifiers.vectors.calls import ExternalOps
from falsifiers.vectors.exchange import VectorSet

NO_VECTORS = {
    "p0": "a scheduler is not an op",
    "p1": "its step is the one of P4",
    "p2": "a server is judged over HTTP, by `rowtwin witness URL`",
    "p7": "it stores a server's states between requests, and no call has those"}
"""Why a phase has no vectors."""


def load_vector_set(phase: str, bank_of: Callable[[str], Bank]) -> VectorSet:
    """Return a phase's vector set; raise `SuiteError` for a phase that has none."""
    name = f"p{phase.removeprefix('p')}"
    module = _vectors_module(name)
    if module is None:
        choices = _format_phases(_vector_packages())
        why = f", because {NO_VECTORS[name]}" if name in NO_VECTORS else ""
        raise SuiteError(f"phase {phase!r} has no vectors{why}: choose one of {choices}")
    bank, cases = bank_of(name), tuple(module.cases())
    return VectorSet(apply_program_budget(bank.contract), cases, bank.falsifiers,
                     module.answer_call, module.ARITHMETIC, bank.subject_for(cases[0]),
                     program_offer(name))


def program_offer(phase: str | None) -> type[ExternalOps]:
    """Return the candidate class of a phase's programs, else the one with the common ops."""
    return getattr(_vectors_module(phase), "OFFER", ExternalOps)


def require_programs(spec: str, phases: Iterable[str]) -> None:
    """Raise `SuiteError` when one of these phases cannot judge a program started for each call."""
    accepting = [phase for phase in sorted(_vector_packages())
                 if not program_offer(phase).no_program_reason]
    for phase in phases:
        if phase in accepting:
            continue
        why = program_offer(phase).no_program_reason or NO_VECTORS.get(phase, "it is the oracle")
        if phase in _vector_packages():
            why += f": rowtwin vectors export DIR --phase {phase.removeprefix('p')} has one " \
                   f"process answer all calls"
        raise SuiteError(f"candidate {spec} cannot be judged in {phase}, because {why}; use one "
                         f"of --phase {_format_phases(accepting)}")


def apply_program_budget(contract: Contract) -> Contract:
    """Return a contract with its phase's budget for programs in their own arithmetic."""
    budget = getattr(_vectors_module(contract.phase), "OWN_BUDGET", contract.parity.own)
    return contract.model_copy(update={
        "parity": contract.parity.model_copy(update={"own": budget})})


def program_cases(phase: str) -> tuple[Case, ...]:
    """Return the cases for programs that a phase has in addition to its contract's."""
    return tuple(getattr(_vectors_module(phase), "extra_cases", tuple)())


def _format_phases(phases: Iterable[str]) -> str:
    return ", ".join(phase.removeprefix("p") for phase in sorted(phases))


def _vector_packages() -> dict[str, str]:
    return {path.parent.name.split("_")[0]: path.parent.name
            for path in Path(__file__).parent.glob("p*/vectors.py")}


def _vectors_module(phase: str | None) -> Any:
    package = _vector_packages().get(phase or "")
    return importlib.import_module(f"phases.{package}.vectors") if package else None
