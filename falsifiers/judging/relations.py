"""Metamorphic relations: they compare two runs of the same function and need no reference.

`run` takes a list of rows (of any kind) and returns a tensor [rows, ...] or one tensor a row.
Each relation runs it on changed rows and compares the results with the judge.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from falsifiers.judging.judge import Judge, as_bits

Rows = Sequence[Any]
Run = Callable[[Rows], "Tensor | Sequence[Tensor]"]


def alone_equals_in_batch(judge: Judge, run: Run, rows: Rows, name: str = "out",
                          **where: int | str) -> None:
    """Compare each row of the batch with the same row run by itself."""
    together = run(rows)
    for i, row in enumerate(rows):
        judge.equal(name, together[i], run([row])[0], **{"row": i, **where})  # type: ignore[arg-type]


def permuted_rows_permute(judge: Judge, run: Run, rows: Rows, order: Sequence[int],
                          name: str = "out", **where: int | str) -> None:
    """Compare a permuted batch with the permuted rows of the first batch."""
    straight, turned = run(rows), run([rows[i] for i in order])
    for place, i in enumerate(order):
        judge.equal(name, turned[place], straight[i],
                    **{"row": place, "was": i, **where})  # type: ignore[arg-type]


def neighbours_cannot_reach(judge: Judge, run: Run, row: Any, crowds: Sequence[Rows],
                            name: str = "out", **where: int | str) -> None:
    """Compare the results of the first row of a batch for different rows after it."""
    first = run([row, *crowds[0]])[0]
    for number, crowd in enumerate(crowds[1:], 1):
        judge.equal(name, run([row, *crowd])[0], first,
                    **{"row": 0, "crowd": number, **where})  # type: ignore[arg-type]


def split_batch_equals_batch(judge: Judge, run: Run, rows: Rows, at: int, name: str = "out",
                      **where: int | str) -> None:
    """Compare a batch of m rows with its first `at` rows and the rest, run separately."""
    together, separate = run(rows), [*run(rows[:at]), *run(rows[at:])]
    for i, row in enumerate(separate):
        judge.equal(name, together[i], row, **{"row": i, **where})  # type: ignore[arg-type]


def repeats_are_equal(judge: Judge, run: Run, rows: Rows, times: int = 2, name: str = "out",
            **where: int | str) -> None:
    """Compare every run of the same rows with the first, which later runs must not overwrite."""
    result = run(rows)
    first = [x.clone() for x in result]
    for number in range(1, times):
        for i, x in enumerate(run(rows)):
            judge.equal(name, x, first[i], **{"row": i, "repeat": number, **where})  # type: ignore[arg-type]
        for i, x in enumerate(result):
            judge.equal(f"{name} of the first run", x, first[i],
                        **{"row": i, "repeat": number, **where})  # type: ignore[arg-type]


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return a sha256 over named tensors' shapes and bits."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        x = tensors[name]
        total.update(f"{name}{list(x.shape)}{x.dtype}".encode() + as_bits(x).numpy().tobytes())
    return total.hexdigest()


@contextmanager
def unchanged_outside(judge: Judge, named: Callable[[], Mapping[str, Mapping[str, Tensor]]],
          may_write: Sequence[str] = (), **where: int | str) -> Iterator[None]:
    """Check that the block changes no byte of the groups outside `may_write`.

    `named()` returns groups of tensors by name, a slot's state for example.
    """
    before = {group: tensors_digest(tensors) for group, tensors in named().items()}
    yield
    after = {group: tensors_digest(tensors) for group, tensors in named().items()}
    for group in before:
        if group not in may_write:
            judge.unchanged(group, before[group], after.get(group, "gone"), **where)
