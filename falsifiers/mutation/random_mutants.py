"""Random mutants of the suite's own code: what is drawn, what tries it, and what survived before.

A part is some files with the tests that should notice a change of them. `triage.yaml` holds what
became of each survivor that was ever looked at: it is equivalent, with the reason, or a test was
written that kills it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, StringConstraints, TypeAdapter, ValidationError

from falsifiers.judging.errors import SuiteError
from falsifiers.mutation.operators import Change, changes
from falsifiers.mutation.random_run import Fate, tried

ROOT = Path(__file__).parents[2]
TRIAGE = Path(__file__).with_name("triage.yaml")
Sentence = Annotated[str, StringConstraints(pattern=r"^\S[^\n]{8,}\.$")]


@dataclass(frozen=True)
class Part:
    """Files to change, and the tests to run."""

    files: tuple[str, ...]
    tests: tuple[str, ...]
    by_name: bool = False
    """Whether it takes so long that it is tried only when it is named."""

    def changes(self, root: Path = ROOT) -> list[Change]:
        """Return every mutant of the part, in order."""
        return [change for file in self.files for change in changes(file, root)]


def _ops(phase: str, *beside: str) -> Part:
    """Return a phase of the decode path: its cases, and cheap tests that stand beside them."""
    return Part((f"phases/{phase}/reference.py", f"phases/{phase}/increment.py"),
                (*beside, f"phases/{phase}/test_falsifier.py"), by_name=True)


_P0, _P7, _META = "phases/p0_scheduler", "phases/p7_prefix_reuse", "falsifiers/meta"
_PLACES = "phases/test_op_dispatch.py"
PARTS = {
    "gate": Part(("falsifiers/gate/phase_status.py",), (f"{_META}/test_gate.py",)),
    "witness": Part(("falsifiers/witness/rules.py",),
                    (f"{_META}/test_witness_rules.py", f"{_META}/test_witness_parts.py")),
    "gguf": Part(("engine/gguf_header.py",), ("engine/test_gguf_file.py",)),
    "judge": Part(("falsifiers/judging/judge.py", "falsifiers/judging/tolerance.py"),
                  (f"{_META}/test_judge.py", f"{_META}/test_nearties.py")),
    "prefixes": Part((f"{_P7}/radix.py", f"{_P7}/store.py"),
                     (f"{_P7}/test_store.py", *(
                         f"{_P7}/test_falsifier.py::test_{name}" for name in (
                             "store_equals_dull_store", "nothing_kept_is_shared_with_a_slot",
                             "failures_cost_time_alone", "budget_is_kept")))),
    "scheduler": Part((f"{_P0}/scheduler.py", f"{_P0}/desk.py", f"{_P0}/job.py"),
                          (f"{_P0}/test_scheduler.py", f"{_P0}/test_falsifier.py")),
    "ops": Part(("engine/ops.py", "engine/rope.py"),
                ("engine/test_ops.py", "engine/test_rope.py", "engine/test_falsifier.py"),
                by_name=True),
    "p1": _ops("p1_looped_step"),
    "p4": _ops("p4_batched_matmul", _PLACES),
    "p5": _ops("p5_batched_gdn", _PLACES, "phases/p5_batched_gdn/test_reference.py"),
    "p6": _ops("p6_batched_attention", _PLACES),
}
"""The suite's own logic, then ops and increments before the quick cases of their phase."""


class Triaged(BaseModel):
    """One survivor that was looked at."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mutant: str
    """Its id."""
    equivalent: Sentence | None = None
    """Why no test can tell it from the right code."""
    test: Annotated[str, StringConstraints(pattern=r"^[\w/]+\.py::test_\w+$")] | None = None
    """The test that was written for it, and kills it."""


def triage(path: Path = TRIAGE) -> dict[str, Triaged]:
    """Read what was decided of survivors, by mutant; raise `SuiteError` for a broken file."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        found = TypeAdapter(tuple[Triaged, ...]).validate_python(data)
    except (OSError, ValueError, yaml.YAMLError) as error:
        why = error.errors()[0] if isinstance(error, ValidationError) else None
        told = f"{why['loc']}: {why['msg']}" if why else str(error).splitlines()[0]
        raise SuiteError(f"{path.name} is not a list of survivors: {told}") from None
    for one in found:
        if (one.equivalent is None) == (one.test is None):
            raise SuiteError(f"{path.name}: {one.mutant} must be equivalent or have a test")
    if len({one.mutant for one in found}) < len(found):
        raise SuiteError(f"{path.name} has a mutant twice")
    return {one.mutant: one for one in found}


@dataclass(frozen=True)
class Score:
    """What became of the mutants that were drawn of one part."""

    part: str
    of: int
    """How many there are."""
    fates: tuple[Fate, ...]
    equivalent: int
    """Drawn, but known to change nothing; not tried."""

    @property
    def dead(self) -> int:
        """How many a test noticed."""
        return sum(fate.dead for fate in self.fates)

    @property
    def timed_out(self) -> int:
        """How many of those were noticed by the time that a test took, and nothing else."""
        return sum(fate.how == "time" for fate in self.fates)

    @property
    def tried(self) -> int:
        """How many could be planted, and so count."""
        return sum(fate.how != "not planted" for fate in self.fates)

    @property
    def survivors(self) -> list[Fate]:
        """Those that no test noticed."""
        return [fate for fate in self.fates if fate.how == "survived"]


def draw(part: Part, count: int, seed: int, root: Path = ROOT) -> list[Change]:
    """Return so many mutants of a part, the same for a seed; all of them, in order, for 0."""
    every = part.changes(root)
    if not count or count >= len(every):
        return every
    return random.Random(seed).sample(every, count)


def run(names: Sequence[str], count: int, seed: int, on_fate: Callable[[Fate], None],
        root: Path = ROOT) -> list[Score]:
    """Try mutants drawn from some parts; those known to be equivalent are counted, not tried.

    Raises `SuiteError` for a part of which none could be planted: that would be a score of nothing.
    """
    known = {name for name, one in triage().items() if one.equivalent}
    scores = []
    for name in names:
        drawn = draw(PARTS[name], count, seed, root)
        due = [change for change in drawn if change.id not in known]
        fates = tried(due, PARTS[name].tests, root, on_fate) if due else []
        scores.append(Score(name, len(PARTS[name].changes(root)), tuple(fates),
                            len(drawn) - len(due)))
        if fates and not scores[-1].tried:
            raise SuiteError(f"none of the {len(fates)} mutants drawn of {name} could be planted: "
                             f"{fates[0].by}")
    return scores


def _numbers(score: Score) -> list[int]:
    return [score.dead, score.timed_out, score.tried, score.equivalent, score.of]


def lines(scores: Sequence[Score]) -> list[str]:
    """Return the survivors and the scores as lines for a person."""
    told = [f"{score.part}: survived: {fate.change.id} (line {fate.change.line})"
            for score in scores for fate in score.survivors]
    told += [f"{score.part}: not planted: {fate.by}" for score in scores for fate in score.fates
             if fate.how == "not planted"]
    total = [sum(numbers) for numbers in zip(*(
        _numbers(score) for score in scores), strict=True)]
    for name, numbers in [*((score.part, _numbers(score)) for score in scores), ("all", total)]:
        dead, late, counted, same, of = numbers
        share = f"{100 * dead / counted:.1f} %" if counted else "none"
        told.append(f"{name:<10} {dead} of {counted} died ({share}), {late} of them by the time "
                    f"they took; {same} equivalent; {counted + same} of {of} drawn")
    return told
