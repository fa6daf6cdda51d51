"""Poison: what was never written is NaN or a sentinel, and what must not be written is watched."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from falsifiers.judging.judge import Judge

SENTINEL = 0xA5
GUARD_BYTES = 256


def poison(x: Tensor, *, sentinel: bool = False) -> Tensor:
    """Fill a tensor in place and return it: floats with NaN, everything else with a sentinel.

    With `sentinel` floats take the sentinel's bytes too (a small finite number), for places
    where NaN would be masked out by a comparison.
    """
    if x.is_floating_point() and not sentinel:
        return x.fill_(float("nan"))
    if x.dtype == torch.bool:
        return x.fill_(True)
    pattern = torch.full((x.element_size(),), SENTINEL, dtype=torch.uint8).view(x.dtype)
    return x.copy_(pattern.to(x.device).expand(x.shape))


def new_poison(*shape: int, dtype: torch.dtype = torch.float32,
             device: torch.device | str = "cpu", sentinel: bool = False) -> Tensor:
    """Return a new tensor of poison."""
    return poison(torch.empty(shape, dtype=dtype, device=device), sentinel=sentinel)


@dataclass(frozen=True)
class Guarded:
    """A tensor between two stretches of sentinel bytes that nobody may write."""

    inside: Tensor
    """The tensor to hand out, poisoned."""
    whole: Tensor
    """u8 [guard + bytes + guard]."""

    def hold(self, judge: Judge, name: str, **where: int | str) -> None:
        """Hold both guards to be as they were made."""
        room = self.whole.numel() - 2 * GUARD_BYTES
        for side, guard in (("before", self.whole[:GUARD_BYTES]),
                            ("after", self.whole[GUARD_BYTES + room:])):
            bad = (guard != SENTINEL).nonzero().flatten()
            at = int(bad[0]) if len(bad) else 0
            distance = GUARD_BYTES - at if side == "before" else at + 1
            judge.law(not len(bad), f"{name} was written {distance} bytes {side} its own memory",
                      rung="frame", **where)


def new_guarded(*shape: int, dtype: torch.dtype = torch.float32,
            device: torch.device | str = "cpu") -> Guarded:
    """Return a poisoned tensor of this shape with guards on both sides."""
    size = torch.empty((), dtype=dtype).element_size() * max(1, torch.Size(shape).numel())
    whole = torch.full((size + 2 * GUARD_BYTES,), SENTINEL, dtype=torch.uint8, device=device)
    inside = whole[GUARD_BYTES:GUARD_BYTES + size].view(dtype)[:torch.Size(shape).numel()]
    return Guarded(poison(inside.view(shape)), whole)
