"""The steps that a case of a contract takes, noted while its falsifier runs, to be bisected."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from contracts.schema import Case
from falsifiers.bisect.paired_runs import Step
from falsifiers.judging.errors import Declined, ParityBroken, SuiteError, Unmeasurable
from falsifiers.judging.judge import Judge
from falsifiers.judging.matrix import Bank
from falsifiers.judging.subject import Subject


@dataclass
class RecordedSteps:
    """What was asked of one pool."""

    pool: Any
    """Held, so that no other pool gets its address."""
    steps: list[Step] = field(default_factory=list)
    token_counts: dict[int, int] = field(default_factory=dict)
    """Tokens that each slot holds by the steps so far."""
    skipped_rows: int = 0
    """Rows that go on from a state which no step made."""

    @property
    def slots(self) -> int:
        """How many slots the pool has."""
        return int(self.pool.slots)

    @property
    def widest(self) -> int:
        """The most rows of any step."""
        return max((len(step.slots) for step in self.steps), default=0)

    def add(self, tokens: Sequence[int], rows: Any) -> None:
        """Note a step, less the rows whose sequences did not begin in a step."""
        spans = []
        for slot, position, own in rows.spans(tokens):
            if position == 0 or self.token_counts.get(slot) == position:
                spans.append((slot, position, tuple(own)))
                self.token_counts[slot] = position + len(own)
            else:
                self.skipped_rows += 1
        if spans:
            slots, positions, texts = zip(*spans, strict=True)
            self.steps.append(Step(
                slots, positions, tuple(map(len, texts)), tuple(t for one in texts for t in one),
                tuple(slot for slot, position, _ in spans if position == 0)))


def record_steps(case: Case, bank: Bank, subject: Subject) -> list[RecordedSteps]:
    """Run a case and return what it asked of each pool, the widest first.

    The steps up to a failure are what a failing case took. Raises `SuiteError` when it takes no
    step of the path that it judges.
    """
    if subject.path is None:
        raise SuiteError(f"{case.id} is about the engine's parts, none of which is a step")
    noted: dict[int, RecordedSteps] = {}
    watched = replace(subject, path=_recording_path(subject.path, noted))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with subject.around():
                bank.falsifiers[case.falsifier](case=case, subject=watched, judge=Judge(case))
    except (ParityBroken, Declined, Unmeasurable):
        pass
    except SuiteError:
        raise
    except Exception as error:
        if not noted:
            raise SuiteError(f"{case.id} ended in {type(error).__name__}: {error}") from error
    found = sorted((one for one in noted.values() if one.steps), key=lambda one: -one.widest)
    if not found:
        raise SuiteError(f"{case.id} takes no step, so there is none to bisect: it attacks an op "
                         f"alone, and its verdict names the place")
    return found


def _recording_path(path: Any, noted: dict[int, RecordedSteps]) -> Any:
    """Return a path that notes each step before it is run; its parts stay what they are."""
    base = type(path)

    def step(self: Any, model: Any, pool: Any, tokens: Sequence[int], rows: Any,
             sink: Any = None) -> Any:
        logits = base.step(self, model, pool, tokens, rows, sink)  # one that is refused is none
        noted.setdefault(id(pool), RecordedSteps(pool)).add(tokens, rows)
        return logits

    parts = {part.name: getattr(path, part.name) for part in fields(path)}
    return type("Watched", (base,), {"step": step})(**parts)
