"""What each phase asks of programs in other languages, where it has calls for them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from falsifiers.errors import SuiteError
from falsifiers.mutants import Bank
from falsifiers.vectors.exchange import VectorSet


def of(phase: str, bank_of: Callable[[str], Bank]) -> VectorSet:
    """Return a phase's calls; raise `SuiteError` for a phase that has none."""
    having = {path.parent.name.split("_")[0]: path.parent.name
              for path in Path(__file__).parent.glob("p*/vectors.py")}
    name = f"p{phase.removeprefix('p')}"
    if name not in having:
        told = ", ".join(one.removeprefix("p") for one in sorted(having))
        raise SuiteError(f"phase {phase!r} has no vectors: choose one of {told}")
    asked = importlib.import_module(f"phases.{having[name]}.vectors")
    bank, cases = bank_of(name), tuple(asked.cases())
    return VectorSet(bank.contract, cases, bank.falsifiers, asked.right, asked.ARITHMETIC,
                     bank.subject_for(cases[0]).path)
