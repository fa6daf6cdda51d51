"""The records a judgement leaves behind; each validates itself and cannot contradict itself."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

Outcome = Literal["passed", "failed", "declined", "unmeasurable", "error"]
RED: tuple[Outcome, ...] = ("failed", "error")
Rule = Literal["twin", "truth", "law"]
Rung = Literal["shape", "dtype", "finite", "bits", "budget", "law", "frame", "crash"]


class Record(BaseModel):
    """A frozen record that refuses unknown fields."""

    # a published schema explains each field in the words that stand below it here
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Finding(Record):
    """One broken claim: which rule and rung, where, and the sentence a reader sees."""

    rule: Rule
    """twin: batched against alone; truth: against the engine; law: a property without a peer."""
    rung: Rung
    """The first rung of the ladder that did not hold."""
    sentence: str
    """The message in the one template."""
    where: dict[str, int | str] = {}
    """row, slot, step, layer, op and element, as far as they apply."""
    got: str | None = None
    """The first differing element's bit pattern, or its value for integers."""
    want: str | None = None
    """What it should have been."""
    ulps: int | None = None
    """How far apart the two are, in units in the last place."""
    differing: int | None = None
    """How many elements differ; the first is the one shown."""


class Worst(Record):
    """The largest deviation one op showed in a case that passed."""

    op: str
    rung: Rung
    ulps: int
    """0 for bitwise equality."""
    cosine: float | None = None
    """The smallest per-row cosine, where a budget was used."""
    norm_error: float | None = None
    """The largest per-row | norm ratio - 1 |, where a budget was used."""
    compared: int
    """How many values were compared."""


class Verdict(Record):
    """The record of judging one case."""

    case: str
    """The case's full id, `p1/streams_equal_solo[cpu-nano-m3]`."""
    phase: str
    """`engine` or `p0` .. `p8`."""
    falsifier: str
    tier: Literal["cpu", "interpret", "cuda", "emulate"]
    subject: str
    """What was judged: `in-tree`, or the candidate as it was named."""
    outcome: Outcome
    must_claim: bool = False
    finding: Finding | None = None
    reason: str | None = None
    """Why it was declined, unmeasurable or an error."""
    compared: int = 0
    """How many values or laws were checked; a pass with none is refused."""
    worst: tuple[Worst, ...] = ()
    evidence: dict[str, Any] = {}
    """Engagement as measured: bytes read, rows a step, tokens prefilled."""
    repro: str = ""
    """The command that runs this case alone."""
    seconds: float = 0.0

    @model_validator(mode="after")
    def _consistent(self) -> Verdict:
        if (self.outcome == "failed") != (self.finding is not None):
            raise ValueError(f"{self.case}: a finding and the outcome 'failed' go together")
        if self.outcome == "passed" and self.compared == 0:
            raise ValueError(f"{self.case}: a case that compared nothing cannot pass")
        if self.outcome in ("declined", "unmeasurable", "error") and not self.reason:
            raise ValueError(f"{self.case}: outcome {self.outcome!r} needs a reason")
        return self
