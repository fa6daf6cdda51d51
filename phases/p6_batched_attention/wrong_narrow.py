"""Wrong narrow caches: rounded in another way, elsewhere or twice, or read as another type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from engine.ops import attend_one
from engine.state import Refs
from phases.p6_batched_attention.wrong_attention import AttendCall

NARROW_TYPES = (torch.float16, torch.bfloat16)
OTHER_TYPE = {torch.float16: torch.bfloat16, torch.bfloat16: torch.float16}


def round_toward_zero(x: Tensor, kind: torch.dtype) -> Tensor:
    """Return values rounded towards 0 to a type, in f32."""
    y = x.to(kind)
    larger = y.float().abs() > x.abs()
    return torch.where(larger, (y.view(torch.int16) - 1).view(kind), y).float()


def round_half_up(x: Tensor, kind: torch.dtype) -> Tensor:
    """Return values rounded to a type, ties away from 0, in f32."""
    low = round_toward_zero(x, kind)
    high = (low.to(kind).view(torch.int16) + 1).view(kind).float()
    return torch.where((high - x).abs() <= (x - low).abs(), high, x.to(kind).float())


def saturate(x: Tensor, kind: torch.dtype) -> Tensor:
    """Return values clamped to the range of a type."""
    most = torch.finfo(kind).max
    return x.clamp(-most, most)


def round_through_bf16(x: Tensor, kind: torch.dtype) -> Tensor:
    """Return values rounded to bf16, in f32."""
    return x.bfloat16().float()


def append_rounded(
    rounded: Callable[[Tensor, torch.dtype], Tensor],
    when: Callable[[Sequence[int]], bool] = lambda counts: True,
) -> Callable[[AttendCall], None]:
    """Return attention that rounds new keys and values of a narrow cache by `rounded`.

    It does so in steps for which `when(counts)` is true.
    """
    def run(call: AttendCall) -> None:
        kind = call.keys.all_slots.dtype
        if kind in NARROW_TYPES and when(call.counts):
            call.run_reference(k=rounded(call.k, kind), v=rounded(call.v, kind))
        else:
            call.run_reference()

    return run


def read_as_the_other_type(call: AttendCall, at: int, row: int, n: int) -> Tensor:
    keys, values = call.first_keys(row, n)
    other = OTHER_TYPE.get(keys.dtype, keys.dtype)
    return attend_one(call.q[at], keys.view(other).float(), values.view(other).float())


def own_step_unrounded(call: AttendCall, at: int, row: int, n: int) -> Tensor:
    """Read the keys and values of this step's tokens before they are rounded."""
    first, length = sum(call.counts[:row]), call.lengths[row]
    fresh = slice(first, first + n - length)
    keys, values = (x.float() for x in call.first_keys(row, length))
    return attend_one(call.q[at], torch.cat([keys, call.k[fresh]]),
                      torch.cat([values, call.v[fresh]]))


def chunk_unrounded(call: AttendCall, at: int, row: int, n: int) -> Tensor:
    """Read the keys and values of a chunk's tokens before they are rounded."""
    if call.counts[row] > 1:
        return own_step_unrounded(call, at, row, n)
    return attend_one(call.q[at], *(x.float() for x in call.first_keys(row, n)))


def queries_rounded_too(call: AttendCall) -> None:
    kind = call.keys.all_slots.dtype
    call.run_reference(q=call.q.to(kind).float())


def four_bytes_a_value(call: AttendCall) -> None:
    """Address a narrow cache as if its values were f32: offsets are twice as large."""
    if call.keys.all_slots.dtype not in NARROW_TYPES:
        call.run_reference()
        return
    far = [_view_twice_as_far(refs) for refs in (call.keys, call.values)]
    call.run_reference(keys=far[0][0], values=far[1][0])
    for refs, (copy, places) in zip((call.keys, call.values), far, strict=True):
        refs.all_slots.view(-1)[places.flatten()] = copy.all_slots.flatten()


def _view_twice_as_far(refs: Refs) -> tuple[Refs, Tensor]:
    """Return a cache as doubled offsets modulo its size see it, and the place of each value."""
    size, width = refs.all_slots.numel(), refs.all_slots.shape[-1]
    heads = torch.arange(0, size, width) * 2 % size
    places = heads[:, None] + torch.arange(width)
    return replace(refs, all_slots=refs.all_slots.view(-1)[places].view_as(refs.all_slots)), places
