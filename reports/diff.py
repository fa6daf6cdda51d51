"""The differences between two reports, as under 60 lines of Markdown for a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from contracts.schema import Contract
from falsifiers.gate.phase_status import PhaseResult
from falsifiers.judging.errors import SuiteError
from falsifiers.judging.verdict import RED, Verdict
from reports.markdown import code_span, escape_text
from reports.run_metadata import SavedRun, contract_digest
from reports.views import MARKS

MAX_GROUPS, MAX_NAMES = 4, 5
"""Newly broken falsifiers printed with details, and names in any other list."""
MAX_CHARS = 600
"""Largest length of a sentence, name or command from an untrusted file."""


@dataclass(frozen=True)
class Difference:
    """Two runs, and their cases by how the outcome changed."""

    base: SavedRun
    now: SavedRun
    broken: Sequence[Verdict]
    """Red now, and not red in the base."""
    unproven: Sequence[Verdict]
    """Passed in the base, and now neither passed nor red."""
    no_longer_run: Sequence[str]
    """Cases with a verdict only in the base."""
    proven: Sequence[Verdict]
    """Passed now, and not in the base."""
    still_broken: Sequence[Verdict]
    """Red in both."""
    survivors: Sequence[str]
    """Mutants that survive now and did not in the base."""
    warnings: Sequence[str] = field(default=())

    @property
    def exit_code(self) -> int:
        """1 if anything is newly broken, else 2 if less is proven than in the base, else 0."""
        if self.broken or self.survivors:
            return 1
        return 2 if self.unproven or self.no_longer_run else 0


def compare_runs(base: SavedRun, now: SavedRun, *, across_contracts: bool = False,
                 across_devices: bool = False) -> Difference:
    """Compare two runs; raise `SuiteError` for different contracts or devices, unless allowed."""
    warnings = []
    for why, allowed, option in ((_contract_mismatch(base, now), across_contracts, "contracts"),
                              (_device_mismatch(base, now), across_devices, "devices")):
        if why and not allowed:
            raise SuiteError(f"{why}; --across-{option} compares them anyway")
        if why:
            warnings.append(why)
    before, after = dict(base.verdicts), dict(now.verdicts)
    if base.run.model != now.run.model:
        warnings.append("the runs judged different model files, whose cases are not compared")
        before, after = ({name: v for name, v in known.items() if v.phase != "model"}
                         for known in (before, after))
    red = {name for name, verdict in before.items() if verdict.outcome in RED}
    good = {name for name, verdict in before.items() if verdict.outcome == "passed"}
    return Difference(
        base, now, warnings=warnings,
        broken=[v for name, v in after.items() if v.outcome in RED and name not in red],
        still_broken=[v for name, v in after.items() if v.outcome in RED and name in red],
        unproven=[v for name, v in after.items()
                  if v.outcome in ("declined", "unmeasurable") and name in good],
        no_longer_run=[name for name in before if name not in after],
        proven=[v for name, v in after.items() if v.outcome == "passed" and name not in good],
        survivors=sorted(set(now.matrix.survivors) - set(base.matrix.survivors)))


def _contract_mismatch(base: SavedRun, now: SavedRun) -> str:
    differing = [phase for phase, digest in base.run.contracts.items()
                 if now.run.contracts.get(phase, digest) != digest]
    return f"{base.name} and {now.name} were judged by different contracts of " \
           f"{', '.join(differing)}" if differing else ""


def _device_mismatch(base: SavedRun, now: SavedRun) -> str:
    places = [" + ".join(saved.run.tiers) + (f" ({saved.run.gpu})" if saved.run.gpu else "")
              for saved in (base, now)]
    return f"{base.name} and {now.name} were run on different devices: {places[0] or 'none'} and " \
           f"{places[1] or 'none'}" if places[0] != places[1] else ""


def format_diff(diff: Difference, contracts: Mapping[str, Contract]) -> str:
    """Return a difference as Markdown; diagnoses come from contracts that equal the run's."""
    return "\n".join(_diff_lines(diff, contracts)) + "\n"


