"""The records of the kill matrix: which mutant died, by which falsifier, at which rung."""

from __future__ import annotations

from typing import Literal

from falsifiers.judging.verdict import Record


class Row(Record):
    """One line of the kill matrix."""

    name: str
    phase: str
    fault: str
    device: Literal["cpu", "interpret", "cuda"]
    """`cuda` when only a device can show it."""
    expected: tuple[str, ...]
    """The falsifiers that must each kill it."""
    killed_by: tuple[str, ...] = ()
    rung: str | None = None
    """The rung of the first kill; `crash` when it fell over; None when nothing killed it."""
    seconds: float = 0.0
    from_receipt: bool = False
    """Whether the kill was read from a device's receipt rather than made now."""


class Matrix(Record):
    """The kill matrix of one or more phases."""

    mutants: tuple[Row, ...]
    survivors: tuple[str, ...]
    """`phase/name` of mutants that a falsifier named as their killer did not kill."""
    idle_falsifiers: tuple[str, ...]
    """`phase/id` of falsifiers that killed none."""
    not_run: tuple[str, ...]
    """`phase/name` of mutants that only a device can show, when there is neither that nor a
    receipt."""
