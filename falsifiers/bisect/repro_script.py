"""The stand-alone script of a shrunk case: it fails for as long as the fault is there."""

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
"""{told}.

Run it with python, or with pytest: {node}
"""

import sys

import rowtwin
from falsifiers.bisect.search import Bisection
from falsifiers.bisect.cli import lines
from falsifiers.bisect.paired_runs import Step


def found(steps, m, layers):
    """Hold every row of the steps to that row alone, on a pool of m slots and two idle ones."""
    setup = rowtwin.build_bisect_setup({model!r}, {phase!r}, {candidate!r}, {against!r}, {device!r},
                             layers, {mutant!r})
    return Bisection(setup, steps, m{greedy}).run()


def {test}():
    report = found([  # slots, positions, counts, tokens, slots that begin anew
{steps}
    ], {slots}, {layers})
    assert report.place is None, "\\n".join(lines(report))
{passing}

if __name__ == "__main__":
    try:
        {test}()
    except AssertionError as parted:
        sys.exit(str(parted))
'''
PASSING_TEMPLATE = '''

def test_largest_case_that_is_one_part_less_agrees():
    report = found([
{steps}
    ], {slots}, {layers})
    assert report.place is None, "\\n".join(lines(report))
'''


@dataclass(frozen=True)
class BisectRequest:
    """What a bisection was asked, in words that `rowtwin.build_bisect_setup` takes."""

    model: str
    phase: str
    candidate: str | None
    against: str
    device: str
    mutant: str | None = None

    def build_setup(
        self, wired: Callable[..., Setup], layers: Sequence[int] | None = None
    ) -> Setup:
        """Return the setup, of some of the model's layers when they are named."""
        return wired(self.model, self.phase, self.candidate, self.against, self.device, layers,
                     self.mutant)


def render_script(asked: BisectRequest, shrunk: ShrinkResult, file: Path) -> str:
    """Return a script of under 60 lines that runs a shrunk case, and what passes beside it."""
    place = shrunk.report.place
    assert place is not None
    layer, op = split_op_id(place.op)
    at = "" if layer is None else f" of layer {shrunk.scene.layers[layer]}"
    told = (f"{shrunk.report.path} parts from {shrunk.report.against} at {op}{at}.\n\n"
            f"Shrunk to {shrunk.scene.describe()}")
    passing = (
        "" if shrunk.passing is None else PASSING_TEMPLATE.format(**_script_fields(shrunk.passing))
    )
    model = Path(asked.model)  # a script is run from anywhere
    known = {"model": str(model.resolve()) if model.is_file() else asked.model,
             "candidate": asked.candidate and make_absolute(asked.candidate)}
    greedy = ", greedy=True" if shrunk.report.seen == "greedy" else ""
    made = [
        SCRIPT_TEMPLATE.format(
            told=told,
            node=pytest_node_id(file),
            test=TEST_NAME,
            passing=beside,
            greedy=greedy,
            **vars(asked) | known,
            **_script_fields(shrunk.scene),
        )
        for beside in (passing, "")
    ]
    return next((text for text in made if text.count("\n") < 60), made[-1])


def pytest_node_id(file: Path) -> str:
    """Return the pytest id of a script's case."""
    return f"{file}::{TEST_NAME}"


def _script_fields(scene: Scenario) -> dict[str, str]:
    steps = "\n".join(f"        Step({step.slots}, {step.positions}, {step.counts}, "
                      f"{_format_tokens(step.tokens)}, {step.joins})," for step in scene.to_steps())
    return {
        "steps": steps,
        "slots": str(scene.slots - IDLE_SLOTS),
        "layers": str(list(scene.layers)),
    }


def _format_tokens(tokens: tuple[int, ...]) -> str:
    """Return tokens as Python has them; many of one kind as a product."""
    same = len(tokens) > 4 and len(set(tokens)) == 1
    return f"({tokens[0]},) * {len(tokens)}" if same else str(tokens)
