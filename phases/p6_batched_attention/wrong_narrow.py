"""Wrong narrow caches: rounded in another way, elsewhere or twice, and read as something else."""

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
    """Return values of a type, each the nearest that is no larger in size."""
    y = x.to(kind)
    larger = y.float().abs() > x.abs()
    return torch.where(larger, (y.view(torch.int16) - 1).view(kind), y).float()


def round_half_up(x: Tensor, kind: torch.dtype) -> Tensor:
    """Return values of a type, the nearest, and of two that are as near the larger in size."""
    low = round_toward_zero(x, kind)
    high = (low.to(kind).view(torch.int16) + 1).view(kind).float()
    return torch.where((high - x).abs() <= (x - low).abs(), high, x.to(kind).float())


def saturate(x: Tensor, kind: torch.dtype) -> Tensor:
    """Return values of a type, the largest one for all that are larger."""
    most = torch.finfo(kind).max
    return x.clamp(-most, most)


def round_through_bf16(x: Tensor, kind: torch.dtype) -> Tensor:
    """Return values that were rounded to bf16 on their way."""
    return x.bfloat16().float()


def append_rounded(
    rounded: Callable[[Tensor, torch.dtype], Tensor],
    when: Callable[[Sequence[int]], bool] = lambda counts: True,
) -> Callable[[AttendCall], None]:
    """Return attention whose new keys and values reach a narrow cache rounded in a way of its own.

    `when` says by a step's counts whether.
    """
    def run(call: AttendCall) -> None:
        kind = call.keys.whole.dtype
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
    """A row's tokens of this step are read as they were handed in."""
    first, length = sum(call.counts[:row]), call.lengths[row]
    fresh = slice(first, first + n - length)
    keys, values = (x.float() for x in call.first_keys(row, length))
    return attend_one(call.q[at], torch.cat([keys, call.k[fresh]]),
                      torch.cat([values, call.v[fresh]]))


def chunk_unrounded(call: AttendCall, at: int, row: int, n: int) -> Tensor:
    """Only a chunk's tokens are read as they were handed in."""
    if call.counts[row] > 1:
        return own_step_unrounded(call, at, row, n)
    return attend_one(call.q[at], *(x.float() for x in call.first_keys(row, n)))


def queries_rounded_too(call: AttendCall) -> None:
    kind = call.keys.whole.dtype
    call.run_reference(q=call.q.to(kind).float())


def four_bytes_a_value(call: AttendCall) -> None:
    """A narrow cache is addressed as if its values were f32: all lies twice as far."""
    if call.keys.whole.dtype not in NARROW_TYPES:
        call.run_reference()
        return
    far = [_view_twice_as_far(refs) for refs in (call.keys, call.values)]
    call.run_reference(keys=far[0][0], values=far[1][0])
    for refs, (copy, places) in zip((call.keys, call.values), far, strict=True):
        refs.whole.view(-1)[places.flatten()] = copy.whole.flatten()


def _view_twice_as_far(refs: Refs) -> tuple[Refs, Tensor]:
    """Return a cache as such addresses see it, wrapped at its end, and where each value lies."""
    size, width = refs.whole.numel(), refs.whole.shape[-1]
    heads = torch.arange(0, size, width) * 2 % size
    places = heads[:, None] + torch.arange(width)
    return replace(refs, whole=refs.whole.view(-1)[places].view_as(refs.whole)), places
