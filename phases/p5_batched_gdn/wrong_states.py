"""Wrong ops with state: slots, rows, chunks and pads taken for one another, for both ops alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from engine.op_table import Op as OpWithKernels
from engine.state import Refs
from falsifiers.judging.subject import Subject
from phases.p5_batched_gdn import reference

Builder = Callable[[Subject], Subject]
Op = Callable[..., None]
Counts = tuple[int, ...]
STATEFUL_OPS = ("conv_step", "delta_step")


def with_ops(**wrong: Op) -> Builder:
    """Return a builder that gives the subject's path other ops."""
    def build(subject: Subject) -> Subject:
        return replace(subject, path=replace(subject.path, **wrong))

    return build


def with_kernel(name: str, wrong: Op) -> Builder:
    """Return a builder whose op is right but for its portable kernel."""
    own = getattr(reference, name)
    return with_ops(**{name: OpWithKernels(own, triton=wrong, cuda=own)})


def with_stateful_ops(change: Callable[..., Any], *names: str) -> Builder:
    """Return a builder whose ops with state go through `change(right, args)`, made anew if a class.

    Args end in refs, counts and out.
    """
    def build(subject: Subject) -> Subject:
        ops = {}
        for name in names or STATEFUL_OPS:
            made = change() if isinstance(change, type) else change
            ops[name] = partial(_apply_change, made, getattr(reference, name))
        return replace(subject, path=replace(subject.path, **ops))

    return build


def _apply_change(change: Callable[..., None], right: Op, *args: Any) -> None:
    change(right, *args)


def with_slots(change: Callable[[Refs, Counts], tuple[int, ...]]) -> Builder:
    """Return a builder whose ops work on other slots than they are given."""
    def wrong(right: Op, *args: Any) -> None:
        *given, refs, counts, out = args
        right(*given, Refs(refs.whole, change(refs, counts)), counts, out)

    return with_stateful_ops(wrong)


def row_numbers(refs: Refs, counts: Counts) -> tuple[int, ...]:
    return tuple(range(len(counts)))


def first_slot_for_all(refs: Refs, counts: Counts) -> tuple[int, ...]:
    return refs.slots[:1] * len(counts)


def sorted_slots(refs: Refs, counts: Counts) -> tuple[int, ...]:
    return tuple(sorted(refs.slots))


def slots_side_by_side(refs: Refs, counts: Counts) -> tuple[int, ...]:
    return tuple((refs.slots[0] + row) % len(refs.whole) for row in range(len(counts)))


def row_starts(counts: Counts) -> list[int]:
    return [sum(counts[:row]) for row in range(len(counts))]


def run_row(right: Op, given: list[Any], refs: Refs, counts: Counts, out: Tensor,
            row: int, first: int = 0, count: int | None = None) -> None:
    """Run some tokens of one row alone; what has a token axis is cut, taps are not."""
    start, tokens = row_starts(counts)[row] + first, sum(counts)
    count = counts[row] - first if count is None else count
    cut = [x[start:start + count] if len(x) == tokens else x for x in given]
    right(*cut, Refs(refs.whole, refs.slots[row:row + 1]), (count,), out[start:start + count])


def first_token_saved(right: Op, *args: Any) -> None:
    *given, refs, counts, out = args
    for row, count in enumerate(counts):
        if count:
            run_row(right, given, refs, counts, out, row, 0, 1)
            held = refs.views[row].clone()
            run_row(right, given, refs, counts, out, row, 1)
            refs.views[row].copy_(held)


def last_token_not_saved(right: Op, *args: Any) -> None:
    *given, refs, counts, out = args
    for row, count in enumerate(counts):
        if count:
            run_row(right, given, refs, counts, out, row, 0, count - 1)
            held = refs.views[row].clone()
            run_row(right, given, refs, counts, out, row, count - 1)
            refs.views[row].copy_(held)


def saved_in_the_next_slot(right: Op, *args: Any) -> None:
    *given, refs, counts, out = args
    held = [refs.whole[slot].clone() for slot in refs.slots]
    right(*given, refs, counts, out)
    for slot, state in zip(refs.slots, held, strict=True):
        refs.whole[(slot + 1) % len(refs.whole)].copy_(refs.whole[slot])
        refs.whole[slot].copy_(state)


def zero_rows(refs: Refs, rows: list[int]) -> None:
    for row in rows:
        refs.whole[refs.slots[row]].zero_()


def chunks_from_zero(right: Op, *args: Any) -> None:
    *_, refs, counts, _ = args
    zero_rows(refs, [row for row, count in enumerate(counts) if count > 1])
    right(*args)


def single_tokens_from_zero(right: Op, *args: Any) -> None:
    *_, refs, counts, _ = args
    zero_rows(refs, [row for row, count in enumerate(counts) if count == 1])
    right(*args)


