"""The kill matrix: a phase's mutants and falsifiers, and which falsifier killed which mutant."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from contracts.schema import DEVICE_TIERS, Case, Contract, Tier
from falsifiers.judging.errors import SuiteError
from falsifiers.judging.subject import Mutant, Subject
from falsifiers.judging.verdict import Record

Attack = Callable[..., None]
"""A falsifier: `test_<id>(case, subject, judge)`."""


class MutantResult(Record):
    """One row of the kill matrix."""

    name: str
    phase: str
    fault: str
    device: Literal["cpu", "interpret", "cuda"]
    """`cuda` when the mutant needs a device."""
    expected: tuple[str, ...]
    """The falsifiers that must each kill it."""
    killed_by: tuple[str, ...] = ()
    rung: str | None = None
    """The rung of the first kill; `crash` for an exception; None for a survivor."""
    seconds: float = 0.0
    from_receipt: bool = False
    """Whether the result was read from a device's receipt."""

    @property
    def id(self) -> str:
        """The mutant's id, `p1/row_index_is_the_slot`."""
        return f"{self.phase}/{self.name}"


class KillMatrix(Record):
    """The kill matrix of one or more phases."""

    mutants: tuple[MutantResult, ...]
    survivors: tuple[str, ...]
    """`phase/name` of mutants that some expected falsifier did not kill."""
    idle_falsifiers: tuple[str, ...]
    """`phase/id` of falsifiers that killed none."""
    not_run: tuple[str, ...]
    """`phase/name` of mutants that need a device, where there is no device and no receipt."""


@dataclass
class Bank:
    """A phase's falsifiers and the mutants that they must kill."""

    contract: Contract
    falsifiers: Mapping[str, Attack]
    """`test_<id>` of the phase, by id."""
    mutants: Sequence[Mutant]
    subject_for: Callable[[Case], Subject]
    """Returns the right subject for a case."""
    tiers: Sequence[Tier] = ("cpu",)
    """The tiers whose cases run here."""
    healthy: dict[str, bool] = field(default_factory=dict)
    """Whether a case compares something on the right subject, by its id, once it has run."""

    def cases(self, falsifier: str, mutant: Mutant) -> Iterable[Case]:
        """Yield the quick cases with which a falsifier attacks a mutant here."""
        for case in self.contract.expand():
            if (case.falsifier == falsifier and case.quick and case.tier in self.tiers
                    and (case.tier in DEVICE_TIERS) == (mutant.device == "cuda")):
                yield case

    def runs_here(self, mutant: Mutant) -> bool:
        """Return whether the mutant's tier can be run here."""
        fit = DEVICE_TIERS if mutant.device == "cuda" else ("cpu", mutant.device)
        return mutant.device == "cpu" or any(tier in fit for tier in self.tiers)

    def on(self, tiers: Sequence[Tier]) -> Bank:
        """Return the bank for the tiers that run here.

        On the tier `emulate` it has only mutants of CUDA kernels and their killers.
        """
        self.tiers = tiers
        if "emulate" not in tiers:
            return self
        killers = set(self.contract.emulated)
        mutants = [mutant for mutant in self.mutants if mutant.device == "cuda"
                   and mutant.emulated and killers >= {*mutant.killers}]
        used = {name for mutant in mutants for name in mutant.killers}
        return replace(self, mutants=mutants,
                       falsifiers={k: v for k, v in self.falsifiers.items() if k in used})

    def mutant(self, name: str) -> Mutant:
        """Return the mutant of that name; raise `SuiteError` when there is none."""
        found = next((mutant for mutant in self.mutants if mutant.name == name), None)
        if found is None:
            near = difflib.get_close_matches(name, [mutant.name for mutant in self.mutants], n=3,
                                             cutoff=0.4)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise SuiteError(f"{self.contract.phase} has no mutant {name!r}{hint}")
        return found
