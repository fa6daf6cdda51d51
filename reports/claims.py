"""The contracts' claims, compared with what is shown for this code."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from contracts.schema import Case, Contract, Tier
from falsifiers.gate import receipts
from falsifiers.gate.tiers import TIERS
from falsifiers.judging.verdict import RED, Verdict

JUDGING_PACKAGES = ("contracts", "engine", "falsifiers", "phases")
"""The packages that decide a verdict."""
MODE_KEYS = ("op", "kernel", "arithmetic", "endpoint", "path")
WIDTH_KEYS = ("m", "c", "width")
"""The keys by which cases name their numbers of rows."""
WEIGHT_TYPES = ("Q4_K", "Q5_K", "Q6_K", "Q8_0", "F32", "F16", "BF16")


@dataclass(frozen=True)
class Proof:
    """The result of one case, and whether it is for this code."""

    outcome: str
    fresh: bool
    """Whether the result is for this code."""
    by: str
    """The source: `this run`, or a receipt's device and day."""


@dataclass(frozen=True)
class Claim:
    """What is claimed on one device, and what is shown."""

    device: Tier
    widths: tuple[int, ...]
    """Every m that the cases name."""
    cases: int
    shown: int
    """Cases that passed on this code."""
    red: int
    """Cases that failed on this code, or ended in an error."""
    declined: int
    """Cases that a candidate declined."""
    stale: int
    """Cases that only older code passed."""
    unseen: tuple[int, ...]
    """Every m without a shown case."""
    by: tuple[str, ...]

    @property
    def word(self) -> str:
        """The status in one word or two."""
        if self.red:
            return "broken"
        if self.shown == self.cases:
            return "shown"
        if self.declined == self.cases:
            return "declined"
        return "in part" if self.shown else "stale" if self.stale else "not shown"

    @property
    def summary(self) -> str:
        """A summary such as `in part, 3 of 8, m 1-3; not m 16`."""
        words = f"{self.word}, {self.count} of {self.cases}"
        rest = f"{'; not ' if self.seen else ', '}m {self.missing}" if self.unseen else ""
        return words + (f", m {self.seen}" if self.seen else "") + rest

    @property
    def count(self) -> int:
        """The number of cases with that status."""
        return self.red or self.shown or self.stale or self.declined * (self.word == "declined")

    @property
    def seen(self) -> str:
        """Every m with a shown case, as ranges."""
        return format_ranges(set(self.widths) - set(self.unseen))

    @property
    def missing(self) -> str:
        """Every m without a shown case, as ranges."""
        return format_ranges(self.unseen)

    @property
    def css(self) -> str:
        """The CSS class of its status."""
        return {"broken": "failed", "shown": "passed", "in part": "budget"}.get(self.word, "away")


@dataclass(frozen=True)
class ClaimGroup:
    """What a phase claims for one mode and one type of weights, by device."""

    phase: str
    mode: str
    """The op, kernel or arithmetic; empty if the cases name none."""
    type: str
    """The type of the weights, or the name of a test model with several types, or empty."""
    claims: Mapping[Tier, Claim]
    """Devices without a claim are absent."""


def collect_proofs(contracts: Mapping[str, Contract], verdicts: Iterable[Verdict], root: Path,
                   fresh: bool = True, by: str = "this run",
                   tree: bool = True) -> dict[str, Proof]:
    """Return the strongest result of each case: from `verdicts` and, with `tree`, receipts."""
    proofs: dict[str, Proof] = {}
    for contract in contracts.values() if tree else ():
        found = receipts.load_receipts(contract.phase, root)
        now = receipts.phase_digest(contract, root) if found else ""
        for receipt in found:
            source = f"{receipt.device}, {receipt.measured}"
            for verdict in receipt.verdicts:
                _keep_strongest(proofs, verdict,
                                Proof(verdict.outcome, receipt.digest == now, source))
    for verdict in verdicts:
        _keep_strongest(proofs, verdict, Proof(verdict.outcome, fresh, by))
    return proofs


