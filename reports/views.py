"""Arranges evidence as the page shows it, in page order."""

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
"""Titles of phases without a contract."""
MARKS = {"PASS": "✓", "FAIL": "✗", "UNMEASURABLE": "?", "BLOCKED": "■", "not built": "·",
         "not judged": "·"}
OUTCOMES = ("passed", "failed", "error", "unmeasurable", "declined")


@dataclass(frozen=True)
class PhaseSummary:
    """One phase in the table of phases."""

    phase: str
    title: str
    word: str
    """The verdict, `not judged` or `not built`."""
    mark: str
    why: tuple[str, ...]
    """The reasons for a verdict other than PASS, or for none."""
    result: PhaseResult | None
    """None if the phase was not judged."""
    contract: Contract | None

    @property
    def counts(self) -> str:
        """The outcomes in words, `30 passed, 2 failed`."""
        return format_counts(self.result) if self.result else ""

    @property
    def proof(self) -> str:
        """The device proof, in words."""
        return phase_status.describe_proof(self.result, self.contract) if self.result else ""


@dataclass(frozen=True)
class Failure:
    """One failed case."""

    verdict: Verdict
    anchor: str

    @property
    def sentence(self) -> str:
        """The message of the finding, or the outcome and its reason."""
        finding = self.verdict.finding
        return finding.sentence if finding else f"{self.verdict.outcome}: {self.verdict.reason}"


@dataclass(frozen=True)
class FailureGroup:
    """The failed cases of one falsifier, which share a diagnosis."""

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
    """The worst case of one op in a phase."""

    worst: Worst
    case: str
    cases: int
    """How many cases compared this op."""


@dataclass(frozen=True)
class Section:
    """Everything on one phase."""

    rung: PhaseSummary
    attacks: tuple[Attack, ...]
    worst: tuple[WorstCase, ...]
    engagement: tuple[tuple[str, str, str], ...]
    """Falsifier, measured quantity, and its values over the cases."""
    near_ties: tuple[tuple[str, int], ...]
    kills: KillView
    budget: Budget | None
    """The budget of the truth rule, if it is not bitwise."""
    rungs: tuple[str, ...]
    """The rungs at which cases failed."""


def format_counts(result: PhaseResult) -> str:
    """Return a phase's outcomes in words."""
    counts = [f"{n} {word}" for word in OUTCOMES if (n := getattr(result, word))]
    return ", ".join(counts) or "no case ran"


def summarise_phases(evidence: Evidence) -> list[PhaseSummary]:
    """Return a summary of every phase, built or not, and the user's model last."""
    results = {result.phase: result for result in evidence.judged_results}
    rungs = []
    for phase in ("engine", *phase_status.PHASES, *(["model"] if evidence.user_model else [])):
        result, contract = results.get(phase), evidence.contracts.get(phase)
        word = result.verdict if result else \
            "not judged" if phase in evidence.not_judged else "not built"
        why = result.why if result else tuple(filter(None, [evidence.not_judged.get(phase)]))
        title = contract.title if contract else TITLES.get(phase, "your own model file")
        rungs.append(PhaseSummary(phase, title, word, MARKS[word], why, result, contract))
    return rungs


def group_failures(evidence: Evidence) -> list[FailureGroup]:
    """Return every case that failed or ended in an error by falsifier, failures first."""
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
    verdicts = [v for v in evidence.verdicts if v.phase == rung.phase]
    truth = contract.parity.truth
    if any(worst.rung == "budget" for v in verdicts for worst in v.worst):
        truth = contract.parity.own or truth  # a candidate in another arithmetic
    return Section(
        rung, group_by_falsifier(contract.falsifiers, contract.expand(), verdicts),
        worst_by_op(verdicts), measured_work(verdicts), near_ties_of(verdicts),
        kill_view(evidence.kills, rung.phase), truth if isinstance(truth, Budget) else None,
        tuple(dict.fromkeys(v.finding.rung for v in verdicts if v.finding)))


def group_by_falsifier(falsifiers: Sequence[Falsifier], cases: Iterable[Case],
                       verdicts: Sequence[Verdict]) -> tuple[Attack, ...]:
    """Return each falsifier with its judged cases."""
    by_id = {verdict.case: verdict for verdict in verdicts}
    ran = [case for case in cases if case.id in by_id]
    out = []
    for falsifier in falsifiers:
        judged = [case for case in ran if case.falsifier == falsifier.id]
        found = [by_id[case.id] for case in judged]
        out.append(Attack(
            falsifier, arrange_cases(judged, by_id), sum(v.outcome == "passed" for v in found),
            len(found), sum(v.seconds for v in found),
            tuple((cell_of(case, by_id[case.id]), by_id[case.id]) for case in judged)))
    return tuple(out)


def severity_key(worst: Worst) -> tuple[float, float, int]:
    """Return a sort key that is largest for the worst comparison of an op."""
    return (1 - (1 if worst.cosine is None else worst.cosine), worst.norm_error or 0.0, worst.ulps)


def worst_by_op(verdicts: Sequence[Verdict]) -> tuple[WorstCase, ...]:
    """Return the worst case of every compared op."""
    seen: dict[str, list[tuple[Worst, str]]] = {}
    for verdict in verdicts:
        for worst in verdict.worst:
            seen.setdefault(op_family(worst.op), []).append((worst, verdict.case))
    rows = []
    for op, found in seen.items():
        worst, case = max(found, key=lambda pair: severity_key(pair[0]))
        total = sum(each.compared for each, _ in found)
        rows.append(WorstCase(worst.model_copy(update={"op": op, "compared": total}), case,
                              len({name for _, name in found})))
    return tuple(rows)


def op_family(op: str) -> str:
    """Return an op without its location: `conv` for `slot 1, 3.conv`, `exp` for `exp(nan)`."""
    return re.sub(r"^(slot \d+, )?(\d+\.)?| \d+$|\(.*$", "", op) or op


def measured_work(verdicts: Sequence[Verdict]) -> tuple[tuple[str, str, str], ...]:
    """Return the measurements of the work that ran, with their values over the cases."""
    found: dict[tuple[str, str], list[Any]] = {}
    for verdict in verdicts:
        for key, value in verdict.evidence.items():
            if key != "near_ties":
                found.setdefault((verdict.falsifier, key), []).append(value)
    return tuple((falsifier, key.replace("_", " "), summarise_values(values))
                 for (falsifier, key), values in found.items())


def summarise_values(values: Sequence[Any]) -> str:
    """Return numbers as a range, and other values as a short list."""
    values = [", ".join(f"{key}: {n:,}" if isinstance(n, int) else f"{key}: {n}"
                        for key, n in v.items()) if isinstance(v, dict) else v for v in values]
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        low, high = min(values), max(values)
        return f"{low:,}" if low == high else f"{low:,} to {high:,}"
    seen = list(dict.fromkeys(str(v) for v in values))
    between = "; " if any(", " in text for text in seen) else ", "
    return between.join(seen[:6]) + (f" and {len(seen) - 6} more" if len(seen) > 6 else "")


def near_ties_of(verdicts: Sequence[Verdict]) -> tuple[tuple[str, int], ...]:
    """Return the cases with an argmax that flipped at a near-tie, and the number of flips."""
    return tuple((v.case, int(v.evidence["near_ties"])) for v in verdicts
                 if v.evidence.get("near_ties"))
