"""Contracts: what parity means for a phase, as frozen records (`contracts.load` reads them).

A contract lists the claim, the ops, the falsifiers with the diagnosis printed on failure, the
table of cases and the mutants. A list under `given` is an axis: one row expands to the product
of its axes. An unknown key is refused.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

AXIS_FIELD = re.compile(r"\{(\w+)\}")
"""An axis in a case's id; no other format syntax is read."""
Tier = Literal["cpu", "interpret", "cuda", "emulate"]
"""Where a case runs: PyTorch, Triton's interpreter, a CUDA device, or the CUDA emulator."""
DEVICE_TIERS: tuple[Tier, ...] = ("cuda", "emulate")
"""The tiers that run CUDA kernels."""
StatedTier = Literal["cpu", "interpret", "cuda"]
"""The tiers that a row of a contract may name; `emulate` cases are derived from `cuda` ones."""
CASE_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.=+-]*$")


class InconsistentError(ValueError):
    """Two parts of a contract contradict each other; `loc` is the path of the wrong entry."""

    def __init__(self, message: str, *loc: int | str) -> None:
        super().__init__(message)
        self.loc = loc


class FrozenModel(BaseModel):
    """A frozen record that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Budget(FrozenModel):
    """How far from bitwise a truth comparison may be, why, and the floor that was measured."""

    cosine: float = Field(gt=0, le=1)
    """Smallest cosine of any row."""
    norm: float = Field(ge=0)
    """Largest distance of any row's norm ratio from 1."""
    near_tie: float = Field(ge=0)
    """A top-2 margin below this, over the row's standard deviation, excuses a changed argmax."""
    reason: str = Field(min_length=20)
    """Why bitwise cannot hold."""
    measured: str = Field(min_length=10)
    """The floor measured, with its conditions."""


class Parity(FrozenModel):
    """The two rules: twin is always bitwise; truth is bitwise or a budget."""

    twin: Literal["bitwise"]
    truth: Literal["bitwise"] | Budget
    own: Budget | None = None
    """Truth budget of a candidate with its own arithmetic; None if the phase accepts none."""
    kv: dict[Literal["f16", "bf16"], Budget] = {}
    """Budgets of narrower KV caches against f32 ones, by type; empty if there are none."""


class Falsifier(FrozenModel):
    """One attack on the claim; its test is the function `test_<id>`."""

    id: str = Field(pattern=r"^[a-z][a-z0-9_]+$")
    attacks: str = Field(min_length=10)
    """The fault it looks for, in one sentence."""
    if_fails: str = Field(min_length=20)
    """The diagnosis printed on failure."""


class CaseTableRow(FrozenModel):
    """One row of the case table, before its axes are multiplied out."""

    falsifier: str
    tier: tuple[StatedTier, ...] = ("cpu",)
    id: str
    """The case's id with its axes as fields, `nano-m{m}`."""
    given: dict[str, Any] = {}
    quick: bool = True
    """Whether the default selection runs it; `--thorough` runs all."""
    must_claim: bool = True
    """Whether the phase needs this case to pass."""

    @model_validator(mode="before")
    @classmethod
    def _wrap_single_tier(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("tier"), str):
            return {**data, "tier": (data["tier"],)}
        return data


class Case(FrozenModel):
    """One concrete configuration."""

    phase: str
    falsifier: str
    tier: Tier
    name: str
    given: dict[str, Any]
    quick: bool
    must_claim: bool
    repro: str = ""
    """The command that runs the case by itself, if it is in no contract's table."""

    @property
    def id(self) -> str:
        """The full id, `p1/streams_equal_solo[cpu-nano-m3]`."""
        return f"{self.phase}/{self.falsifier}[{self.tier}-{self.name}]"

    @property
    def label(self) -> str:
        """The last part of a message, `p1 streams_equal_solo, cpu-nano-m3`."""
        return f"{self.phase} {self.falsifier}, {self.tier}-{self.name}"

    def __getitem__(self, key: str) -> Any:
        """Return one value of `given`; raise `KeyError` if the contract does not name it."""
        return self.given[key]


class MutantEntry(FrozenModel):
    """One mutant: the phase's `mutants.py` has the function that builds it, under its id."""

    id: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    fault: str = Field(min_length=1)
    """One sentence: what is wrong."""
    killed_by: tuple[str, ...] = Field(min_length=1)
    """The falsifiers that must each kill it."""
    source: str = ""
    """The public report it comes from (`B036`), or empty."""
    device: Literal["cpu", "interpret", "cuda"] = "cpu"
    """The first tier that shows the fault; `cuda` if only a device does."""
    emulated: bool = True
    """Whether a mutant of a CUDA kernel also ends in the emulator."""


