"""Wrong looped steps, each with one fault, and the falsifiers that must kill it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engine import ops
from engine.arithmetic import sigmoid
from engine.model import Model
from engine.path import Path, Rows, Sink, Step
from engine.state import Pool, Refs, State
from falsifiers.judging.subject import Builder, Subject
from falsifiers.mutation.wrong_steps import (
    chunks_from_zero,
    in_a_kept_buffer,
    in_slot_order,
    unchecked,
    wrap_step,
)
from phases.p1_looped_step.reference import step_rows

Args = tuple[Model, Pool, Sequence[int], Rows, "Sink | None"]


def _with_step(wrong: Step | type) -> Builder:
    """Return a builder that replaces the path's step; a class is instantiated for each subject."""
    def build(subject: Subject) -> Subject:
        step = wrong() if isinstance(wrong, type) else wrong
        return replace(subject, path=replace(subject.path, step_rows=step))

    return build


def _with_rows(change: Callable[[Rows, Pool], Rows]) -> Builder:
    """Return a builder whose step runs changed rows."""
    def wrong(path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
              sink: Sink | None) -> Tensor:
        return step_rows(path, model, pool, tokens, change(rows, pool), sink)

    return _with_step(wrong)


def _first_position_for_all(rows: Rows, pool: Pool) -> Rows:
    room = pool.capacity - max(rows.counts)
    return replace(rows, positions=(min(rows.positions[0], room),) * len(rows.positions))


def _longest_position(rows: Rows, pool: Pool) -> Rows:
    room = pool.capacity - max(rows.counts)
    return replace(rows, positions=(min(max(rows.positions), room),) * len(rows.positions))


class _ZeroOnChange:
    """Zeroes every state when the row list differs from the last step's (a reported workaround)."""

    def __init__(self) -> None:
        self.last: tuple[int, ...] = ()

    def __call__(self, path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                 sink: Sink | None) -> Tensor:
        if rows.slots != self.last:
            for slot in rows.slots:
                pool.slot(slot).clear()
        self.last = rows.slots
        return step_rows(path, model, pool, tokens, rows, sink)


def _write_slot_zero(path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                     sink: Sink | None) -> Tensor:
    logits = step_rows(path, model, pool, tokens, rows, sink)
    pool.slot(rows.slots[-1]).copy_to(pool.slot(0))
    return logits


class _PositionsByRow:
    """Counts positions by row from call to call and ignores those of the step."""

    def __init__(self) -> None:
        self.next_positions: tuple[int, ...] = ()

    def __call__(self, path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                 sink: Sink | None) -> Tensor:
        positions = self.next_positions
        if len(positions) != len(rows.slots):
            positions = rows.positions
        positions = tuple(min(p, pool.capacity - c)
                          for p, c in zip(positions, rows.counts, strict=True))
        self.next_positions = tuple(p + c for p, c in zip(positions, rows.counts, strict=True))
        return step_rows(path, model, pool, tokens, replace(rows, positions=positions), sink)


class _AdvanceSoloRows:
    """Counts each slot's tokens itself, and only in steps of one row."""

    def __init__(self) -> None:
        self.positions: dict[int, int] = {}

    def __call__(self, path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                 sink: Sink | None) -> Tensor:
        for slot, position in zip(rows.slots, rows.positions, strict=True):
            self.positions[slot] = self.positions.get(slot, position) if position else 0
        positions = tuple(self.positions[slot] for slot in rows.slots)
        if len(rows.slots) == 1:
            self.positions[rows.slots[0]] += rows.counts[0]
        return step_rows(path, model, pool, tokens, replace(rows, positions=positions), sink)


def _one_position_per_chunk(path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                            sink: Sink | None) -> Tensor:
    logits = []
    for slot, position, chunk in rows.spans(tokens):
        for token in chunk:
            last = model.forward_single(token, pool.slot(slot), position, sink)
        logits.append(last)
    return torch.stack(logits)


def _cursor_in_units(path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                     sink: Sink | None) -> Tensor:
    logits, at = [], 0
    for slot, position, count in zip(rows.slots, rows.positions, rows.counts, strict=True):
        logits.append(model.prefill(tokens[at:at + count], pool.slot(slot), position, sink))
        at += count // 4 * 4 if count > 1 else 1
    return torch.stack(logits)


def _with_clear(clear: Callable[[State], None]) -> Builder:
    """Return a builder whose pools clear a slot by `clear`."""
    class OddState(State):
        def clear(self) -> None:
            clear(self)

    class OddPool(Pool):
        def slot(self, index: int) -> State:
            return OddState(self, super().slot(index).index)

    class OddModel(Model):
        def new_pool(self, slots: int, capacity: int) -> Pool:
            return OddPool(self.config, slots, capacity)

    def build(subject: Subject) -> Subject:
        def models(name: str) -> Model:
            m = subject.models(name)
            return OddModel(m.config, m.weights, m.rope, m.ops, m.path)

        return replace(subject, models=models)

    return build


def _clear_only(kind: str) -> Callable[[State], None]:
    def clear(state: State) -> None:
        for tensor in getattr(state.pool, kind).values():
            tensor[state.index].zero_()

    return clear