def _keep_strongest(proofs: dict[str, Proof], verdict: Verdict, proof: Proof) -> None:
    """Store the strongest result of a case: red on this code, passed on it, then older code."""
    old = proofs.get(verdict.case)
    if old is None or _proof_rank(proof) > _proof_rank(old):
        proofs[verdict.case] = proof


def _proof_rank(proof: Proof) -> int:
    if proof.outcome not in (*RED, "passed"):
        return 0
    return 2 * proof.fresh + (proof.outcome in RED) + 1 if proof.fresh else \
        1 + (proof.outcome == "passed")


def group_claims(
    contracts: Mapping[str, Contract], proofs: Mapping[str, Proof]
) -> list[ClaimGroup]:
    """Return every claim of the contracts, in their order."""
    groups: dict[tuple[str, str, str], dict[Tier, list[Case]]] = {}
    for contract in contracts.values():
        for case in contract.expand():
            groups.setdefault((case.phase, mode_of(case), type_of(case)), {}).setdefault(
                case.tier, []).append(case)
    return [
        ClaimGroup(*key, {tier: _make_claim(tier, cases, proofs) for tier, cases in found.items()})
        for key, found in groups.items()
    ]


def _make_claim(device: Tier, cases: Iterable[Case], proofs: Mapping[str, Proof]) -> Claim:
    counts, widths, seen, by = Counter[str](), set[int](), set[int](), dict[str, None]()
    for case in cases:
        mine = set(widths_of(case))
        widths |= mine
        counts["all"] += 1
        proof = proofs.get(case.id)
        if proof is None:
            continue
        by[proof.by if proof.fresh else f"{proof.by}, of older code"] = None
        if not proof.fresh:
            counts["stale"] += proof.outcome == "passed"
        elif proof.outcome == "passed":
            counts["shown"] += 1
            seen |= mine
        else:
            counts["red"] += proof.outcome in RED
            counts["declined"] += proof.outcome == "declined"
    return Claim(device, tuple(sorted(widths)), counts["all"], counts["shown"], counts["red"],
                 counts["declined"], counts["stale"], tuple(sorted(widths - seen)), tuple(by))


def mode_of(case: Case) -> str:
    """Return a case's op, kernel, arithmetic, endpoint or path, or an empty text."""
    return " ".join(str(case.given[key]) for key in MODE_KEYS if key in case.given)


def type_of(case: Case) -> str:
    """Return the type of a case's weights, or its model's name, or an empty text."""
    kind = case.given.get("kind")
    return str(kind) if kind in WEIGHT_TYPES else str(case.given.get("model", ""))


def widths_of(case: Case) -> Iterator[int]:
    """Yield the numbers of rows that a case names."""
    for key in WIDTH_KEYS:
        value = case.given.get(key)
        yield from (n for n in (value if isinstance(value, list) else [value])
                    if isinstance(n, int) and not isinstance(n, bool))


def format_ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ranges, `1-17, 24, 25`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run))
                     for run in runs)


def code_digest(root: Path) -> str:
    """Return the digest of every source that decides a verdict."""
    total = hashlib.sha256()
    for path in sorted(path for package in JUDGING_PACKAGES for path in (root / package).rglob("*")
                       if path.suffix in (".py", ".yaml", ".cu", ".cuh")):
        total.update(f"{path.relative_to(root).as_posix()}\n".encode() + path.read_bytes())
    return total.hexdigest()


HEADER = ("phase", "mode", "weights", *TIERS)


def table_row(line: ClaimGroup) -> tuple[str, ...]:
    """Return a group as a row of a table with the columns `HEADER`."""
    return (line.phase, line.mode or "-", line.type or "-",
            *(line.claims[tier].summary if tier in line.claims else "-" for tier in TIERS))


def count_by_tier(lines: Iterable[ClaimGroup]) -> dict[Tier, tuple[int, int, int]]:
    """Return the numbers of claimed, shown and broken cases by device."""
    totals: dict[Tier, tuple[int, int, int]] = {}
    for claim in (claim for line in lines for claim in line.claims.values()):
        cases, shown, red = totals.get(claim.device, (0, 0, 0))
        totals[claim.device] = (cases + claim.cases, shown + claim.shown, red + claim.red)
    return {tier: totals[tier] for tier in TIERS if tier in totals}
