"""Write a script that reproduces a shrunk case; it fails until the fault is fixed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from falsifiers.bisect.divergence import split_op_id
from falsifiers.bisect.paired_runs import IDLE_SLOTS, Setup
from falsifiers.bisect.scenario import Scenario
from falsifiers.bisect.shrink import ShrinkResult
from falsifiers.gate.candidates import make_absolute

TEST_NAME = "test_rows_of_a_batch_equal_rows_alone"
SCRIPT_TEMPLATE = '''\
"""{summary}.

Run it with python, or with pytest: {node}
"""

import sys

import rowtwin
from falsifiers.bisect.cli import format_report
from falsifiers.bisect.paired_runs import Step
from falsifiers.bisect.search import Bisection


def bisect(steps, m, layers):
    """Compare every row of the steps with its solo run, on a pool of m slots and two idle ones."""
    setup = rowtwin.build_bisect_setup({model!r}, {phase!r}, {candidate!r}, {against!r}, {device!r},
                                       layers, {mutant!r})
    return Bisection(setup, steps, m{greedy}).run()


def {test}():
    report = bisect([  # slots, positions, counts, tokens, slots cleared before the step
{steps}
    ], {slots}, {layers})
    assert report.place is None, "\\n".join(format_report(report))
{passing}

if __name__ == "__main__":
    try:
        {test}()
    except AssertionError as error:
        sys.exit(str(error))
'''
PASSING_TEMPLATE = '''

def test_largest_smaller_case_passes():
    report = bisect([
{steps}
    ], {slots}, {layers})
    assert report.place is None, "\\n".join(format_report(report))
'''


@dataclass(frozen=True)
class BisectRequest:
    """The options of a bisection, as `rowtwin.build_bisect_setup` takes them."""

    model: str
    phase: str
    candidate: str | None
    against: str
    device: str
    mutant: str | None = None

    def build_setup(self, build: Callable[..., Setup],
                    layers: Sequence[int] | None = None) -> Setup:
        """Return `build` called with these options and some of the model's layers."""
        return build(self.model, self.phase, self.candidate, self.against, self.device, layers,
                     self.mutant)


def render_script(request: BisectRequest, shrunk: ShrinkResult, file: Path) -> str:
    """Return a script that runs a shrunk case, and the passing case if that fits in 60 lines."""
    place = shrunk.report.place
    assert place is not None
    layer, op = split_op_id(place.op)
    at = "" if layer is None else f" of layer {shrunk.scenario.layers[layer]}"
    passing = "" if shrunk.passing is None else \
        PASSING_TEMPLATE.format(**_script_fields(shrunk.passing))
    model = Path(request.model)  # absolute: the script may run from any directory
    options = vars(request) | _script_fields(shrunk.scenario) | {
        "summary": f"{shrunk.report.path} differs from {shrunk.report.against} at {op}{at}.\n\n"
                   f"Shrunk to {shrunk.scenario.describe()}",
        "model": str(model.resolve()) if model.is_file() else request.model,
        "candidate": request.candidate and make_absolute(request.candidate),
        "greedy": ", greedy=True" if shrunk.report.seen == "greedy" else "",
        "node": pytest_node_id(file), "test": TEST_NAME}
    script = SCRIPT_TEMPLATE.format(passing=passing, **options)
    return script if script.count("\n") < 60 else SCRIPT_TEMPLATE.format(passing="", **options)


def pytest_node_id(file: Path) -> str:
    """Return the pytest id of a script's case."""
    return f"{file}::{TEST_NAME}"


def _script_fields(scenario: Scenario) -> dict[str, str]:
    steps = [f"        Step({step.slots}, {step.positions}, {step.counts}, "
             f"{_format_tokens(step.tokens)}, {step.joins})," for step in scenario.to_steps()]
    return {"steps": "\n".join(steps), "slots": str(scenario.slots - IDLE_SLOTS),
            "layers": str(list(scenario.layers))}


def _format_tokens(tokens: tuple[int, ...]) -> str:
    """Return the tokens as a Python expression; many equal ones as a product."""
    same = len(tokens) > 4 and len(set(tokens)) == 1
    return f"({tokens[0]},) * {len(tokens)}" if same else str(tokens)
