"""The engine candidate: one object that any batched engine can offer, and the same over a path.

- `new_pool(slots, capacity) -> pool`: state for `slots` sequences, all fresh
- `step(tokens, rows, pool) -> logits`: f32[m, vocab] of each row's last token
- `read_state(pool, slot) -> {name: tensor}`: copies of everything the slot holds
- `write_state(pool, slot, tensors)`: the reverse, for poison (may be absent)
- `clear_slot(pool, slot)`: make the slot fresh for a new sequence
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from torch import Tensor

from engine.errors import InputError
from engine.model import Model
from engine.path import Path, Rows
from engine.state import Pool


class Engine(Protocol):
    """The interface of a candidate's engine; its pools are opaque to the falsifiers."""

    def new_pool(self, slots: int, capacity: int) -> Any:
        """Return fresh state for `slots` sequences of up to `capacity` tokens."""

    def step(self, tokens: Sequence[int], rows: Rows, pool: Any) -> Tensor:
        """Advance the rows and return logits f32[m, vocab]."""

    def read_state(self, pool: Any, slot: int) -> dict[str, Tensor]:
        """Return copies of a slot's tensors by name, KV rows in order in dimension 0."""

    def clear_slot(self, pool: Any, slot: int) -> None:
        """Clear a slot for a new sequence."""


class PathEngine:
    """A path and a model as an engine candidate."""

    def __init__(self, path: Path, model: Model) -> None:
        self.path, self.model = path, model

    def new_pool(self, slots: int, capacity: int) -> Pool:
        """Return a fresh pool."""
        return self.model.new_pool(slots, capacity)

    def step(self, tokens: Sequence[int], rows: Rows, pool: Pool) -> Tensor:
        """Run the path's step."""
        return self.path.step(self.model, pool, tokens, rows)

    def read_state(self, pool: Pool, slot: int) -> dict[str, Tensor]:
        """Return copies of a slot's tensors."""
        return {name: view.clone() for name, view in pool.slot(slot).named().items()}

    def write_state(self, pool: Pool, slot: int, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite a slot's tensors by name."""
        named = pool.slot(slot).named()
        for name, value in tensors.items():
            named[name].copy_(value)

    def clear_slot(self, pool: Pool, slot: int) -> None:
        """Zero a slot's conv window and recurrent state."""
        pool.slot(slot).clear()


def is_whole(candidate: Any) -> bool:
    """Return whether a candidate offers an engine or a step, not only single ops."""
    return hasattr(candidate, "engine") or hasattr(candidate, "step")


def engine_of(path: Path, candidate: Any, model: Model) -> Engine:
    """Return the engine under test: the candidate's own, its `step` on the path, or the path.

    A candidate offers `engine(model)` returning an engine, or `step(path, model, pool, tokens,
    rows, sink)` returning logits.
    """
    if candidate is None:
        return PathEngine(path, model)
    if hasattr(candidate, "engine"):
        offered: Engine = candidate.engine(model)
        missing = [name for name in ("new_pool", "step", "read_state", "clear_slot")
                   if not callable(getattr(offered, name, None))]
        if missing:
            raise InputError(f"the candidate's engine has no {missing[0]}()")
        return offered
    if callable(getattr(candidate, "step", None)):
        return PathEngine(replace(path, name="candidate", step_rows=candidate.step), model)
    raise InputError("the candidate offers neither engine(model) nor "
                     "step(path, model, pool, tokens, rows, sink)")
