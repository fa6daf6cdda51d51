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
from falsifiers.judging.subject import Mutant, Subject
from falsifiers.mutation.wrong_steps import (
    chunks_from_zero,
    in_a_kept_buffer,
    in_slot_order,
    unchecked,
    wrapped,
)
from phases.p1_looped_step.reference import step_rows

Args = tuple[Model, Pool, Sequence[int], Rows, "Sink | None"]


def _with_step(wrong: Step | type) -> Callable[[Subject], Subject]:
    """Return a builder that gives the subject's path another step, made anew if it keeps state."""
    def build(subject: Subject) -> Subject:
        step = wrong() if isinstance(wrong, type) else wrong
        return replace(subject, path=replace(subject.path, step_rows=step))

    return build


def _with_rows(change: Callable[[Rows, Pool], Rows]) -> Callable[[Subject], Subject]:
    """Return a builder whose step runs other rows than it was asked to."""
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
    """Zeroes every state when the row list is not that of the last step (a reported cure)."""

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
    """Keeps positions by row from call to call and never looks at those it is given."""

    def __init__(self) -> None:
        self.next_positions: tuple[int, ...] = ()

    def __call__(self, path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                 sink: Sink | None) -> Tensor:
        held = (
            self.next_positions if len(self.next_positions) == len(rows.slots) else rows.positions
        )
        held = tuple(min(p, pool.capacity - c) for p, c in zip(held, rows.counts, strict=True))
        self.next_positions = tuple(p + c for p, c in zip(held, rows.counts, strict=True))
        return step_rows(path, model, pool, tokens, replace(rows, positions=held), sink)


class _AdvanceSoloRows:
    """Counts each slot's tokens itself, and only where a row is worked alone."""

    def __init__(self) -> None:
        self.positions: dict[int, int] = {}

    def __call__(self, path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                 sink: Sink | None) -> Tensor:
        for slot, position in zip(rows.slots, rows.positions, strict=True):
            self.positions[slot] = self.positions.get(slot, position) if position else 0
        held = tuple(self.positions[slot] for slot in rows.slots)
        if len(rows.slots) == 1:
            self.positions[rows.slots[0]] += rows.counts[0]
        return step_rows(path, model, pool, tokens, replace(rows, positions=held), sink)


def _one_position_per_chunk(path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                          sink: Sink | None) -> Tensor:
    logits = []
    for slot, position, own in rows.spans(tokens):
        for token in own:
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


def _with_clear(clear: Callable[[State], None]) -> Callable[[Subject], Subject]:
    """Return a builder whose pools clear a slot in another way."""
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
        for whole in getattr(state.pool, kind).values():
            whole[state.index].zero_()

    return clear


def _clear_at_first_chunk(path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                            sink: Sink | None) -> Tensor:
    for slot, position, own in rows.spans(tokens):
        if position == 0 and len(own) > 1:
            State(pool, slot).clear()
    return step_rows(path, model, pool, tokens, rows, sink)


def _skip_one_token_clear(subject: Subject) -> Subject:
    return _with_step(_clear_at_first_chunk)(_with_clear(lambda state: None)(subject))


def _with_ops(**wrong: Any) -> Callable[[Subject], Subject]:
    """Return a builder whose models run other ops inside a step, not in the oracle's peer."""
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
    for slot, held in zip(slots, before, strict=True):
        for name, view in slot.named().items():
            view.copy_(held[name])
    return step_rows(path, model, pool, tokens, rows, sink)


STREAMS, SLOTS = "streams_equal_solo", "slots_do_not_matter"
MEMBERS, RECYCLED = "membership_may_change_every_step", "recycled_slot_is_fresh"
CHUNKS, NEIGHBOURS = "chunks_equal_steps", "neighbours_cannot_reach_a_row"
REFUSALS, REPEATS = "refusals_change_nothing", "repeats_are_equal"
ORACLE, ROWS_ONCE = "alone_equals_oracle", "each_row_is_worked_once"

