"""A sample of a user's own weights: which tensors are judged, which cannot be, and the cases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from contracts.schema import Case
from falsifiers.judging.errors import shorten_name
from falsifiers.judging.verdict import Record


class SampledTensor(Record):
    """One tensor that is judged."""

    tensor: str
    """Its name in the file."""
    kind: str
    shape: tuple[int, ...]
    """In numpy order: the last entry is the length of a row."""
    first: int
    """The first row that is judged."""
    rows: int
    """How many rows are judged, from there on."""


class SkippedTensors(Record):
    """Tensors that cannot be judged, for one reason."""

    why: str
    tensors: int
    """How many there are."""
    example: str
    """The name of one."""


class WeightSample(Record):
    """What a run over a file judges in place of a contract's own cases."""

    file: str
    seed: int
    sampled: tuple[SampledTensor, ...]
    not_drawn: int
    """Tensors that could have been judged and were not drawn."""
    left_out: tuple[SkippedTensors, ...]
    cases: tuple[Case, ...]

    def as_json(self) -> dict[str, Any]:
        """Return what a reader of a result has to know of the sample, for JSON."""
        return self.model_dump(exclude={"cases"})

    def lines(self) -> Iterator[str]:
        """Yield the same as lines of text."""
        yield (f"judged: {_count_tensors(len(self.sampled))} of {self.file}, drawn with seed "
               f"{self.seed}; {self.not_drawn} more were not drawn")
        for one in self.sampled:
            yield (
                f"  {shorten_name(one.tensor)} {one.kind} {list(one.shape)}, {one.rows} rows from "
                f"{one.first}"
            )
        for out in self.left_out:
            yield (f"not judged: {_count_tensors(out.tensors)}, {out.why}, such as "
                   f"{shorten_name(out.example)}")
        yield "the contract's own cases were not run: leave --weights out for the phase's verdict"


def _count_tensors(count: int) -> str:
    return f"{count} tensor" if count == 1 else f"{count} tensors"
