"""Poison: unwritten memory is NaN or a sentinel, and guards detect writes out of bounds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from falsifiers.judging.judge import Judge

SENTINEL = 0xA5
GUARD_BYTES = 256


def poison(x: Tensor, *, sentinel: bool = False) -> Tensor:
    """Fill a tensor in place and return it: floats with NaN, other types with a sentinel.

    With `sentinel`, floats get the sentinel's bytes too, a small finite number. Use it where a
    comparison would mask NaN.
    """
    if x.is_floating_point() and not sentinel:
        return x.fill_(float("nan"))
    if x.dtype == torch.bool:
        return x.fill_(True)
    pattern = torch.full((x.element_size(),), SENTINEL, dtype=torch.uint8).view(x.dtype)
    return x.copy_(pattern.to(x.device).expand(x.shape))


def new_poison(*shape: int, dtype: torch.dtype = torch.float32,
             device: torch.device | str = "cpu", sentinel: bool = False) -> Tensor:
    """Return a new tensor of this shape, filled with poison."""
    return poison(torch.empty(shape, dtype=dtype, device=device), sentinel=sentinel)


@dataclass(frozen=True)
class Guarded:
    """A tensor between two guards: sentinel bytes that no kernel may write."""

    inside: Tensor
    """The tensor for the kernel, filled with poison."""
    memory: Tensor
    """u8 [guard + bytes + guard]."""

    def hold(self, judge: Judge, name: str, **where: int | str) -> None:
        """Check that both guards are unchanged."""
        room = self.memory.numel() - 2 * GUARD_BYTES
        for side, guard in (("before", self.memory[:GUARD_BYTES]),
                            ("after", self.memory[GUARD_BYTES + room:])):
            bad = (guard != SENTINEL).nonzero().flatten()
            at = int(bad[0]) if len(bad) else 0
            distance = GUARD_BYTES - at if side == "before" else at + 1
            judge.law(not len(bad), f"{name} was written {distance} bytes {side} its memory",
                      rung="frame", **where)


def new_guarded(*shape: int, dtype: torch.dtype = torch.float32,
            device: torch.device | str = "cpu") -> Guarded:
    """Return a poisoned tensor of this shape between two guards."""
    size = torch.empty((), dtype=dtype).element_size() * max(1, torch.Size(shape).numel())
    memory = torch.full((size + 2 * GUARD_BYTES,), SENTINEL, dtype=torch.uint8, device=device)
    inside = memory[GUARD_BYTES:GUARD_BYTES + size].view(dtype)[:torch.Size(shape).numel()]
    return Guarded(poison(inside.view(shape)), memory)
