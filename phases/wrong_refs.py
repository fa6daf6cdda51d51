"""Wrong slots, shared by the mutants of P5 and P6, and how a wrong op enters a path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from engine.state import Refs
from falsifiers.judging.subject import Builder, Subject

Counts = Sequence[int]
Op = Callable[..., None]
RefsChange = Callable[[Refs, Counts], Refs]
"""Returns the refs of other slots; `counts` are the tokens of each row."""


def with_ops(**wrong: Op | type) -> Builder:
    """Return a builder that replaces ops of the subject's path; a class is instantiated anew."""
    def build(subject: Subject) -> Subject:
        ops: dict[str, Any] = {name: op() if isinstance(op, type) else op
                               for name, op in wrong.items()}
        return replace(subject, path=replace(subject.path, **ops))

    return build


def _per_row(slot_of: Callable[[Refs, int], int]) -> RefsChange:
    """Return refs whose rows with tokens name the slot `slot_of(refs, row)`; pads keep theirs."""
    def change(refs: Refs, counts: Counts) -> Refs:
        slots = (slot_of(refs, row) if count else refs.slots[row]
                 for row, count in enumerate(counts))
        return replace(refs, slots=tuple(slots), device_pointers=None)

    return change


row_numbers = _per_row(lambda refs, row: row)
first_slot_for_all = _per_row(lambda refs, row: refs.slots[0])
slots_side_by_side = _per_row(lambda refs, row: (refs.slots[0] + row) % len(refs.all_slots))
next_slots = _per_row(lambda refs, row: (refs.slots[row] + 1) % len(refs.all_slots))
doubled_slots = _per_row(lambda refs, row: 2 * refs.slots[row] % len(refs.all_slots))


def sorted_slots(refs: Refs, counts: Counts) -> Refs:
    return replace(refs, slots=tuple(sorted(refs.slots)), device_pointers=None)
