"""Sequences to attend over, each drawn from its seed alone, and the rows that take them.

The same row can so stand in any slot, beside any others, cut at any token.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from falsifiers.judging.errors import SuiteError

DIM = 256
QUERY_COUNT = 61
"""Different queries and gates of a sequence; later positions take them again."""
NAN_BITS = (0x7FC00000, 0x7F800001, 0x7FFFFFFF, -1)
"""Bits of NaN: the usual one, and some that rounding as if they were numbers makes inf or -0."""


@dataclass(frozen=True)
class Row:
    """One row of a step: a sequence, how much of it the slot holds, and how many tokens join."""

    length: int
    count: int = 1
    seed: int = 0
    flavour: str = "plain"

    @property
    def reach(self) -> int:
        """Tokens that the slot holds after the step."""
        return self.length + self.count


@dataclass(frozen=True)
class DrawnSequence:
    """Queries, gates, keys and values of a sequence's positions."""

    q: Tensor
    gate: Tensor
    k: Tensor
    v: Tensor

    def queries(self, row: Row) -> tuple[Tensor, Tensor]:
        """Return q and gate of a row's tokens, [count, H, D]."""
        at = torch.arange(row.length, row.reach) % QUERY_COUNT
        return self.q[at], self.gate[at]


def draw_sequence(row: Row, heads: int, groups: int) -> DrawnSequence:
    """Return a row's sequence up to its reach; a longer one of this seed begins with the same."""
    return _draw_sequence(row.seed, row.flavour, row.reach, heads, groups)


@lru_cache(maxsize=256)
def _draw_sequence(seed: int, flavour: str, reach: int, heads: int, groups: int) -> DrawnSequence:
    draw = torch.Generator().manual_seed(1000 * seed + heads)
    q, gate = (torch.randn(QUERY_COUNT, heads, DIM, generator=draw) for _ in range(2))
    k, v = torch.randn(reach, 2, groups, DIM, generator=draw).unbind(1)  # position by position
    return _apply_flavour(flavour, DrawnSequence(q, gate * 2.0, k, v))


def _apply_flavour(flavour: str, drawn: DrawnSequence) -> DrawnSequence:
    """Return the sequence with scores that rise, fall, agree or leave f32, as it is asked."""
    q, k, v = drawn.q, drawn.k, drawn.v
    n = torch.arange(len(k), dtype=torch.float32)[:, None, None]
    one = q[:1, :1]
    if flavour in ("rising", "falling"):  # a score is about half its key's position, or less that
        slope = 0.5 if flavour == "rising" else -0.5
        q, k = one.expand_as(q), one * (slope * 16.0 * n / one.square().sum())
    elif flavour == "equal":
        k = one
    elif flavour == "huge":  # every seventh score is -inf, others are near the end of f32 or small
        q = q.abs() * 1e19
        k = torch.where(n % 7 == 3, -k.abs() * 1e20, torch.where(n % 7 == 5, k * 1e17, k * 1e-19))
    elif flavour == "large":  # all but a few weights are +0
        q = q * 40.0
    elif flavour == "ones":  # no score but 0 and no value but 1
        q, v = torch.zeros_like(q), torch.ones_like(v)
    elif flavour == "heads":  # a KV head's values are a power of two of its own
        v = torch.exp2(torch.arange(v.shape[1], dtype=torch.float32))[:, None].expand_as(v)
    elif flavour == "ties":  # midway between two f16, two bf16, two denormals; and too large
        odd = 2.0 * (torch.arange(DIM) % 60) + 1.0 + 2.0 * (n % 4)
        v = torch.where(torch.arange(DIM) % 2 == 0, 1 + odd / 2**11, -1 - odd / 2**8)
        k = v / 8.0
        v[..., :16] *= 2.0**-20
        v[..., 254:] = torch.tensor([65519.0, 65520.0])
        v[..., 252:254] = torch.tensor([-odd[0, 0, 0] * 2.0**-25, 3e-42])
    elif flavour == "broken":
        nan = (
            torch.tensor(NAN_BITS, dtype=torch.int32)
            .view(torch.float32)
            .repeat(DIM // len(NAN_BITS))
        )
        q, k, v = q * 3e38, torch.where(n % 3 == 1, nan, k), torch.where(n % 2 == 1, 3e38, v)
    elif flavour != "plain":
        raise SuiteError(f"no sequence has the flavour {flavour!r}")
    return DrawnSequence(
        q.contiguous(), drawn.gate, k.expand_as(drawn.k).contiguous(), v.contiguous()
    )
