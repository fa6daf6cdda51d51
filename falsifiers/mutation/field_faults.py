"""Formats a page of publicly reported faults and the mutants that reproduce them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, StringConstraints, TypeAdapter, ValidationError

from falsifiers.judging.errors import SuiteError
from falsifiers.judging.matrix import Bank
from falsifiers.judging.subject import Mutant

DATA = Path(__file__).with_suffix(".yaml")
Sentence = Annotated[str, StringConstraints(pattern=r"^\S[^\n|]*\.$")]
PlantedMutant = tuple[str, Mutant]
"""A mutant and its phase."""

PAGE_HEADER = """\
# Field faults

These faults of batched inference were reported in public. Each has a description in our own words
and the mutants that reproduce it. `rowtwin mutants --faults` prints this page from
`falsifiers/mutation/field_faults.yaml` and the mutants; a test compares the two. `rowtwin mutants`
runs each mutant against every falsifier listed with it, and fails if one of them does not kill it.
A mutant marked *device* needs a GPU: use `rowtwin mutants --device cuda`.

A mutant reproduces the fault of a report, not its code. If this project has no such code, or the
report found no cause, the line describes the stand-in.
"""


class Fault(BaseModel):
    """One public report."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Annotated[str, StringConstraints(pattern=r"^B\d{3}$")]
    """The `source` of its mutants."""
    link: Annotated[str, StringConstraints(
        pattern=r"^https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+$")]
    phase: Literal["p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8", "engine"]
    """The phase that it breaks."""
    fault: Sentence
    stand_in: Sentence | None = None
    """What the mutant does instead, if this project has no such code."""
    why_not: Sentence | None = None
    """Why there is no mutant."""

    @property
    def name(self) -> str:
        """The report's short name, `owner/project#7`."""
        owner, project, _, number = self.link.removeprefix("https://github.com/").split("/")
        return f"{owner}/{project}#{number}"


def load_faults(path: Path = DATA) -> tuple[Fault, ...]:
    """Load the faults; raise `SuiteError` for a broken file or a duplicate id."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        faults = TypeAdapter(tuple[Fault, ...]).validate_python(data)
    except (OSError, ValueError, yaml.YAMLError) as error:
        why = error.errors()[0] if isinstance(error, ValidationError) else None
        reason = f"{why['loc']}: {why['msg']}" if why else str(error).splitlines()[0]
        raise SuiteError(f"{path.name} is not a list of faults: {reason}") from None
    ids = [fault.id for fault in faults]
    for number, fault_id in enumerate(ids):
        if fault_id in ids[:number]:
            raise SuiteError(f"{path.name} has fault {fault_id} twice")
    return faults


def list_planted(banks: Iterable[Bank]) -> list[PlantedMutant]:
    """Return the mutants of banks, with their phases."""
    return [(bank.contract.phase, mutant) for bank in banks for mutant in bank.mutants]


def format_page(faults: Sequence[Fault], mutants: Iterable[PlantedMutant]) -> str:
    """Return the page; raise `SuiteError` where the faults and the mutants' sources disagree."""
    found: dict[str, list[PlantedMutant]] = {fault.id: [] for fault in faults}
    for phase, mutant in mutants:
        if mutant.source and mutant.source not in found:
            raise SuiteError(f"mutant {phase}/{mutant.name} names fault {mutant.source}, which "
                             f"is not in {DATA.name}")
        if mutant.source:
            found[mutant.source].append((phase, mutant))
    for fault in faults:
        _check_fault(fault, bool(found[fault.id]))
    phases = sorted({fault.phase for fault in faults}, key=lambda name: (name == "engine", name))
    lines = [PAGE_HEADER, _format_count(faults)]
    for phase in phases:
        lines.append(f"\n## {phase}\n\n")
        lines += [_fault_line(fault, found[fault.id]) for fault in faults if fault.phase == phase]
    return "".join(lines)


def _check_fault(fault: Fault, planted: bool) -> None:
    if planted and fault.why_not:
        raise SuiteError(f"fault {fault.id} has a mutant: remove its why_not from {DATA.name}")
    if not planted and not fault.why_not:
        raise SuiteError(f"fault {fault.id} has no mutant: add one, or a why_not to {DATA.name}")
    if not planted and fault.stand_in:
        raise SuiteError(f"fault {fault.id} has no mutant: remove its stand_in from {DATA.name}")


def _format_count(faults: Sequence[Fault]) -> str:
    left_out = sum(fault.why_not is not None for fault in faults)
    odd = sum(fault.stand_in is not None for fault in faults)
    return (f"\nOf {len(faults)} faults {len(faults) - left_out} are planted, {odd} of them by a "
            f"stand-in, and {left_out} are not applicable.\n")


def _fault_line(fault: Fault, planted: Sequence[PlantedMutant]) -> str:
    if fault.why_not:
        text = f"  Not applicable: {fault.why_not}\n"
    else:
        text = f"  {fault.stand_in}\n" if fault.stand_in else ""
        text += "".join(map(_mutant_line, planted))
    return f"- **{fault.id}** [{fault.name}]({fault.link}): {fault.fault}\n{text}"


def _mutant_line(planted: PlantedMutant) -> str:
    phase, mutant = planted
    where = ", *device*" if mutant.device == "cuda" else ""
    killers = ", ".join(f"`{killer}`" for killer in mutant.killers)
    return f"  - planted as `{phase}/{mutant.name}`{where}, killed by {killers}\n"
