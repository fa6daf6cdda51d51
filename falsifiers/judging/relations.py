"""Relations that need no reference: what must hold between two runs of the same thing.

`run` takes a list of rows (of any kind) and returns a tensor [rows, ...] or one tensor a row;
each relation runs it on changed rows and holds the results together through the judge.
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
    """Hold each row of the batch to what it gets alone."""
    together = run(rows)
    for i, row in enumerate(rows):
        judge.equal(name, together[i], run([row])[0], **{"row": i, **where})  # type: ignore[arg-type]


def permuted_rows_permute(judge: Judge, run: Run, rows: Rows, order: Sequence[int],
                          name: str = "out", **where: int | str) -> None:
    """Hold a batch in another order to the same rows in that order."""
    straight, turned = run(rows), run([rows[i] for i in order])
    for place, i in enumerate(order):
        judge.equal(name, turned[place], straight[i],
                    **{"row": place, "was": i, **where})  # type: ignore[arg-type]


def neighbours_cannot_reach(judge: Judge, run: Run, row: Any, crowds: Sequence[Rows],
                            name: str = "out", **where: int | str) -> None:
    """Hold a row to the same result whoever stands after it, in each of the crowds."""
    first = run([row, *crowds[0]])[0]
    for number, crowd in enumerate(crowds[1:], 1):
        judge.equal(name, run([row, *crowd])[0], first,
                    **{"row": 0, "crowd": number, **where})  # type: ignore[arg-type]


def split_batch_equals_batch(judge: Judge, run: Run, rows: Rows, at: int, name: str = "out",
                      **where: int | str) -> None:
    """Hold a batch of m rows to its first `at` and the rest, run apart: m = a + b."""
    whole, parts = run(rows), [*run(rows[:at]), *run(rows[at:])]
    for i, part in enumerate(parts):
        judge.equal(name, whole[i], part, **{"row": i, **where})  # type: ignore[arg-type]


def repeats_are_equal(judge: Judge, run: Run, rows: Rows, times: int = 2, name: str = "out",
            **where: int | str) -> None:
    """Hold every run of the same rows to the first, which later runs must not overwrite."""
    held = run(rows)
    first = [x.clone() for x in held]
    for number in range(1, times):
        for i, x in enumerate(run(rows)):
            judge.equal(name, x, first[i], **{"row": i, "repeat": number, **where})  # type: ignore[arg-type]
        for i, x in enumerate(held):
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
    """Hold everything `named` returns to be byte-identical after the block, save `may_write`.

    `named()` returns groups of tensors by name, a slot's state for example.
    """
    before = {group: tensors_digest(tensors) for group, tensors in named().items()}
    yield
    after = {group: tensors_digest(tensors) for group, tensors in named().items()}
    for group in before:
        if group not in may_write:
            judge.unchanged(group, before[group], after.get(group, "gone"), **where)
