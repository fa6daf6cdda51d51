"""A step as a call: weights, tokens and every slot's state in, logits and state out.

A call has the state of all slots. So a program finds a row's state by its slot, as any engine
does, and a write to another slot is seen. The weights are a GGUF file next to the call.
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
from falsifiers.vectors.calls import Call, CallRefused, as_int32, as_storable, raise_broken
from falsifiers.vectors.row_ops import RowOps

INDEX_INPUTS = ("tokens", "slots", "positions", "counts")
"""The integer inputs of a step, by name."""


class StepOps(RowOps):
    """A candidate that also runs steps."""

    def engine(self, model: Any) -> StepEngine:
        """Return an engine over a model whose every step is a call."""
        return StepEngine(self, model)

    def step_call(self, call: Call) -> Mapping[str, Tensor]:
        """Return the answer to a step; raise `CallRefused` when it refuses the step as invalid."""
        return self._answer(call)


class StepEngine:
    """An engine for falsifiers, whose pools are the model's."""

    def __init__(self, offer: StepOps, model: Any) -> None:
        self.ops, self.model = offer, model

    def new_pool(self, slots: int, capacity: int) -> Any:
        """Return fresh state for `slots` sequences of up to `capacity` tokens."""
        return self.model.new_pool(slots, capacity)

    def step(self, tokens: Sequence[int], rows: Any, pool: Any) -> Tensor:
        """Advance the rows and return logits f32[m, vocab]; raise `ValueError` if refused."""
        call = _build_call(self.model, tokens, rows, pool)
        try:
            answer = self.ops.step_call(call)
        except CallRefused as refused:
            if _can_run(self.model, tokens, rows, pool):
                raise_broken("law", f"a valid step was refused, the call {call.name}: {refused}")
            raise ValueError(str(refused)) from None
        for name, views in _state_views(pool).items():
            for slot, view in enumerate(views):
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
        """Clear a slot for a new sequence."""
        pool.slot(slot).clear()


def answer_step(engine: Any, rows_of: Callable[..., Any], call: Call) -> dict[str, Tensor]:
    """Answer a call of a step with an engine over the call's model.

    Raises `CallRefused` with the engine's message for a step that it refuses.
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
    after = [engine.read_state(pool, slot) for slot in range(int(call.facts["slots"]))]
    return {"logits": logits, **{name: torch.stack([state[name] for state in after])
                                 for name in states}}


def _build_call(model: Any, tokens: Sequence[int], rows: Any, pool: Any) -> Call:
    path = model.path
    if path is None:
        raise SuiteError("a program reads a step's weights from the model's file, but this model "
                         "has no file")
    indexes = {name: as_int32(values) for name, values in zip(
        INDEX_INPUTS, (tokens, rows.slots, rows.positions, rows.counts), strict=True)}
    states = {name: as_storable(torch.stack(views)) for name, views in _state_views(pool).items()}
    facts = {"model": path.name, "sha256": _file_digest(path), "slots": str(pool.slots),
             "capacity": str(pool.capacity)}
    outputs = {"logits": (len(rows.slots), model.config.vocab),
               **{name: tuple(x.shape) for name, x in states.items()}}
    return Call("step", f"m{len(rows.slots)}-t{len(tokens)}-s{pool.slots}", facts,
                {**indexes, **states}, outputs, (path,), refusable=True)


def _state_views(pool: Any) -> dict[str, list[Tensor]]:
    """Return a view of every slot's state tensors, by name."""
    every = [pool.slot(slot).named() for slot in range(pool.slots)]
    return {name: [named[name] for named in every] for name in every[0]}


def _can_run(model: Any, tokens: Sequence[int], rows: Any, pool: Any) -> bool:
    """Return whether a step is valid, so that refusing it is wrong."""
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
