"""From evidence to what the page shows, in the order in which it is shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.schema import Budget, Case, Contract, Falsifier
from falsifiers.gate import phase_status
from falsifiers.gate.phase_status import PhaseResult
from falsifiers.judging.verdict import RED, Verdict, Worst
from reports.evidence import Evidence
from reports.grid import Cell, Grid, anchor_of, arrange_cases, cell_of
from reports.kill_view import KillView, kill_view

TITLES = {
    "engine": "the oracle, forward_single", "p0": "scheduler over seven methods",
    "p1": "looped m-slot step", "p2": "hybrid engine and serving", "p3": "row-twin GEMV",
    "p4": "batched matmul step", "p5": "batched recurrence", "p6": "batched attention",
    "p7": "prefix reuse", "p8": "decode graph"}
"""What a phase is about, until it has a contract that says so."""
MARKS = {"PASS": "✓", "FAIL": "✗", "UNMEASURABLE": "?", "BLOCKED": "■", "not built": "·",
         "not judged": "·"}
OUTCOMES = ("passed", "failed", "error", "unmeasurable", "declined")


@dataclass(frozen=True)
class PhaseSummary:
    """One line of the ladder."""

    phase: str
    title: str
    word: str
    """The verdict, or `not built`."""
    mark: str
    why: tuple[str, ...]
    """Why the verdict is not PASS, or why there is none."""
    result: PhaseResult | None
    """None when the phase was not judged."""
    contract: Contract | None

    @property
    def counts(self) -> str:
        """The outcomes in words, `30 passed, 2 failed`."""
        return format_counts(self.result) if self.result else ""

    @property
    def proof(self) -> str:
        """What is known of a device, in words."""
        return phase_status.describe_proof(self.result, self.contract) if self.result else ""


@dataclass(frozen=True)
class Failure:
    """One bad case with what a reader needs."""

    verdict: Verdict
    anchor: str

    @property
    def sentence(self) -> str:
        """The message in the one template, or why there is none."""
        finding = self.verdict.finding
        return finding.sentence if finding else f"{self.verdict.outcome}: {self.verdict.reason}"


@dataclass(frozen=True)
class FailureGroup:
    """The bad cases of one falsifier, which share a diagnosis."""

    phase: str
    name: str
    falsifier: Falsifier | None
    failures: tuple[Failure, ...]


@dataclass(frozen=True)
class Attack:
    """One falsifier of a phase and its cases."""

    falsifier: Falsifier
    grid: Grid
    passed: int
    total: int
    seconds: float
    listing: tuple[tuple[Cell, Verdict], ...]
    """The cell and verdict of every case."""


@dataclass(frozen=True)
class WorstCase:
    """The worst that one op showed in a phase, and where."""

    worst: Worst
    case: str
    cases: int
    """How many cases compared this op."""


@dataclass(frozen=True)
class Section:
    """All about one phase."""

    rung: PhaseSummary
    attacks: tuple[Attack, ...]
    worst: tuple[WorstCase, ...]
    engagement: tuple[tuple[str, str, str], ...]
    """Falsifier, what was measured, and its values over the cases."""
    near_ties: tuple[tuple[str, int], ...]
    kills: KillView
    budget: Budget | None
    """The budget that some comparison of this run was held to, or would be."""
    rungs: tuple[str, ...]
    """The rungs at which cases failed."""


def format_counts(result: PhaseResult) -> str:
    """Return a phase's outcomes in words."""
    told = [f"{n} {word}" for word in OUTCOMES if (n := getattr(result, word))]
    return ", ".join(told) or "no case ran"


def summarise_phases(evidence: Evidence) -> list[PhaseSummary]:
    """Return a line for every phase, those not built included, and the user's model last."""
    told = {result.phase: result for result in evidence.judged_results}
    rungs = []
    for phase in ("engine", *phase_status.PHASES, *(["model"] if evidence.user_model else [])):
        result, contract = told.get(phase), evidence.contracts.get(phase)
        word = result.verdict if result else \
            "not judged" if phase in evidence.not_judged else "not built"
        why = result.why if result else tuple(filter(None, [evidence.not_judged.get(phase)]))
        title = contract.title if contract else TITLES.get(phase, "your own model file")
        rungs.append(PhaseSummary(phase, title, word, MARKS[word], why, result, contract))
    return rungs


def group_failures(evidence: Evidence) -> list[FailureGroup]:
    """Return every case that failed or ended in an error, by falsifier, failed ones first."""
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for outcome in RED:
        for verdict in evidence.every_verdict:
            if verdict.outcome == outcome:
                groups.setdefault((verdict.phase, verdict.falsifier), []).append(verdict)
    return [FailureGroup(phase, name, evidence.falsifier(found[0]), tuple(
        Failure(verdict, anchor_of(verdict.case)) for verdict in found))
        for (phase, name), found in groups.items()]


