"""What `rowtwin bisect` does: takes the steps of a case, searches them and shrinks what parts."""

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
"""`rowtwin.build_bisect_setup`, as whoever wires the suite hands it over."""


def steps_from_case(
    asked: BisectRequest,
    case: Case,
    bank: Bank,
    subject: Subject,
    model: str | None,
    phase: str | None,
) -> tuple[BisectRequest, list[tuple[list[Step], int]]]:
    """Return what a case asks for, and the steps it takes of each pool with its live slots."""
    if asked.mutant is not None:
        raise SuiteError("--mutant runs in drawn steps: give --m, --steps and --prompt with it, "
                         "not --case")
    if phase is not None and parse_phase(phase) != case.phase:
        raise SuiteError(f"--phase {phase} is not the phase of {case.id}")
    noted = record_steps(case, bank, subject)
    asked = replace(asked, phase=case.phase, device=case.tier,
                    model=model or case.given.get("model", "nano"))
    return asked, [(one.steps, max(one.slots - IDLE_SLOTS, 0)) for one in noted]


def search_runs(setup: Setup, runs: Sequence[tuple[list[Step], int]],
             greedy: bool = False) -> tuple[Report, Scenario]:
    """Return the report of the first steps that part, or of all when none do."""
    layers, reports = setup.model.config.layers, []
    for steps, m in runs:
        reports.append(Bisection(setup, steps, m, greedy=greedy).run())
        if reports[-1].place is not None:
            break
    scene = Scenario.from_steps(steps, layers, m + IDLE_SLOTS)
    if reports[-1].place is not None:
        return reports[-1], scene
    return replace(reports[0], compared=sum(one.compared for one in reports),
                   steps=sum(one.steps for one in reports)), scene


def shrink_and_write(
    wired: SetupBuilder, asked: BisectRequest, scene: Scenario, report: Report, file: Path
) -> ShrinkResult:
    """Shrink a scene that parts, and write the script of what is left."""
    found = Shrinker(lambda layers: asked.build_setup(wired, layers)).run(scene, report)
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(render_script(asked, found, file))
    except OSError as error:
        raise SuiteError(f"{file} cannot be written: {error.strerror}") from None
    return found


def format_shrunk(found: ShrinkResult, file: Path) -> list[str]:
    """Return what a shrunk case is, in words."""
    beside = "nothing smaller is left to pass beside it" if found.passing is None else \
        f"the largest that passes beside it: {found.passing.describe()}"
    least = "no part of it can be spared" if found.minimal else \
        f"the search ended after {found.tried} cases, so that it may not be the smallest"
    return [f"shrunk to {found.scene.describe()}; {least}", beside,
            f"run it alone: python {file}", f"or: pytest {pytest_node_id(file)}"]
