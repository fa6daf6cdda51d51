"""Wrong attention by address: slots, pads and places of new keys taken for one another."""

from __future__ import annotations

from dataclasses import replace

import torch

from phases.p6_batched_attention.wrong_attention import AttendCall


def slot_by_the_row(call: AttendCall) -> None:
    slots = tuple(i if count else s
                  for i, (s, count) in enumerate(zip(call.keys.slots, call.counts, strict=True)))
    call.run_reference(
        keys=replace(call.keys, slots=slots), values=replace(call.values, slots=slots)
    )


def offset_added_twice(call: AttendCall) -> None:
    room = len(call.keys.whole)
    slots = tuple(2 * s % room if count else s
                  for s, count in zip(call.keys.slots, call.counts, strict=True))
    call.run_reference(
        keys=replace(call.keys, slots=slots), values=replace(call.values, slots=slots)
    )


def values_of_the_next_slot(call: AttendCall) -> None:
    room = len(call.values.whole)
    slots = tuple((s + 1) % room if count else s
                  for s, count in zip(call.values.slots, call.counts, strict=True))
    call.run_reference(values=replace(call.values, slots=slots))


def rows_in_slot_order(call: AttendCall) -> None:
    order = sorted(range(len(call.counts)), key=lambda i: call.keys.slots[i])
    slots = tuple(call.keys.slots[i] for i in order)
    call.run_reference(
        keys=replace(call.keys, slots=slots), values=replace(call.values, slots=slots)
    )


def pads_clamped_to_slot_zero(call: AttendCall) -> None:
    call.run_reference()
    for i, count in enumerate(call.counts):
        if not count:
            keys, values = call.keys.whole[0], call.values.whole[0]
            keys[call.lengths[i]], values[call.lengths[i]] = 0.0, 0.0


def pads_take_any_slot(call: AttendCall) -> None:
    call.run_reference()
    busy = {s for s, count in zip(call.keys.slots, call.counts, strict=True) if count}
    free = [s for s in range(len(call.keys.whole)) if s not in busy]
    for i, count in enumerate(call.counts):
        if not count and free:
            call.keys.whole[free[0], call.lengths[i]] = 0.0


def pads_take_the_last_token(call: AttendCall) -> None:
    call.run_reference()
    if not all(call.counts) and len(call.out):
        call.out[-1] = call.out[-1] * 0.0


def pads_shift_the_rows_behind(call: AttendCall) -> None:
    lengths = [length for length, count in zip(call.lengths, call.counts, strict=True) if count]
    spare = [0] * (len(call.lengths) - len(lengths))
    call.run_reference(lengths=[*spare, *lengths])


def empty_row_divides_by_zero(call: AttendCall) -> None:
    call.run_reference()
    if not all(call.counts):
        call.out.copy_(call.out / torch.zeros_like(call.out) * 0.0 + call.out)


def pad_slots_are_looked_up(call: AttendCall) -> None:
    views = list(zip(call.keys.views, call.values.views, strict=True))  # pads have none
    assert len(views) == len(call.counts)
    call.run_reference()


def appended_at_the_first_rows_length(call: AttendCall) -> None:
    call.run_reference()
    first = call.lengths[0]
    for row, (length, count) in enumerate(zip(call.lengths, call.counts, strict=True)):
        if count and length != first:
            for cache in call.caches(row):
                if first < len(cache):
                    cache[first] = cache[length]


def chunk_appends_its_last_only(call: AttendCall) -> None:
    held = call.keys.whole.clone(), call.values.whole.clone()
    call.run_reference()
    for row, (length, count) in enumerate(zip(call.lengths, call.counts, strict=True)):
        if count > 1:
            for cache, old in zip(call.caches(row), held, strict=True):
                cache[length:length + count - 1] = old[call.keys.slots[row],
                                                       length:length + count - 1]


def values_stored_as_keys(call: AttendCall) -> None:
    call.run_reference()
    for row, (length, count) in enumerate(zip(call.lengths, call.counts, strict=True)):
        if count:
            keys, values = call.caches(row)
            keys[length:length + count] = values[length:length + count]


def appended_to_a_full_octet(call: AttendCall) -> None:
    call.run_reference()
    for row, (length, count) in enumerate(zip(call.lengths, call.counts, strict=True)):
        if count:
            for cache in call.caches(row):
                cache[length + count:length + count + -(length + count) % 8] = 0.0


def chunks_cut_a_count_apart(call: AttendCall) -> None:
    t = len(call.q)
    starts = [min(i * max(call.counts), t - count) for i, count in enumerate(call.counts)]
    own = [s + j for s, count in zip(starts, call.counts, strict=True) for j in range(count)]
    call.run_reference(q=call.q[own])
