"""What each phase asks of programs in other languages, where it has calls for them."""

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
    "p0": "a scheduler is no op, and is driven step by step",
    "p1": "its step is P4's, which asks for it",
    "p2": "a server is judged over HTTP, by `rowtwin witness URL`",
    "p7": "what it keeps are a server's states between requests, which no call has"}
"""Why a phase asks nothing of files."""


def load_vector_set(phase: str, bank_of: Callable[[str], Bank]) -> VectorSet:
    """Return a phase's calls; raise `SuiteError` for a phase that has none."""
    name = f"p{phase.removeprefix('p')}"
    asked = _vectors_module(name)
    if asked is None:
        told = ", ".join(one.removeprefix("p") for one in sorted(_vector_packages()))
        why = f", for {NO_VECTORS[name]}" if name in NO_VECTORS else ""
        raise SuiteError(f"phase {phase!r} has no vectors{why}: choose one of {told}")
    bank, cases = bank_of(name), tuple(asked.cases())
    return VectorSet(apply_program_budget(bank.contract), cases, bank.falsifiers, asked.answer_call,
                     asked.ARITHMETIC, bank.subject_for(cases[0]), program_offer(name))


def program_offer(phase: str | None) -> type[ExternalOps]:
    """Return the functions that a phase puts before a program, or those that all of them have."""
    return getattr(_vectors_module(phase), "OFFER", ExternalOps)


def require_programs(spec: str, phases: Iterable[str]) -> None:
    """Raise `SuiteError` when one of these phases cannot judge a program started for each call."""
    takes = [
        phase for phase in sorted(_vector_packages()) if not program_offer(phase).no_program_reason
    ]
    for phase in phases:
        if phase not in takes:
            why = program_offer(phase).no_program_reason or NO_VECTORS.get(
                phase, "it is the oracle"
            )
            told = ", ".join(one.removeprefix("p") for one in takes)
            if phase in _vector_packages():
                why += f": rowtwin vectors export DIR --phase {phase.removeprefix('p')} asks one " \
                       f"process for all calls"
            raise SuiteError(f"candidate {spec} cannot be judged in {phase}, for {why}; a program "
                             f"is judged with one of --phase {told}")


def apply_program_budget(contract: Contract) -> Contract:
    """Return a contract with the budget to which its phase holds what is no Python."""
    own = getattr(_vectors_module(contract.phase), "OWN_BUDGET", contract.parity.own)
    return contract.model_copy(update={
        "parity": contract.parity.model_copy(update={"own": own})})


def program_cases(phase: str) -> tuple[Case, ...]:
    """Return the cases that a phase asks of a program beside its contract's."""
    return tuple(getattr(_vectors_module(phase), "extra_cases", tuple)())


def _vector_packages() -> dict[str, str]:
    return {path.parent.name.split("_")[0]: path.parent.name
            for path in Path(__file__).parent.glob("p*/vectors.py")}


def _vectors_module(phase: str | None) -> Any:
    package = _vector_packages().get(phase or "")
    return importlib.import_module(f"phases.{package}.vectors") if package else None