def _clear_at_first_chunk(path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                          sink: Sink | None) -> Tensor:
    for slot, position, chunk in rows.spans(tokens):
        if position == 0 and len(chunk) > 1:
            State(pool, slot).clear()
    return step_rows(path, model, pool, tokens, rows, sink)


def _skip_one_token_clear(subject: Subject) -> Subject:
    return _with_step(_clear_at_first_chunk)(_with_clear(lambda state: None)(subject))


def _with_ops(**wrong: Any) -> Builder:
    """Return a builder whose steps run other ops; `forward_single` keeps the right ones."""
    def step(path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
             sink: Sink | None) -> Tensor:
        other = replace(model, ops=replace(model.ops, **wrong))
        return step_rows(path, other, pool, tokens, rows, sink)

    return _with_step(step)


def _attend_one_key_more(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, keys: Refs, values: Refs,
                         lengths: tuple[int, ...], counts: tuple[int, ...], out: Tensor) -> None:
    ops.attend(q, k, v, gate, keys, values, lengths, counts, out)
    n = lengths[0] + 2
    out.copy_(ops.attend_one(q[0], keys.views[0][:n], values.views[0][:n])
              * sigmoid(gate[0]))


def _delta_step_bfloat16(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, states: Refs,
                         counts: tuple[int, ...], out: Tensor) -> None:
    ops.delta_step(q, k, v, g, beta, states, counts, out)
    states.views[0].copy_(states.views[0].bfloat16().float())


def _ordered_above_one_row(path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                           sink: Sink | None) -> Tensor:
    if len(rows.slots) > 1:
        model = model.with_arithmetic("ordered")
    return step_rows(path, model, pool, tokens, rows, sink)


def _copy_odd_tail(path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                   sink: Sink | None) -> Tensor:
    logits = step_rows(path, model, pool, tokens, rows, sink)
    if len(logits) > 1 and len(logits) % 2:
        logits[-1] = logits[-2]
    return logits


def _roll_logits(path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                 sink: Sink | None) -> Tensor:
    return step_rows(path, model, pool, tokens, rows, sink).roll(1, 0)


def _wrap_indices(path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                  sink: Sink | None) -> Tensor:
    tokens = [t % model.config.vocab for t in tokens]
    slots = tuple(s % pool.slots for s in rows.slots)
    positions = tuple(p % pool.capacity for p in rows.positions)
    return step_rows(path, model, pool, tokens, Rows(slots, positions, rows.counts), sink)


def _run_rows_twice(path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                    sink: Sink | None) -> Tensor:
    slots = [pool.slot(slot) for slot in rows.slots]
    before = [{name: view.clone() for name, view in slot.named().items()} for slot in slots]
    step_rows(path, model, pool, tokens, rows, sink)
    for slot, tensors in zip(slots, before, strict=True):
        for name, view in slot.named().items():
            view.copy_(tensors[name])
    return step_rows(path, model, pool, tokens, rows, sink)


MUTANTS: dict[str, Builder] = {
    "one_state_for_all_rows": _with_rows(
        lambda rows, pool: replace(rows, slots=(0,) * len(rows.slots))
    ),
    "row_index_is_the_slot": _with_rows(
        lambda rows, pool: replace(rows, slots=tuple(range(len(rows.slots))))
    ),
    "rows_in_slot_order": wrap_step(in_slot_order),
    "states_zeroed_when_rows_change": _with_step(_ZeroOnChange),
    "state_written_to_the_first_slot_too": _with_step(_write_slot_zero),
    "position_of_the_first_row_for_all": _with_rows(_first_position_for_all),
    "position_of_the_last_call": _with_step(_PositionsByRow),
    "position_held_still_in_a_batch": _with_step(_AdvanceSoloRows),
    "chunk_tokens_share_a_position": _with_step(_one_position_per_chunk),
    "chunk_starts_from_zero_state": wrap_step(chunks_from_zero),
    "row_cursor_rounded_to_a_unit": _with_step(_cursor_in_units),
    "one_token_prompt_not_cleared": _skip_one_token_clear,
    "conv_window_not_cleared": _with_clear(_clear_only("delta")),
    "recurrent_state_not_cleared": _with_clear(_clear_only("conv")),
    "key_past_the_length_is_read": _with_ops(attend=_attend_one_key_more),
    "other_arithmetic_above_one_row": _with_step(_ordered_above_one_row),
    "recurrent_state_rounded_to_bfloat16": _with_ops(delta_step=_delta_step_bfloat16),
    "last_row_of_an_odd_batch_copied": _with_step(_copy_odd_tail),
    "logits_of_the_last_call": wrap_step(in_a_kept_buffer),
    "logits_rolled_by_one_row": _with_step(_roll_logits),
    "longest_row_sets_the_length": _with_rows(_longest_position),
    "checked_row_by_row": unchecked,
    "nothing_is_checked": lambda subject: unchecked(_with_step(_wrap_indices)(subject)),
    "row_worked_twice": _with_step(_run_rows_twice),
}