class Contract(FrozenModel):
    """What one phase claims and how the claim is attacked."""

    phase: str = Field(pattern=r"^(engine|p[0-8])$")
    package: str
    """The dotted package that holds the increment, `phases.p1_looped_step`."""
    title: str
    claim: str = Field(min_length=20)
    not_proven: str = Field(min_length=10)
    """What a pass does not prove."""
    ops: tuple[str, ...]
    parity: Parity
    falsifiers: tuple[Falsifier, ...] = Field(min_length=1)
    cases: tuple[CaseTableRow, ...] = Field(min_length=1)
    sanitized: tuple[str, ...] = ()
    """Falsifiers whose device cases a receipt also runs under compute-sanitizer."""
    emulated: dict[str, tuple[str, ...]] = {}
    """Device cases that also run in the emulator: patterns of case names by falsifier.

    Receipts do not cover emulated cases.
    """
    mutants: tuple[MutantEntry, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_consistency(self) -> Contract:
        known = [falsifier.id for falsifier in self.falsifiers]
        _refuse_repeats("falsifier", known, "falsifiers")
        _refuse_repeats("mutant", [mutant.id for mutant in self.mutants], "mutants")
        for number, mutant in enumerate(self.mutants):
            for name in mutant.killed_by:
                if name not in known:
                    raise InconsistentError(
                        f"mutant {mutant.id!r} names unknown falsifier {name!r}",
                        "mutants", number, "killed_by")
        seen, device_cases = set[str](), list[tuple[str, str]]()
        for number, row in enumerate(self.cases):
            if row.falsifier not in known:
                raise InconsistentError(
                    f"case {row.id!r} names unknown falsifier {row.falsifier!r}",
                    "cases", number, "falsifier")
            for case in self._expand_row(number):
                if case.id in seen:
                    raise InconsistentError(f"duplicate case {case.id!r}", "cases", number)
                seen.add(case.id)
                if case.tier == "cuda":
                    device_cases.append((case.falsifier, case.name))
        for name in self.sanitized:
            if not any(falsifier == name for falsifier, _ in device_cases):
                raise InconsistentError(f"{name!r} has no device case to be sanitized",
                                         "sanitized")
        for name, patterns in self.emulated.items():
            for pattern in patterns:
                if not any(falsifier == name and fnmatchcase(case, pattern)
                           for falsifier, case in device_cases):
                    raise InconsistentError(f"{name!r} has no device case {pattern!r} to be "
                                             f"emulated", "emulated", name)
        idle = sorted(set(known) - {row.falsifier for row in self.cases})
        if idle:
            raise InconsistentError(f"falsifier {idle[0]!r} has no case",
                                     "falsifiers", known.index(idle[0]))
        return self

    @property
    def mutant_ids(self) -> tuple[str, ...]:
        """The ids of the phase's mutants."""
        return tuple(mutant.id for mutant in self.mutants)

    def expand(self) -> Iterator[Case]:
        """Yield every concrete case of the table."""
        for number in range(len(self.cases)):
            yield from self._expand_row(number)

    def _expand_row(self, number: int) -> Iterator[Case]:
        row = self.cases[number]
        axes = {k: v if isinstance(v, list) else [v] for k, v in row.given.items()}
        for tier, *values in itertools.product(row.tier, *axes.values()):
            given = dict(zip(axes, values, strict=True))
            try:
                name = "".join(str(given[part]) if place % 2 else part
                               for place, part in enumerate(AXIS_FIELD.split(row.id)))
            except KeyError as error:
                raise InconsistentError(
                    f"case id {row.id!r} cannot be filled in from given: {error} is missing",
                    "cases", number, "id") from None
            if not CASE_NAME.match(name):
                raise InconsistentError(
                    f"case id {name!r} has a character that a test's name cannot have",
                    "cases", number, "id")
            case = Case(phase=self.phase, falsifier=row.falsifier, tier=tier, name=name,
                        given=given, quick=row.quick, must_claim=row.must_claim)
            yield case
            patterns = self.emulated.get(row.falsifier, ()) if tier == "cuda" else ()
            if any(fnmatchcase(name, pattern) for pattern in patterns):
                yield case.model_copy(update={"tier": "emulate"})


def _refuse_repeats(what: str, ids: list[str], key: str) -> None:
    for number, name in enumerate(ids):
        if name in ids[:number]:
            raise InconsistentError(f"duplicate {what} {name!r}", key, number)