def _diff_lines(diff: Difference, contracts: Mapping[str, Contract]) -> Iterator[str]:
    counts = [(len(diff.broken), "newly broken"), (len(diff.unproven), "no longer proven"),
              (len(diff.no_longer_run), "no longer run"), (len(diff.proven), "newly proven")]
    words = ", ".join(f"{count:,} {word}" for count, word in counts if count)
    mark = MARKS[{0: "PASS", 1: "FAIL", 2: "UNMEASURABLE"}[diff.exit_code]]
    yield f"## {mark} Row parity since the base: {words or 'no case changed'}"
    yield ""
    yield f"Now {_describe_run(diff.now)}. Base {_describe_run(diff.base)}."
    yield from (f"\nNote: {escape_text(_truncate(warning))}." for warning in diff.warnings)
    yield from _changed_phases(diff)
    yield from _broken_lines(diff.broken, contracts, diff.now)
    yield from _list_names("No longer proven", [v.case for v in diff.unproven],
                       {v.case: f"{v.outcome}: {v.reason}" for v in diff.unproven})
    yield from _list_names("No longer run", diff.no_longer_run)
    yield from _list_names("Newly proven", [v.case for v in diff.proven])
    yield from _list_names("Mutants that survive now and did not", diff.survivors)
    if diff.still_broken:
        yield from _list_names("Broken before and still", [v.case for v in diff.still_broken])


def _describe_run(saved: SavedRun) -> str:
    at = saved.run.environment.get("checkout", "")
    return f"{_code_span(saved.run.subject)}, {escape_text(_truncate(saved.run.made))}" \
        + (f", {escape_text(_truncate(at))}" if at else "")


def _changed_phases(diff: Difference) -> Iterator[str]:
    """Yield a table of the phases whose verdict, counts or device proof changed."""
    before = {result.phase: result for result in diff.base.run.results}
    after = {result.phase: result for result in diff.now.run.results}
    rows = [(phase, _phase_status(before.get(phase)), _phase_status(after.get(phase)))
            for phase in dict.fromkeys([*before, *after])]
    rows = [row for row in rows if row[1] != row[2]]
    if rows:
        yield from ("", "| phase | base | now |", "|---|---|---|")
        yield from (f"| {escape_text(phase)} | {old} | {new} |" for phase, old, new in rows)


def _phase_status(result: PhaseResult | None) -> str:
    if result is None:
        return "not judged"
    return f"{MARKS[result.verdict]} {result.verdict}, {result.passed} of {result.cases} passed, " \
           f"device proof {result.device_proof}"


def _broken_lines(broken: Sequence[Verdict], contracts: Mapping[str, Contract],
                  now: SavedRun) -> Iterator[str]:
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in broken:
        groups.setdefault((verdict.phase, verdict.falsifier), []).append(verdict)
    for (phase, falsifier), found in list(groups.items())[:MAX_GROUPS]:
        first = found[0]
        yield ""
        sentence = first.finding.sentence if first.finding else f"{first.outcome}: {first.reason}"
        yield (f"**Newly broken: {escape_text(phase)} {escape_text(falsifier)}**, "
               f"{_count_cases(len(found))}: {_code_span(sentence)}")
        if likely := _diagnosis(first, contracts, now):
            yield f"Likely: {escape_text(likely)}"
        yield f"Run it: {_code_span(first.repro)}"
    if len(groups) > MAX_GROUPS:
        rest = [name for _, name in list(groups)[MAX_GROUPS:]]
        yield from ("", f"And newly broken: {_first_names(rest)}")


def _diagnosis(verdict: Verdict, contracts: Mapping[str, Contract], now: SavedRun) -> str:
    contract = contracts.get(verdict.phase)
    if contract is None or contract_digest(contract) != now.run.contracts.get(verdict.phase):
        return ""
    return next((f.if_fails for f in contract.falsifiers if f.id == verdict.falsifier), "")


def _list_names(what: str, names: Sequence[str],
                why: Mapping[str, str] | None = None) -> Iterator[str]:
    if names:
        reason = f" ({escape_text(_truncate(why[names[0]]))})" if why else ""
        yield from ("", f"{what}, {len(names):,}: {_first_names(names)}{reason}")


def _first_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else ""
    return ", ".join(_code_span(name) for name in names[:MAX_NAMES]) + more


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}…"


def _code_span(text: str) -> str:
    return code_span(_truncate(text))


def _count_cases(count: int) -> str:
    return f"{count:,} case" if count == 1 else f"{count:,} cases"
