"""Collects the verdicts of a pytest run, prints the summary and sets the exit status.

pytest exits with 0 if every test is skipped. The reporter sets exit status 6, NOT PROVEN, for a
run without a proof.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import pytest

from contracts.schema import Budget, Contract
from falsifiers.gate import phase_status
from falsifiers.gate.phase_status import PhaseResult
from falsifiers.gate.tiers import TierSelection
from falsifiers.judging.errors import SuiteError
from falsifiers.judging.verdict import Verdict

NOT_PROVEN = 6
_NAMED = re.compile(r"\b(engine|phase[0-8])\b")


class VerdictReporter:
    """Collects the verdicts of one run, in this process or from its workers."""

    def __init__(
        self,
        config: pytest.Config,
        contracts: Mapping[str, Contract],
        tiers: TierSelection,
        path: Path | None,
    ) -> None:
        self.config, self.contracts, self.tiers = config, contracts, tiers
        self.verdicts: list[Verdict] = []
        self.other_failures = 0
        self.results: list[PhaseResult] = []
        self._file: TextIO | None = None
        if path is not None:
            try:
                self._file = path.open("w", encoding="utf-8")
            except OSError as error:
                raise pytest.UsageError(f"--verdicts {path}: {error.strerror}") from None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Store the verdict of a report and write it to the file at once."""
        line = getattr(report, "verdict", None)
        if line is None:
            self.other_failures += report.failed
            return
        self.verdicts.append(Verdict.model_validate_json(line))
        if self._file is not None:
            self._file.write(line + "\n")
            self._file.flush()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Derive the results of the phases that ran, and set the exit status."""
        if self._file is not None:
            self._file.close()
        if self.config.getoption("collectonly") or exitstatus not in (0, 1, 5):
            return
        named = set(_NAMED.findall(_without_negations(self.config.getoption("markexpr") or "")))
        phases = {name.replace("phase", "p") for name in named} | {v.phase for v in self.verdicts}
        self.results = [phase_status.judge_phase(phase, self.verdicts) for phase in sorted(phases)]
        if self.other_failures or any(r.verdict == "FAIL" for r in self.results):
            return
        if any(r.verdict != "PASS" for r in self.results):
            session.exitstatus = NOT_PROVEN

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print a line for each phase, the tiers that did not run and the budgets."""
        if not self.results:
            return
        terminalreporter.section("parity")
        for line in self.lines():
            terminalreporter.write_line(line)

    def lines(self) -> list[str]:
        """Return the summary's lines."""
        out = []
        for result in self.results:
            word = "NOT PROVEN" if result.verdict == "UNMEASURABLE" else result.verdict
            out.append(f"{result.phase}: {word}, {result.passed} of {result.cases} cases passed"
                       + "".join(f"; {why}" for why in result.why))
            contract = self.contracts.get(result.phase)
            out += self._rules_and_tiers(contract) if contract else []
        return out

    def _rules_and_tiers(self, contract: Contract) -> list[str]:
        cases = [c for c in contract.expand()
                 if c.quick or self.config.getoption("thorough")]
        out = []
        for tier, why in self.tiers.left_out.items():
            count = sum(case.tier == tier for case in cases)
            if count and tier not in self.tiers.tiers_for(contract):
                out.append(f"  not run: {count} of tier {tier} ({why})")
        return out + [f"  {line}" for line in format_rules(contract)]


def format_rules(contract: Contract) -> list[str]:
    """Return the parity rules, each budget with its reason and the measured floor."""
    parity = contract.parity
    lines = [f"twin: {parity.twin}", *_format_rule("truth", parity.truth)]
    if parity.own is not None:
        lines += _format_rule("truth of a candidate with its own arithmetic", parity.own)
    for kind, budget in parity.kv.items():
        lines += _format_rule(f"keys and values in {kind} against f32", budget)
    return lines


def _format_rule(name: str, rule: str | Budget) -> list[str]:
    if not isinstance(rule, Budget):
        return [f"{name}: {rule}"]
    return [f"{name}: cosine >= {rule.cosine}, norm ratio within {rule.norm} of 1, argmax equal "
            f"except within {rule.near_tie} standard deviations",
            f"because: {rule.reason.strip()}", f"floor measured: {rule.measured.strip()}"]


def _without_negations(expression: str) -> str:
    """Return a -m expression without negated names."""
    return re.sub(r"\bnot\s+(\w+|\([^)]*\))", "", expression)


def read_verdicts(path: Path) -> list[Verdict]:
    """Read a verdict file; raise `SuiteError` with file and line for a broken line."""
    verdicts = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            verdicts.append(Verdict.model_validate_json(line))
        except ValueError as error:
            raise SuiteError(f"{path}:{number}: is not a verdict: {error}") from None
    return verdicts
