"""Wrong attention: lengths, masks, heads, splits and gates; and the builders of wrong versions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from engine import ops
from engine.arithmetic import sigmoid
from engine.ops import SPLIT, attend_one
from engine.state import Refs
from falsifiers.judging.subject import Builder
from phases.p6_batched_attention import reference
from phases.wrong_refs import RefsChange, with_ops


@dataclass
class AttendCall:
    """The operands of one call of `attend`."""

    q: Tensor
    k: Tensor
    v: Tensor
    gate: Tensor
    keys: Refs
    values: Refs
    lengths: Sequence[int]
    counts: Sequence[int]
    out: Tensor

    def run_reference(self, **changed: Any) -> None:
        """Run the reference with some operands replaced."""
        reference.attend(**{**vars(self), **changed})

    def token_reaches(self) -> list[tuple[int, int]]:
        """Return each token's row and the number of keys that it sees."""
        return [(row, n + 1) for row, length, count in self.busy_rows()
                for n in range(length, length + count)]

    def busy_rows(self) -> list[tuple[int, int, int]]:
        """Return number, length and count of each row with tokens."""
        rows = enumerate(zip(self.lengths, self.counts, strict=True))
        return [(row, length, count) for row, (length, count) in rows if count]

    def caches(self, row: int) -> tuple[Tensor, Tensor]:
        """Return a row's keys and values."""
        slot = self.keys.slots[row]
        return self.keys.all_slots[slot], self.values.all_slots[slot]

    def first_keys(self, row: int, n: int) -> tuple[Tensor, Tensor]:
        """Return the first n rows of a row's caches, or all of them if there are fewer."""
        keys, values = self.caches(row)
        return keys[:n], values[:n]


def with_attention(wrong: Callable[[AttendCall], None]) -> Builder:
    """Return a builder whose attention runs as `wrong(call)`."""
    return with_ops(attend=lambda *args: wrong(AttendCall(*args)))


def with_slots(change: RefsChange, *caches: str) -> Builder:
    """Return a builder whose attention uses wrong slots in `caches`, by default in both."""
    def run(call: AttendCall) -> None:
        call.run_reference(**{name: change(getattr(call, name), call.counts)
                              for name in caches or ("keys", "values")})

    return with_attention(run)


def with_token_reads(wrong: Callable[[AttendCall, int, int, int], Tensor]) -> Builder:
    """Return a builder that appends as the reference and then reads each token by `wrong`.

    `wrong` receives the call, the token, its row and the number of keys that the token sees, and
    returns attention [H, D] before the gate.
    """
    def run(call: AttendCall) -> None:
        call.run_reference()
        for at, (row, n) in enumerate(call.token_reaches()):
            call.out[at] = wrong(call, at, row, n) * sigmoid(call.gate[at])

    return with_attention(run)


def longest_for_all(call: AttendCall, at: int, row: int, n: int) -> Tensor:
    longest = max(reach for _, reach in call.token_reaches())
    return attend_one(call.q[at], *call.first_keys(row, longest))


def up_to_a_page(call: AttendCall, at: int, row: int, n: int) -> Tensor:
    return attend_one(call.q[at], *call.first_keys(row, n + -n % 16))


def one_key_ahead(call: AttendCall, at: int, row: int, n: int) -> Tensor:
    return attend_one(call.q[at], *call.first_keys(row, n + 1 if n % 16 == 0 else n))


def mask_by_zero(call: AttendCall, at: int, row: int, n: int) -> Tensor:
    keys, values = call.first_keys(row, n + -n % 8)
    there = (torch.arange(len(keys)) < n).float()[:, None, None]
    return _attend_in_splits(call.q[at], keys * there, values * there, len(keys))


def no_mask_on_the_last_tile(call: AttendCall, at: int, row: int, n: int) -> Tensor:
    keys, values = call.first_keys(row, n)
    short = torch.zeros(-n % 8, *keys.shape[1:])
    return attend_one(call.q[at], torch.cat([keys, short]), torch.cat([values, short]))


def newest_key_unseen(call: AttendCall, at: int, row: int, n: int) -> Tensor:
    return attend_one(call.q[at], *call.first_keys(row, max(1, n - 1)))


def chunk_sees_itself_whole(call: AttendCall, at: int, row: int, n: int) -> Tensor:
    return attend_one(call.q[at], *call.first_keys(row, call.lengths[row] + call.counts[row]))


def chunk_blind_to_itself(call: AttendCall, at: int, row: int, n: int) -> Tensor:
    keys, values = call.first_keys(row, n)
    seen = [*range(call.lengths[row]), n - 1]
    return attend_one(call.q[at], keys[seen], values[seen])


