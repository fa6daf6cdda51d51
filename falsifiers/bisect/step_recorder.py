"""Record the steps that a contract case runs, so that they can be bisected."""

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
    """The steps that ran on one pool."""

    pool: Any
    """A reference, so that no other pool gets the same id()."""
    steps: list[Step] = field(default_factory=list)
    token_counts: dict[int, int] = field(default_factory=dict)
    """Tokens in each slot after the recorded steps."""
    skipped_rows: int = 0
    """Rows that continue a state which no recorded step produced."""

    @property
    def slots(self) -> int:
        """How many slots the pool has."""
        return int(self.pool.slots)

    @property
    def widest(self) -> int:
        """The most rows of any step."""
        return max((len(step.slots) for step in self.steps), default=0)

    def add(self, tokens: Sequence[int], rows: Any) -> None:
        """Record a step without the rows whose sequences did not begin in a recorded step."""
        spans = []
        for slot, position, row_tokens in rows.spans(tokens):
            if position == 0 or self.token_counts.get(slot) == position:
                spans.append((slot, position, tuple(row_tokens)))
                self.token_counts[slot] = position + len(row_tokens)
            else:
                self.skipped_rows += 1
        if spans:
            slots, positions, texts = zip(*spans, strict=True)
            self.steps.append(Step(
                slots, positions, tuple(map(len, texts)), tuple(t for text in texts for t in text),
                tuple(slot for slot, position, _ in spans if position == 0)))


def record_steps(case: Case, bank: Bank, subject: Subject) -> list[RecordedSteps]:
    """Run a case and return the steps of each pool, the pool with the widest step first.

    A failing case is recorded up to its failure. Raises `SuiteError` when the case runs no step
    of the path under test.
    """
    if subject.path is None:
        raise SuiteError(f"{case.id} tests single functions of the engine and runs no step, so "
                         f"there is nothing to bisect")
    recorded: dict[int, RecordedSteps] = {}
    recording = replace(subject, path=_recording_path(subject.path, recorded))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with subject.around():
                bank.falsifiers[case.falsifier](case=case, subject=recording, judge=Judge(case))
    except (ParityBroken, Declined, Unmeasurable):
        pass
    except SuiteError:
        raise
    except Exception as error:
        if not recorded:
            raise SuiteError(f"{case.id} raised {type(error).__name__}: {error}") from error
    pools = sorted((pool for pool in recorded.values() if pool.steps), key=lambda p: -p.widest)
    if not pools:
        raise SuiteError(f"{case.id} runs no step, so there is nothing to bisect: it tests a "
                         f"single op, and its verdict names the place")
    return pools


def _recording_path(path: Any, recorded: dict[int, RecordedSteps]) -> Any:
    """Return a path that records each step; its ops stay the same objects."""
    base = type(path)

    def step(self: Any, model: Any, pool: Any, tokens: Sequence[int], rows: Any,
             sink: Any = None) -> Any:
        logits = base.step(self, model, pool, tokens, rows, sink)  # raises for a refused step
        recorded.setdefault(id(pool), RecordedSteps(pool)).add(tokens, rows)
        return logits

    ops = {op.name: getattr(path, op.name) for op in fields(path)}
    return type("RecordingPath", (base,), {"step": step})(**ops)
