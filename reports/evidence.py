"""The results of one run, from which every file of a report is written."""

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

NOT_REQUESTED = "it was not requested"
"""The reason for a phase that `--phase` leaves out."""


@dataclass(frozen=True)
class SkippedCases:
    """Cases that this run skipped for one reason."""

    what: str
    """`12 cases: engine 4, p3 8`."""
    why: str
    command: str
    """The command that runs them, on a machine that can."""


@dataclass(frozen=True)
class UserModelRun:
    """The results on the user's own model file."""

    name: str
    """The file as typed."""
    facts: Mapping[str, str]
    """Path, size, shape and seconds, as printed."""
    falsifiers: tuple[Falsifier, ...]
    cases: tuple[Case, ...]
    verdicts: tuple[Verdict, ...]
    left_out: tuple[str, ...]
    """One sentence for each skipped part, with the reason."""

    @property
    def result(self) -> PhaseResult:
        """The verdict on the file."""
        return phase_status.judge_phase("model", self.verdicts, self.cases)


@dataclass(frozen=True)
class MutantResults:
    """The kill matrix, and why some mutants have no result."""

    matrix: KillMatrix
    inconclusive: Mapping[str, str] = field(default_factory=dict)
    """The reason by `phase/name`, such as a case that also fails without the mutant."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """The public report of a mutant's fault, by `phase/name`, if any."""


@dataclass(frozen=True)
class StoredBenchmark:
    """Times stored with the receipts."""

    figures: StepTimes | ProductTimes
    fresh: bool
    """Whether they are of this checkout's kernels."""


@dataclass(frozen=True)
class Evidence:
    """Everything that a report shows."""

    results: Sequence[PhaseResult]
    """Results of the judged phases, in order."""
    contracts: Mapping[str, Contract]
    verdicts: Sequence[Verdict]
    kills: MutantResults
    environment: Mapping[str, str]
    command: str
    """The command line."""
    made: str
    """The date and time, with the time zone."""
    subject: str = "in-tree"
    seconds: float = 0.0
    trouble: Sequence[str] = ()
    """Errors of the pytest processes."""
    output: str = ""
    """The output of pytest, shown with `trouble`."""
    not_run: Sequence[SkippedCases] = ()
    user_model: UserModelRun | None = None
    not_judged: Mapping[str, str] = field(default_factory=dict)
    """Built phases that were not judged, with the reason."""
    devices: Mapping[str, str] = field(default_factory=dict)
    """By phase: the devices and days of its receipts."""
    speeds: Sequence[StoredBenchmark] = ()
    """Times of the tree's own kernels; a candidate has none."""
    claims: Sequence[ClaimGroup] = ()
    """The contracts' claims, compared with this run and the receipts."""
    code: str = ""
    """The digest of the sources that decide a verdict."""

    @property
    def judged_results(self) -> list[PhaseResult]:
        """The results of the phases and of the user's own model."""
        return [*self.results, *([self.user_model.result] if self.user_model else [])]

    @property
    def exit_code(self) -> int:
        """1 if anything failed, else 2 if anything is UNMEASURABLE, else 0."""
        return phase_status.exit_code(self.judged_results)

    @property
    def every_verdict(self) -> list[Verdict]:
        """The phases' verdicts, then those on the user's own model."""
        return [*self.verdicts, *(self.user_model.verdicts if self.user_model else ())]

    def falsifier(self, verdict: Verdict) -> Falsifier | None:
        """Return the falsifier of a verdict, or None if no contract names it."""
        contract = self.contracts.get(verdict.phase)
        known = self.user_model.falsifiers if verdict.phase == "model" and self.user_model else \
            contract.falsifiers if contract else ()
        return next((f for f in known if f.id == verdict.falsifier), None)