def heads_by_remainder(call: AttendCall, at: int, row: int, n: int) -> Tensor:
    keys, values = call.first_keys(row, n)
    groups = keys.shape[1]
    order = [g for g in range(groups) for _ in range(len(call.q[at]) // groups)]
    by_remainder = sorted(range(len(order)), key=lambda h: h % groups)
    read = attend_one(call.q[at][by_remainder], keys, values)
    return read[torch.tensor(by_remainder).argsort()]


def first_kv_head_for_all(call: AttendCall, at: int, row: int, n: int) -> Tensor:
    keys, values = (x[:, :1].expand_as(x) for x in call.first_keys(row, n))
    return attend_one(call.q[at], keys, values)


def keys_of_the_last_row(call: AttendCall, at: int, row: int, n: int) -> Tensor:
    last, reach = call.token_reaches()[-1]
    keys, values = call.first_keys(row, n)
    seen = min(n, reach)
    wrong_keys = torch.cat([call.first_keys(last, seen)[0], keys[seen:]])
    return attend_one(call.q[at], wrong_keys, values)


def gate_left_out(call: AttendCall) -> None:
    call.run_reference(gate=torch.full_like(call.gate, 40.0))


def gate_of_the_first_row(call: AttendCall) -> None:
    call.run_reference(gate=call.gate[:1].expand_as(call.gate))


def _attend_in_splits(q: Tensor, keys: Tensor, values: Tensor, split: int,
                      largest: float | None = None) -> Tensor:
    """Attend with splits of another size: equal in real numbers, different in bits."""
    group = len(q) // keys.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (keys, values))
    scores = torch.stack([(q * row).sum(-1) for row in k]) / 16.0
    top = scores.amax(0) if largest is None else torch.full((len(q),), largest)
    denominator, numerator = torch.zeros_like(top), torch.zeros_like(q)
    for i in range(0, len(scores), split):
        p = (scores[i:i + split] - top).exp()
        denominator = denominator + p.sum(0)
        numerator = numerator + (p.unsqueeze(-1) * v[i:i + split]).sum(0)
    return numerator / denominator.unsqueeze(-1)


def split_by_the_longest(call: AttendCall, at: int, row: int, n: int) -> Tensor:
    longest = max(reach for _, reach in call.token_reaches())
    size = SPLIT if longest <= 4 * SPLIT else SPLIT // 2
    return _attend_in_splits(call.q[at], *call.first_keys(row, n), size)


def split_by_the_mean(call: AttendCall, at: int, row: int, n: int) -> Tensor:
    reaches = [reach for _, reach in call.token_reaches()]
    size = max(8, sum(reaches) // len(reaches))
    return _attend_in_splits(call.q[at], *call.first_keys(row, n), size)


def largest_over_all_rows(call: AttendCall) -> None:
    call.run_reference()
    seen = [(at, *call.first_keys(row, n)) for at, (row, n) in enumerate(call.token_reaches())]
    top = max((float((call.q[at].unsqueeze(1) * keys[:, :1].transpose(0, 1)).sum(-1).max()) / 16.0
               for at, keys, _ in seen), default=0.0)
    for at, keys, values in seen:
        read = _attend_in_splits(call.q[at], keys, values, SPLIT, top)
        call.out[at] = read * sigmoid(call.gate[at])


def last_split_lost(call: AttendCall, at: int, row: int, n: int) -> Tensor:
    return attend_one(call.q[at], *call.first_keys(row, n if n <= SPLIT else n // SPLIT * SPLIT))


def oldest_key_lost_in_a_batch(call: AttendCall, at: int, row: int, n: int) -> Tensor:
    first = int(n > SPLIT and len(call.counts) > 1)
    keys, values = call.first_keys(row, n)
    return attend_one(call.q[at], keys[first:], values[first:])


def scale_left_out(call: AttendCall) -> None:
    call.run_reference(q=call.q * 16.0)


def _merge_splits(call: AttendCall, at: int, row: int, n: int, *,
                  share: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Merge splits weighted by `share(largest score of the split, largest scores of all)`."""
    q, (keys, values) = call.q[at], call.first_keys(row, n)
    parts = [ops._attend_split(q.unflatten(0, (keys.shape[1], -1)), keys[i:i + SPLIT],
                               values[i:i + SPLIT]) for i in range(0, n, SPLIT)]
    tops = torch.stack([top for top, _, _ in parts])
    denominator = sum(share(top, tops) * low for top, low, _ in parts)
    numerator = sum(share(top, tops).unsqueeze(-1) * acc for top, _, acc in parts)
    return (torch.as_tensor(numerator) / torch.as_tensor(denominator).unsqueeze(-1)).flatten(0, 1)


rescale_is_always_one = partial(_merge_splits, share=lambda top, tops: torch.ones_like(top))
first_split_sets_the_maximum = partial(_merge_splits, share=lambda top, tops: (top - tops[0]).exp())


class KeepsScratch:
    """Adds the output of the last call of this width, as scratch that is not cleared would."""

    def __init__(self) -> None:
        self.scratch: Tensor | None = None

    def __call__(self, *args: Any) -> None:
        call = AttendCall(*args)
        call.run_reference()
        old, self.scratch = self.scratch, call.out.clone()
        if old is not None and old.shape == call.out.shape:
            call.out.add_(old * 1e-3)