def all_from_zero_beside_a_chunk(right: Op, *args: Any) -> None:
    *_, refs, counts, _ = args
    if max(counts) > 1:
        zero_rows(refs, [row for row, count in enumerate(counts) if count])
    right(*args)


class ShadowState:
    """Keeps a copy of what it wrote by slot, and trusts it for rows of at most so many tokens."""

    max_tokens = 1

    def __init__(self) -> None:
        self.saved_states: dict[tuple[int, int], Tensor] = {}

    def __call__(self, right: Op, *args: Any) -> None:
        *_, refs, counts, _ = args
        busy = [(refs.slots[row], count) for row, count in enumerate(counts) if count]
        for slot, count in busy:
            kept = self.saved_states.get((refs.whole.data_ptr(), slot))
            if kept is not None and count <= self.max_tokens:
                refs.whole[slot].copy_(kept)
        right(*args)
        for slot, _ in busy:
            self.saved_states[refs.whole.data_ptr(), slot] = refs.whole[slot].clone()


class ShadowAllTokens(ShadowState):
    max_tokens = 1 << 30


def pad_to_the_longest(right: Op, *args: Any) -> None:
    *given, refs, counts, out = args
    for row, count in enumerate(counts):
        for _ in range(max(counts) - count if count else 0):
            run_row(right, given, refs, counts, out, row, count - 1)
        if count:
            held = refs.views[row].clone()
            run_row(right, given, refs, counts, out, row)
            if count < max(counts):
                refs.views[row].copy_(held)


def continues_the_row_before(right: Op, *args: Any) -> None:
    *given, refs, counts, out = args
    before = None
    for row, count in enumerate(counts):
        if count:
            if before is not None and count > 1:
                refs.views[row].copy_(before)
            run_row(right, given, refs, counts, out, row)
            before = refs.views[row].clone()


def outputs_a_longest_apart(right: Op, *args: Any) -> None:
    *given, refs, counts, out = args
    made = torch.empty(out.shape)
    right(*given, refs, counts, made)
    for row, (start, count) in enumerate(zip(row_starts(counts), counts, strict=True)):
        at = min(row * max(counts), len(out) - count)
        out[at:at + count] = made[start:start + count]


def _advance_pads(right: Op, args: Any, slot_of: Callable[[Refs, int], int]) -> None:
    """Advance a row without tokens by the batch's first token, on some slot."""
    *given, refs, counts, out = args
    right(*args)
    tokens = sum(counts)
    for row, count in enumerate(counts):
        if not count:
            one = [x[:1] if len(x) == tokens else x for x in given]
            right(*one, Refs(refs.whole, (slot_of(refs, row),)), (1,), torch.empty(out[:1].shape))


def pads_work_on_their_slot(right: Op, *args: Any) -> None:
    _advance_pads(right, args, lambda refs, row: refs.slots[row])


def pads_work_on_the_last_slot(right: Op, *args: Any) -> None:
    *_, refs, counts, _ = args
    busy = [refs.slots[row] for row, count in enumerate(counts) if count]
    _advance_pads(right, args, lambda refs, row: busy[-1])


def pads_work_on_slot_zero(right: Op, *args: Any) -> None:
    _advance_pads(right, args, lambda refs, row: 0)


def idle_slots_age(right: Op, *args: Any) -> None:
    *_, refs, _, _ = args
    held = refs.whole.clone()
    refs.whole.mul_(0.999)
    for slot in refs.slots:
        refs.whole[slot].copy_(held[slot])
    right(*args)


def mask_by_zeros(right: Op, *args: Any) -> None:
    *given, refs, counts, out = args
    right(*given, refs, counts, out)
    rows = torch.stack(refs.views)
    for row, slot in enumerate(refs.slots):
        mask = torch.zeros(len(rows))
        mask[row] = 1.0
        refs.whole[slot].copy_((rows * mask.view(-1, *(1,) * (rows.dim() - 1))).sum(0))


class RoundEveryHundred:
    """Rounds states through bfloat16 at every hundredth call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, right: Op, *args: Any) -> None:
        *_, refs, counts, _ = args
        right(*args)
        self.calls += 1
        if self.calls % 100 == 0:
            for slot, count in zip(refs.slots, counts, strict=True):
                if count:
                    refs.whole[slot].copy_(refs.whole[slot].bfloat16().float())


def offset_of_32_bits(right: Op, *args: Any) -> None:
    *given, refs, counts, out = args
    size, flat = refs.whole[0].numel(), refs.whole.view(-1)
    offsets = [(slot * size + 2**31) % 2**32 - 2**31 for slot in refs.slots]
    held = torch.stack([flat[max(at, 0):max(at, 0) + size] for at in offsets])
    right(*given, Refs(held.view(-1, *refs.whole.shape[1:]), tuple(range(len(counts)))), counts,
          out)
    for at, state in zip(offsets, held, strict=True):
        flat[max(at, 0):max(at, 0) + size] = state
