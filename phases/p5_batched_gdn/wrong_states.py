"""Wrong ops with state, for both ops alike: slots, rows, chunks and pads mistaken for others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from engine.op_table import Op as OpWithKernels
from engine.state import Refs
from falsifiers.judging.subject import Builder, Subject
from phases.p5_batched_gdn import reference
from phases.wrong_refs import Op, RefsChange, with_ops

STATEFUL_OPS = ("conv_step", "delta_step")


@dataclass
class StatefulCall:
    """The operands of one call of an op with state, and the right op."""

    right: Op
    inputs: list[Any]
    refs: Refs
    counts: tuple[int, ...]
    out: Tensor

    def run(self, refs: Refs | None = None, out: Tensor | None = None) -> None:
        """Run the right op, over other states or into another output if they are given."""
        self.right(*self.inputs, self.refs if refs is None else refs, self.counts,
                   self.out if out is None else out)

    @cached_property
    def starts(self) -> list[int]:
        """Where each row's tokens begin."""
        return [sum(self.counts[:row]) for row in range(len(self.counts))]

    @property
    def busy(self) -> list[int]:
        """Rows with tokens."""
        return [row for row, count in enumerate(self.counts) if count]

    def state(self, row: int) -> Tensor:
        """Return a view of a row's state."""
        return self.refs.all_slots[self.refs.slots[row]]

    def cut(self, start: int, count: int) -> list[Any]:
        """Return the inputs of some tokens; taps have no token axis and stay as they are."""
        return [x[start:start + count] if len(x) == sum(self.counts) else x for x in self.inputs]

    def run_row(self, row: int, first: int = 0, count: int | None = None) -> None:
        """Run `count` tokens of one row from its token `first`, by default the rest of them."""
        start = self.starts[row] + first
        count = self.counts[row] - first if count is None else count
        self.right(*self.cut(start, count), Refs(self.refs.all_slots, self.refs.slots[row:row + 1]),
                   (count,), self.out[start:start + count])


Change = Callable[[StatefulCall], None]


def with_kernel(name: str, wrong: Op) -> Builder:
    """Return a builder whose op is right except for its portable kernel."""
    right = getattr(reference, name)
    return with_ops(**{name: OpWithKernels(right, triton=wrong, cuda=right)})


def with_stateful_ops(change: Change | type, *names: str) -> Builder:
    """Return a builder whose ops with state run as `change(call)`; each op has its own instance."""
    def wrap(name: str) -> Op:
        run = change() if isinstance(change, type) else change

        def op(*args: Any) -> None:
            *inputs, refs, counts, out = args
            run(StatefulCall(getattr(reference, name), inputs, refs, counts, out))

        return op

    def build(subject: Subject) -> Subject:
        ops: dict[str, Any] = {name: wrap(name) for name in names or STATEFUL_OPS}
        return replace(subject, path=replace(subject.path, **ops))

    return build


def with_slots(change: RefsChange) -> Builder:
    """Return a builder whose ops work on other slots than the call names."""
    return with_stateful_ops(lambda call: call.run(change(call.refs, call.counts)))


def _saved_after(tokens: Callable[[int], int]) -> Change:
    """Return an op that saves each row's state after `tokens(count)` of its tokens."""
    def change(call: StatefulCall) -> None:
        for row in call.busy:
            first = tokens(call.counts[row])
            call.run_row(row, 0, first)
            saved = call.state(row).clone()
            call.run_row(row, first)
            call.state(row).copy_(saved)

    return change


first_token_saved = _saved_after(lambda count: 1)
last_token_not_saved = _saved_after(lambda count: count - 1)


def _from_zero(forgets: Callable[[int, tuple[int, ...]], bool]) -> Change:
    """Return an op that clears the state of each row for which `forgets(count, counts)`."""
    def change(call: StatefulCall) -> None:
        for row in call.busy:
            if forgets(call.counts[row], call.counts):
                call.state(row).zero_()
        call.run()

    return change


chunks_from_zero = _from_zero(lambda count, counts: count > 1)
single_tokens_from_zero = _from_zero(lambda count, counts: count == 1)
all_from_zero_beside_a_chunk = _from_zero(lambda count, counts: max(counts) > 1)


