"""Wrong attention by address: wrong slots, pads that write, new keys in wrong places."""

from __future__ import annotations

import torch

from phases.p6_batched_attention.wrong_attention import AttendCall


def pads_clamped_to_slot_zero(call: AttendCall) -> None:
    call.run_reference()
    for i, count in enumerate(call.counts):
        if not count:
            keys, values = call.keys.all_slots[0], call.values.all_slots[0]
            keys[call.lengths[i]], values[call.lengths[i]] = 0.0, 0.0


def pads_take_any_slot(call: AttendCall) -> None:
    call.run_reference()
    busy = {s for s, count in zip(call.keys.slots, call.counts, strict=True) if count}
    free = [s for s in range(len(call.keys.all_slots)) if s not in busy]
    for i, count in enumerate(call.counts):
        if not count and free:
            call.keys.all_slots[free[0], call.lengths[i]] = 0.0


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
    views = list(zip(call.keys.views, call.values.views, strict=True))  # a pad's slot has no view
    assert len(views) == len(call.counts)
    call.run_reference()


def appended_at_the_first_rows_length(call: AttendCall) -> None:
    call.run_reference()
    first = call.lengths[0]
    for row, length, _ in call.busy_rows():
        for cache in call.caches(row):
            if length != first < len(cache):
                cache[first] = cache[length]


def chunk_appends_its_last_only(call: AttendCall) -> None:
    old = call.keys.all_slots.clone(), call.values.all_slots.clone()
    call.run_reference()
    for row, length, count in call.busy_rows():
        lost = slice(length, length + count - 1)
        for cache, before in zip(call.caches(row), old, strict=True):
            cache[lost] = before[call.keys.slots[row], lost]


def values_stored_as_keys(call: AttendCall) -> None:
    call.run_reference()
    for row, length, count in call.busy_rows():
        keys, values = call.caches(row)
        keys[length:length + count] = values[length:length + count]


def appended_to_a_full_octet(call: AttendCall) -> None:
    call.run_reference()
    for row, length, count in call.busy_rows():
        reach = length + count
        for cache in call.caches(row):
            cache[reach:reach + -reach % 8] = 0.0


def chunks_cut_a_count_apart(call: AttendCall) -> None:
    t = len(call.q)
    starts = [min(i * max(call.counts), t - count) for i, count in enumerate(call.counts)]
    tokens = [s + j for s, count in zip(starts, call.counts, strict=True) for j in range(count)]
    call.run_reference(q=call.q[tokens])
