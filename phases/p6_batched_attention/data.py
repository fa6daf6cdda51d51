"""Sequences to attend over, and the rows of a step that take them.

A sequence depends only on its seed and flavour, so that a row may be placed in any slot, among any
other rows, cut at any token.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from falsifiers.judging.errors import SuiteError

DIM = 256
QUERY_COUNT = 61
"""Distinct queries and gates of a sequence; later positions repeat them."""
NAN_BITS = (0x7FC00000, 0x7F800001, 0x7FFFFFFF, -1)
"""Bits of NaN: the default one, and some that become inf or -0 when rounded as numbers."""


@dataclass(frozen=True)
class Row:
    """One row of a step: a sequence, its cached tokens `length`, and its new tokens `count`."""

    length: int
    count: int = 1
    seed: int = 0
    flavour: str = "plain"

    @property
    def reach(self) -> int:
        """Cached tokens after the step."""
        return self.length + self.count


@dataclass(frozen=True)
class DrawnSequence:
    """Queries and gates [61, H, D], keys and values [positions, G, D] of a sequence."""

    q: Tensor
    gate: Tensor
    k: Tensor
    v: Tensor

    def queries(self, row: Row) -> tuple[Tensor, Tensor]:
        """Return q and gate of a row's tokens, [count, H, D]."""
        at = torch.arange(row.length, row.reach) % QUERY_COUNT
        return self.q[at], self.gate[at]


def draw_sequence(row: Row, heads: int, groups: int) -> DrawnSequence:
    """Return a row's sequence up to its reach; longer ones begin with the same values."""
    return _draw_sequence(row.seed, row.flavour, row.reach, heads, groups)


@lru_cache(maxsize=256)
def _draw_sequence(seed: int, flavour: str, reach: int, heads: int, groups: int) -> DrawnSequence:
    draw = torch.Generator().manual_seed(1000 * seed + heads)
    q, gate = (torch.randn(QUERY_COUNT, heads, DIM, generator=draw) for _ in range(2))
    k, v = torch.randn(reach, 2, groups, DIM, generator=draw).unbind(1)  # by position
    return _apply_flavour(flavour, DrawnSequence(q, gate * 2.0, k, v))


def _apply_flavour(flavour: str, drawn: DrawnSequence) -> DrawnSequence:
    """Return the sequence with the scores or values of a flavour."""
    q, k, v = drawn.q, drawn.k, drawn.v
    n = torch.arange(len(k), dtype=torch.float32)[:, None, None]
    first = q[:1, :1]
    if flavour in ("rising", "falling"):  # a score is about plus or minus half the key's position
        slope = 0.5 if flavour == "rising" else -0.5
        q, k = first.expand_as(q), first * (slope * 16.0 * n / first.square().sum())
    elif flavour == "equal":
        k = first
    elif flavour == "huge":  # every seventh score is -inf; others are near f32's maximum or small
        q = q.abs() * 1e19
        k = torch.where(n % 7 == 3, -k.abs() * 1e20, torch.where(n % 7 == 5, k * 1e17, k * 1e-19))
    elif flavour == "large":  # most weights are +0
        q = q * 40.0
    elif flavour == "ones":  # all scores are 0, all values 1
        q, v = torch.zeros_like(q), torch.ones_like(v)
    elif flavour == "heads":  # the values of KV head h are 2**h
        v = torch.exp2(torch.arange(v.shape[1], dtype=torch.float32))[:, None].expand_as(v)
    elif flavour == "ties":  # midway between two f16, bf16 or denormals, or too large
        odd = 2.0 * (torch.arange(DIM) % 60) + 1.0 + 2.0 * (n % 4)
        v = torch.where(torch.arange(DIM) % 2 == 0, 1 + odd / 2**11, -1 - odd / 2**8)
        k = v / 8.0
        v[..., :16] *= 2.0**-20
        v[..., 254:] = torch.tensor([65519.0, 65520.0])
        v[..., 252:254] = torch.tensor([-odd[0, 0, 0] * 2.0**-25, 3e-42])
    elif flavour == "broken":
        bits = torch.tensor(NAN_BITS, dtype=torch.int32).repeat(DIM // len(NAN_BITS))
        nan = bits.view(torch.float32)
        q, k, v = q * 3e38, torch.where(n % 3 == 1, nan, k), torch.where(n % 2 == 1, 3e38, v)
    elif flavour != "plain":
        raise SuiteError(f"unknown flavour {flavour!r}: see `_apply_flavour` in {__name__}")
    return DrawnSequence(q.contiguous(), drawn.gate, k.expand_as(drawn.k).contiguous(),
                         v.contiguous())
