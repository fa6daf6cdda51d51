"""What one run left behind: the evidence from which every artefact is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from contracts.schema import Case, Contract, Falsifier
from falsifiers.gate import phase_status
from falsifiers.gate.benchmark_records import ProductTimes, StepTimes
from falsifiers.gate.phase_status import PhaseResult
from falsifiers.judging.matrix import KillMatrix
from falsifiers.judging.verdict import Verdict
from reports.claims import ClaimGroup

NOT_REQUESTED = "it was not asked for"
"""Why a phase was set aside when others were named."""


@dataclass(frozen=True)
class SkippedCases:
    """Cases that this run left out for one reason."""

    what: str
    """`12 cases: engine 4, p3 8`."""
    why: str
    command: str
    """What would run them, on a machine that can."""


@dataclass(frozen=True)
class UserModelRun:
    """What was judged on the user's own model file."""

    name: str
    """The file as it was given."""
    facts: Mapping[str, str]
    """Path, size, shape and seconds, as they are told."""
    falsifiers: tuple[Falsifier, ...]
    cases: tuple[Case, ...]
    verdicts: tuple[Verdict, ...]
    left_out: tuple[str, ...]
    """One sentence each: what was not looked at, and why."""

    @property
    def result(self) -> PhaseResult:
        """The gate's word on the file."""
        return phase_status.judge_phase("model", self.verdicts, self.cases)


@dataclass(frozen=True)
class MutantResults:
    """The kill matrix, and what could not be told about some mutants."""

    matrix: KillMatrix
    inconclusive: Mapping[str, str] = field(default_factory=dict)
    """Why nothing can be said, by `phase/name`: a right version that fails its case as well."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """The public report a mutant comes from, by `phase/name`, where there is one."""


@dataclass(frozen=True)
class StoredBenchmark:
    """Times kept beside the receipts."""

    figures: StepTimes | ProductTimes
    fresh: bool
    """Whether the kernels that were measured are those of this checkout."""


@dataclass(frozen=True)
class Evidence:
    """Everything a report tells."""

    results: Sequence[PhaseResult]
    """Of the phases that were judged, in order."""
    contracts: Mapping[str, Contract]
    verdicts: Sequence[Verdict]
    kills: MutantResults
    environment: Mapping[str, str]
    command: str
    """What was typed."""
    made: str
    """When, with the time zone."""
    subject: str = "in-tree"
    seconds: float = 0.0
    trouble: Sequence[str] = ()
    """What went wrong with a process as a whole."""
    output: str = ""
    """The end of what pytest printed, shown with trouble."""
    not_run: Sequence[SkippedCases] = ()
    user_model: UserModelRun | None = None
    not_judged: Mapping[str, str] = field(default_factory=dict)
    """Phases that are built and were not judged, with the reason."""
    devices: Mapping[str, str] = field(default_factory=dict)
    """By phase, the devices that its receipts were measured on, and when."""
    speeds: Sequence[StoredBenchmark] = ()
    """Times of the tree's own kernels; a candidate has none."""
    claims: Sequence[ClaimGroup] = ()
    """What the contracts claim, against what this run and the receipts show."""
    code: str = ""
    """The digest of the sources that decide a verdict."""

    @property
    def judged_results(self) -> list[PhaseResult]:
        """The results that count: the phases', and that on the user's own model."""
        return [*self.results, *([self.user_model.result] if self.user_model else [])]

    @property
    def exit_code(self) -> int:
        """1 if anything failed, else 2 if anything cannot be told, else 0."""
        return phase_status.exit_code(self.judged_results)

    @property
    def every_verdict(self) -> list[Verdict]:
        """The phases' verdicts, then those on the user's own model."""
        return [*self.verdicts, *(self.user_model.verdicts if self.user_model else ())]

    def falsifier(self, verdict: Verdict) -> Falsifier | None:
        """Return the attack that a verdict is about, or None when no contract names it."""
        contract = self.contracts.get(verdict.phase)
        known = self.user_model.falsifiers if verdict.phase == "model" and self.user_model else \
            contract.falsifiers if contract else ()
        return next((f for f in known if f.id == verdict.falsifier), None)

