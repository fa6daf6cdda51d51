"""A sample of a user's weights: tensors to judge, skipped tensors and the cases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from contracts.schema import Case
from falsifiers.judging.errors import shorten_name
from falsifiers.judging.verdict import Record


class SampledTensor(Record):
    """A tensor to judge."""

    tensor: str
    """Its name in the file."""
    kind: str
    shape: tuple[int, ...]
    """In numpy order; the last entry is the length of a row."""
    first: int
    """The first row to judge."""
    rows: int
    """The number of rows to judge."""


class SkippedTensors(Record):
    """Tensors that are skipped for one reason."""

    why: str
    tensors: int
    """Their number."""
    example: str
    """The name of one."""


class WeightSample(Record):
    """The cases over a file that replace a contract's cases."""

    file: str
    seed: int
    sampled: tuple[SampledTensor, ...]
    not_drawn: int
    """The number of supported tensors that were not drawn."""
    left_out: tuple[SkippedTensors, ...]
    cases: tuple[Case, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the sample without its cases, for JSON."""
        return self.model_dump(exclude={"cases"})

    def lines(self) -> Iterator[str]:
        """Yield the sample as lines of text."""
        yield (f"judged: {_count_tensors(len(self.sampled))} of {self.file}, drawn with seed "
               f"{self.seed}; {self.not_drawn} more were not drawn")
        for sampled in self.sampled:
            yield (f"  {shorten_name(sampled.tensor)} {sampled.kind} {list(sampled.shape)}, "
                   f"{sampled.rows} rows from {sampled.first}")
        for out in self.left_out:
            yield (f"not judged: {_count_tensors(out.tensors)}, {out.why}, such as "
                   f"{shorten_name(out.example)}")
        yield "the contract's cases were not run: omit --weights for the phase's verdict"


def _count_tensors(count: int) -> str:
    return f"{count} tensor" if count == 1 else f"{count} tensors"