def sections(evidence: Evidence) -> list[Section]:
    """Return a section for every phase that was judged."""
    return [_make_section(evidence, rung, rung.contract) for rung in summarise_phases(evidence)
            if rung.contract is not None and rung.result is not None]


def _make_section(evidence: Evidence, rung: PhaseSummary, contract: Contract) -> Section:
    mine = [v for v in evidence.verdicts if v.phase == rung.phase]
    truth = contract.parity.truth
    if any(worst.rung == "budget" for v in mine for worst in v.worst):
        truth = contract.parity.own or truth  # of a candidate in an arithmetic of its own
    return Section(
        rung,
        group_by_falsifier(contract.falsifiers, contract.expand(), mine),
        worst_by_op(mine),
        measured_work(mine),
        near_ties_of(mine),
        kill_view(evidence.kills, rung.phase),
        truth if isinstance(truth, Budget) else None,
        tuple(dict.fromkeys(v.finding.rung for v in mine if v.finding)),
    )


def group_by_falsifier(falsifiers: Sequence[Falsifier], cases: Iterable[Case],
            verdicts: Sequence[Verdict]) -> tuple[Attack, ...]:
    """Return each falsifier with those of its cases that were judged."""
    by_id = {verdict.case: verdict for verdict in verdicts}
    ran = [case for case in cases if case.id in by_id]
    out = []
    for falsifier in falsifiers:
        mine = [case for case in ran if case.falsifier == falsifier.id]
        found = [by_id[case.id] for case in mine]
        out.append(
            Attack(
                falsifier,
                arrange_cases(mine, by_id),
                sum(v.outcome == "passed" for v in found),
                len(found),
                sum(v.seconds for v in found),
                tuple((cell_of(case, by_id[case.id]), by_id[case.id]) for case in mine),
            )
        )
    return tuple(out)


def severity_key(worst: Worst) -> tuple[float, float, int]:
    """Return a key by which the worst of several comparisons of one op is the largest."""
    return (1 - (1 if worst.cosine is None else worst.cosine), worst.norm_error or 0.0, worst.ulps)


def worst_by_op(verdicts: Sequence[Verdict]) -> tuple[WorstCase, ...]:
    """Return the worst case of every op that was compared."""
    seen: dict[str, list[tuple[Worst, str]]] = {}
    for verdict in verdicts:
        for worst in verdict.worst:
            seen.setdefault(op_family(worst.op), []).append((worst, verdict.case))
    rows = []
    for op, found in seen.items():
        worst, case = max(found, key=lambda pair: severity_key(pair[0]))
        total = sum(one.compared for one, _ in found)
        rows.append(WorstCase(worst.model_copy(update={"op": op, "compared": total}), case,
                             len({name for _, name in found})))
    return tuple(rows)


def op_family(op: str) -> str:
    """Return an op without its place: `slot 1, 3.conv` is told as `conv`, `exp(nan)` as `exp`."""
    return re.sub(r"^(slot \d+, )?(\d+\.)?| \d+$|\(.*$", "", op) or op


def measured_work(verdicts: Sequence[Verdict]) -> tuple[tuple[str, str, str], ...]:
    """Return what was measured of the work really done, its values gathered over the cases."""
    found: dict[tuple[str, str], list[Any]] = {}
    for verdict in verdicts:
        for key, value in verdict.evidence.items():
            if key != "near_ties":
                found.setdefault((verdict.falsifier, key), []).append(value)
    return tuple((falsifier, key.replace("_", " "), summarise_values(values))
                 for (falsifier, key), values in found.items())


def summarise_values(values: Sequence[Any]) -> str:
    """Return numbers as their range, and other values by name, in a few words."""
    values = [", ".join(f"{key}: {one:,}" if isinstance(one, int) else f"{key}: {one}"
                        for key, one in v.items()) if isinstance(v, dict) else v for v in values]
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        low, high = min(values), max(values)
        return f"{low:,}" if low == high else f"{low:,} to {high:,}"
    seen = list(dict.fromkeys(str(v) for v in values))
    between = "; " if any(", " in text for text in seen) else ", "
    return between.join(seen[:6]) + (f" and {len(seen) - 6} more" if len(seen) > 6 else "")


def near_ties_of(verdicts: Sequence[Verdict]) -> tuple[tuple[str, int], ...]:
    """Return the cases in which an argmax flipped at a near-tie, and how often."""
    return tuple((v.case, int(v.evidence["near_ties"])) for v in verdicts
                 if v.evidence.get("near_ties"))