def saved_in_the_next_slot(call: StatefulCall) -> None:
    states, slots = call.refs.all_slots, call.refs.slots
    old = [states[slot].clone() for slot in slots]
    call.run()
    for slot, state in zip(slots, old, strict=True):
        states[(slot + 1) % len(states)].copy_(states[slot])
        states[slot].copy_(state)


class ShadowState:
    """Keeps a copy of the state it wrote by slot, and uses it for rows of few tokens."""

    max_tokens = 1

    def __init__(self) -> None:
        self.copies: dict[tuple[int, int], Tensor] = {}

    def __call__(self, call: StatefulCall) -> None:
        keys = {row: (call.refs.all_slots.data_ptr(), call.refs.slots[row]) for row in call.busy}
        for row, key in keys.items():
            if key in self.copies and call.counts[row] <= self.max_tokens:
                call.state(row).copy_(self.copies[key])
        call.run()
        for row, key in keys.items():
            self.copies[key] = call.state(row).clone()


class ShadowAllTokens(ShadowState):
    max_tokens = 1 << 30


def pad_to_the_longest(call: StatefulCall) -> None:
    longest = max(call.counts)
    for row in call.busy:
        count = call.counts[row]
        for _ in range(longest - count):
            call.run_row(row, count - 1)
        padded = call.state(row).clone()
        call.run_row(row)
        if count < longest:
            call.state(row).copy_(padded)


def continues_the_row_before(call: StatefulCall) -> None:
    before = None
    for row in call.busy:
        if before is not None and call.counts[row] > 1:
            call.state(row).copy_(before)
        call.run_row(row)
        before = call.state(row).clone()


def outputs_a_longest_apart(call: StatefulCall) -> None:
    right = torch.empty(call.out.shape)
    call.run(out=right)
    for row, (start, count) in enumerate(zip(call.starts, call.counts, strict=True)):
        at = min(row * max(call.counts), len(right) - count)
        call.out[at:at + count] = right[start:start + count]


def _pads_advance(slot_of: Callable[[StatefulCall, int], int]) -> Change:
    """Return an op that advances each pad by the batch's first token, on the slot `slot_of`."""
    def change(call: StatefulCall) -> None:
        call.run()
        for row, count in enumerate(call.counts):
            if not count:
                call.right(*call.cut(0, 1), Refs(call.refs.all_slots, (slot_of(call, row),)), (1,),
                           torch.empty(call.out[:1].shape))

    return change


pads_work_on_their_slot = _pads_advance(lambda call, row: call.refs.slots[row])
pads_work_on_the_last_slot = _pads_advance(lambda call, row: call.refs.slots[call.busy[-1]])
pads_work_on_slot_zero = _pads_advance(lambda call, row: 0)


def idle_slots_age(call: StatefulCall) -> None:
    old = call.refs.all_slots.clone()
    call.refs.all_slots.mul_(0.999)
    for slot in call.refs.slots:
        call.refs.all_slots[slot].copy_(old[slot])
    call.run()


def mask_by_zeros(call: StatefulCall) -> None:
    call.run()
    rows = torch.stack(call.refs.views)
    for row in range(len(rows)):
        mask = torch.zeros(len(rows))
        mask[row] = 1.0
        call.state(row).copy_((rows * mask.view(-1, *(1,) * (rows.dim() - 1))).sum(0))


class RoundEveryHundred:
    """Rounds states through bfloat16 at every hundredth call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, call: StatefulCall) -> None:
        call.run()
        self.calls += 1
        if self.calls % 100 == 0:
            for row in call.busy:
                call.state(row).copy_(call.state(row).bfloat16())


def offset_of_32_bits(call: StatefulCall) -> None:
    states = call.refs.all_slots
    size, flat = states[0].numel(), states.view(-1)
    offsets = [max((slot * size + 2**31) % 2**32 - 2**31, 0) for slot in call.refs.slots]
    found = torch.stack([flat[at:at + size] for at in offsets])
    call.run(Refs(found.view(-1, *states.shape[1:]), tuple(range(len(offsets)))))
    for at, state in zip(offsets, found, strict=True):
        flat[at:at + size] = state
