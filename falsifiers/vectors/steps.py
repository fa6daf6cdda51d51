"""A whole step as a call: weights, tokens and every slot's state in, logits and state out.

The caller keeps the pool, and a call holds all of it, so that a program finds a row's state by its
slot as any engine does, and what it was not asked to write is held to stay. The weights are a GGUF
file beside the call.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from falsifiers.judging.errors import SuiteError
from falsifiers.vectors.calls import Call, CallRefused, as_storable, raise_broken
from falsifiers.vectors.row_ops import RowOps

INDEX_INPUTS = ("tokens", "slots", "positions", "counts")
"""The integers of a step, by their names among a call's inputs."""


class StepOps(RowOps):
    """A candidate that runs whole steps too."""

    def engine(self, model: Any) -> StepEngine:
        """Return an engine over a model, each of whose steps is a call."""
        return StepEngine(self, model)

    def step_call(self, call: Call) -> Mapping[str, Tensor]:
        """Put a step; raise `Refused` when the answer says that nobody could make it."""
        return self._answer(call)


class StepEngine:
    """An engine as the falsifiers drive one, whose pools are the model's own."""

    def __init__(self, offer: StepOps, model: Any) -> None:
        self.ops, self.model = offer, model

    def new_pool(self, slots: int, capacity: int) -> Any:
        """Return fresh state for `slots` sequences of up to `capacity` tokens."""
        return self.model.new_pool(slots, capacity)

    def step(self, tokens: Sequence[int], rows: Any, pool: Any) -> Tensor:
        """Advance the rows and return logits f32[m, vocab]; `ValueError` for a step refused."""
        call = _build_call(self.model, tokens, rows, pool)
        try:
            answer = self.ops.step_call(call)
        except CallRefused as refused:
            if _can_run(self.model, tokens, rows, pool):
                raise_broken(
                    "law", f"a step that can run was refused, the call {call.name}: {refused}"
                )
            raise ValueError(str(refused)) from None
        for name, whole in _state_views(pool).items():
            for slot, view in enumerate(whole):
                view.copy_(answer[name][slot])
        return answer["logits"].clone()

    def read_state(self, pool: Any, slot: int) -> dict[str, Tensor]:
        """Return copies of a slot's tensors."""
        return {name: view.clone() for name, view in pool.slot(slot).named().items()}

    def write_state(self, pool: Any, slot: int, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite a slot's tensors by name."""
        for name, value in tensors.items():
            pool.slot(slot).named()[name].copy_(value)

    def clear_slot(self, pool: Any, slot: int) -> None:
        """Make a slot fresh: what a call then holds of it is zero where it must be."""
        pool.slot(slot).clear()


def answer_step(engine: Any, rows_of: Callable[..., Any], call: Call) -> dict[str, Tensor]:
    """Answer a call of a step by an engine over the call's model, rows made by `rows_of`.

    Raises `Refused` with the engine's sentence for a step that it refuses.
    """
    tokens, slots, positions, counts = (call.inputs[name].tolist() for name in INDEX_INPUTS)
    states = {name: x for name, x in call.inputs.items() if name not in INDEX_INPUTS}
    pool = engine.new_pool(int(call.facts["slots"]), int(call.facts["capacity"]))
    for slot in range(int(call.facts["slots"])):
        engine.write_state(pool, slot, {name: x[slot] for name, x in states.items()})
    try:
        logits = engine.step(tokens, rows_of(tuple(slots), tuple(positions), tuple(counts)), pool)
    except ValueError as error:
        raise CallRefused(str(error)) from None
    left = [engine.read_state(pool, slot) for slot in range(int(call.facts["slots"]))]
    return {"logits": logits, **{name: torch.stack([one[name] for one in left])
                                 for name in states}}


def _build_call(model: Any, tokens: Sequence[int], rows: Any, pool: Any) -> Call:
    path = model.path
    if path is None:
        raise SuiteError("a step is asked of a program by its model's file, but there is none")
    given = {name: torch.tensor(values, dtype=torch.int32) for name, values in zip(
        INDEX_INPUTS, (tokens, rows.slots, rows.positions, rows.counts), strict=True)}
    states = {name: as_storable(torch.stack(whole)) for name, whole in _state_views(pool).items()}
    facts = {"model": path.name, "sha256": _file_digest(path), "slots": str(pool.slots),
             "capacity": str(pool.capacity)}
    outputs = {"logits": (len(rows.slots), model.config.vocab),
               **{name: tuple(x.shape) for name, x in states.items()}}
    return Call("step", f"m{len(rows.slots)}-t{len(tokens)}-s{pool.slots}", facts,
                {**given, **states}, outputs, (path,), refusable=True)


def _state_views(pool: Any) -> dict[str, list[Tensor]]:
    """Return each tensor of a pool by name, a view of every slot."""
    every = [pool.slot(slot).named() for slot in range(pool.slots)]
    return {name: [named[name] for named in every] for name in every[0]}


def _can_run(model: Any, tokens: Sequence[int], rows: Any, pool: Any) -> bool:
    """Return whether a step is one that must be made."""
    m = len(rows.slots)
    return (0 < m == len(rows.positions) == len(rows.counts) and sum(rows.counts) == len(tokens)
            and len(set(rows.slots)) == m
            and all(0 <= slot < pool.slots for slot in rows.slots)
            and all(count > 0 <= position <= pool.capacity - count for position, count
                    in zip(rows.positions, rows.counts, strict=True))
            and all(0 <= token < model.config.vocab for token in tokens))


@cache
def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
