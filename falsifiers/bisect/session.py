"""The work of `rowtwin bisect`: record the steps of a case, search them, shrink a divergence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from contracts.schema import Case
from falsifiers.bisect.divergence import Report
from falsifiers.bisect.paired_runs import IDLE_SLOTS, Setup, Step
from falsifiers.bisect.repro_script import BisectRequest, pytest_node_id, render_script
from falsifiers.bisect.scenario import Scenario
from falsifiers.bisect.search import Bisection
from falsifiers.bisect.shrink import Shrinker, ShrinkResult
from falsifiers.bisect.step_recorder import record_steps
from falsifiers.gate.runner import parse_phase
from falsifiers.judging.errors import SuiteError
from falsifiers.judging.matrix import Bank
from falsifiers.judging.subject import Subject

SetupBuilder = Callable[..., Setup]
"""The type of `rowtwin.build_bisect_setup`."""


def steps_from_case(request: BisectRequest, case: Case, bank: Bank, subject: Subject,
                    model: str | None, phase: str | None
                    ) -> tuple[BisectRequest, list[tuple[list[Step], int]]]:
    """Return the request for a case, and for each pool its steps and its number of live slots."""
    if request.mutant is not None:
        raise SuiteError("--mutant runs on drawn steps: use --m, --steps and --prompt instead of "
                         "--case")
    if phase is not None and parse_phase(phase) != case.phase:
        raise SuiteError(f"--phase {phase} is not the phase of {case.id}: drop --phase")
    recorded = record_steps(case, bank, subject)
    request = replace(request, phase=case.phase, device=case.tier,
                      model=model or case.given.get("model", "nano"))
    return request, [(pool.steps, max(pool.slots - IDLE_SLOTS, 0)) for pool in recorded]


def search_runs(setup: Setup, runs: Sequence[tuple[list[Step], int]],
                greedy: bool = False) -> tuple[Report, Scenario]:
    """Return the report of the first run that diverges, or a sum of all reports when none does."""
    layers, reports = setup.model.config.layers, []
    for steps, m in runs:
        reports.append(Bisection(setup, steps, m, greedy=greedy).run())
        if reports[-1].place is not None:
            break
    scenario = Scenario.from_steps(steps, layers, m + IDLE_SLOTS)
    if reports[-1].place is not None:
        return reports[-1], scenario
    return replace(reports[0], compared=sum(report.compared for report in reports),
                   steps=sum(report.steps for report in reports)), scenario


def shrink_and_write(build_setup: SetupBuilder, request: BisectRequest, scenario: Scenario,
                     report: Report, file: Path) -> ShrinkResult:
    """Shrink a scenario that diverges, and write a script that reproduces the result."""
    shrunk = Shrinker(lambda layers: request.build_setup(build_setup, layers)).run(scenario, report)
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(render_script(request, shrunk, file))
    except OSError as error:
        raise SuiteError(f"{file} cannot be written: {error.strerror}") from None
    return shrunk


def format_shrunk(shrunk: ShrinkResult, file: Path) -> list[str]:
    """Return the lines that describe a shrunk case."""
    passing = "no smaller case passes" if shrunk.passing is None else \
        f"the largest smaller case that passes: {shrunk.passing.describe()}"
    least = "nothing more can be removed" if shrunk.minimal else \
        f"the search stopped after {shrunk.tried} cases, so this may not be the smallest"
    return [f"shrunk to {shrunk.scenario.describe()}; {least}", passing,
            f"reproduce it: python {file}", f"or: pytest {pytest_node_id(file)}"]