MUTANTS = (
    Mutant(
        "one_state_for_all_rows",
        "Every row runs on slot 0's state.",
        (STREAMS, SLOTS, ROWS_ONCE),
        _with_rows(lambda rows, pool: replace(rows, slots=(0,) * len(rows.slots))),
        "B036",
    ),
    Mutant(
        "row_index_is_the_slot",
        "Row i runs on slot i, whatever slot it names.",
        (SLOTS, ROWS_ONCE),
        _with_rows(lambda rows, pool: replace(rows, slots=tuple(range(len(rows.slots))))),
    ),
    Mutant(
        "rows_in_slot_order",
        "Rows are worked and returned in the order of their slots.",
        (MEMBERS, CHUNKS),
        wrapped(in_slot_order),
    ),
    Mutant(
        "states_zeroed_when_rows_change",
        "States are zeroed when the row list changes.",
        (MEMBERS,),
        _with_step(_ZeroOnChange),
        "B037",
    ),
    Mutant(
        "state_written_to_the_first_slot_too",
        "A pad row clamped to slot 0 writes it.",
        (SLOTS, MEMBERS),
        _with_step(_write_slot_zero),
        "B194",
    ),
    Mutant(
        "position_of_the_first_row_for_all",
        "Row 0's position turns every row.",
        (STREAMS, NEIGHBOURS),
        _with_rows(_first_position_for_all),
        "B155",
    ),
    Mutant(
        "position_of_the_last_call",
        "Positions are kept by row and not by slot.",
        (MEMBERS,),
        _with_step(_PositionsByRow),
        "B152",
    ),
    Mutant(
        "position_held_still_in_a_batch",
        "Only a row that is worked alone moves on.",
        (STREAMS, MEMBERS),
        _with_step(_AdvanceSoloRows),
        "B038",
    ),
    Mutant(
        "chunk_tokens_share_a_position",
        "All tokens of a chunk get the first one's position.",
        (CHUNKS,),
        _with_step(_one_position_per_chunk),
        "B154",
    ),
    Mutant(
        "chunk_starts_from_zero_state",
        "A chunk of several tokens ignores the state it finds.",
        (CHUNKS,),
        wrapped(chunks_from_zero),
        "B113",
    ),
    Mutant(
        "row_cursor_rounded_to_a_unit",
        "The row cursor advances by whole units of 4 tokens.",
        (CHUNKS,),
        _with_step(_cursor_in_units),
        "B034",
    ),
    Mutant(
        "one_token_prompt_not_cleared",
        "A first chunk of one token trusts what the slot holds.",
        (RECYCLED,),
        _skip_one_token_clear,
        "B109",
    ),
    Mutant(
        "conv_window_not_cleared",
        "Clearing a slot leaves its conv window.",
        (RECYCLED,),
        _with_clear(_clear_only("delta")),
        "B110",
    ),
    Mutant(
        "recurrent_state_not_cleared",
        "Clearing a slot leaves its recurrent state.",
        (RECYCLED,),
        _with_clear(_clear_only("conv")),
    ),
    Mutant(
        "key_past_the_length_is_read",
        "Attention reads one key past the sequence.",
        (RECYCLED, ORACLE),
        _with_ops(attend=_attend_one_key_more),
        "B143",
    ),
    Mutant(
        "other_arithmetic_above_one_row",
        "More than one row switches to another product.",
        (STREAMS, NEIGHBOURS),
        _with_step(_ordered_above_one_row),
        "B106",
    ),
    Mutant(
        "recurrent_state_rounded_to_bfloat16",
        "The recurrent state is kept in bfloat16.",
        (ORACLE,),
        _with_ops(delta_step=_delta_step_bfloat16),
        "B124",
    ),
    Mutant(
        "last_row_of_an_odd_batch_copied",
        "The last row of an odd batch repeats its neighbour.",
        (STREAMS,),
        _with_step(_copy_odd_tail),
        "B077",
    ),
    Mutant(
        "logits_of_the_last_call",
        "Logits come in a buffer that the next step reuses.",
        (REPEATS,),
        wrapped(in_a_kept_buffer),
    ),
    Mutant(
        "logits_rolled_by_one_row",
        "Each row gets its neighbour's logits.",
        (STREAMS, MEMBERS),
        _with_step(_roll_logits),
    ),
    Mutant(
        "longest_row_sets_the_length",
        "The longest row's position is used for all.",
        (STREAMS, NEIGHBOURS),
        _with_rows(_longest_position),
        "B158",
    ),
    Mutant(
        "checked_row_by_row",
        "Each row is checked when its turn comes, after others wrote.",
        (REFUSALS,),
        unchecked,
    ),
    Mutant(
        "nothing_is_checked",
        "Bad values wrap round instead of being refused.",
        (REFUSALS,),
        lambda subject: unchecked(_with_step(_wrap_indices)(subject)),
    ),
    Mutant(
        "row_worked_twice",
        "Every row is worked a second time, from the state it had.",
        (ROWS_ONCE,),
        _with_step(_run_rows_twice),
    ),
)
