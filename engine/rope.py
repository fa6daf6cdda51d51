"""Rotary tables by a written method in f64: the bits of host `cos` and `pow` vary.

With n pairs (a power of two) and base b: root = b^(1/n) by log2(n) square roots, power_i =
power_(i-1) * root from 1, angle = DIV(position, power_i). The angle is reduced by n * pi/2 in three
parts and sine and cosine are Taylor sums in Horner's form, each operation rounded once in f64;
the result is rounded to f32 (arithmetic.md, rotary tables).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.errors import InputError

# pi/2 in three parts; the first two have 33 significant bits, so their products with a quadrant
# count below 2^20 are exact.
_HALF_PI = tuple(map(float.fromhex, ("0x1.921fb54400000p+0", "0x1.0b4611a600000p-34",
                                     "0x1.3198a2e037073p-69")))
_TWO_OVER_PI = float.fromhex("0x1.45f306dc9c883p-1")
_TERMS = 9
_MAX_POSITIONS = 1 << 20


def rope_powers(pairs: int, base: float) -> list[float]:
    """Return base^(i / pairs) for i < pairs, in f64 by the written method."""
    if pairs < 1 or pairs & (pairs - 1):
        raise InputError(f"rope.dimension_count / 2 is {pairs}, but must be a power of two")
    root = float(base)
    for _ in range(pairs.bit_length() - 1):
        root = math.sqrt(root)
    powers = [1.0]
    for _ in range(pairs - 1):
        powers.append(powers[-1] * root)
    return powers


def _taylor(r2: Tensor, first: int) -> Tensor:
    """Return the sum of (-1)^j r2^j / (first + 2j)! over nine terms, highest first."""
    terms = [(-1) ** j / math.factorial(first + 2 * j) for j in range(_TERMS)]
    p = torch.full_like(r2, terms[-1])
    for term in reversed(terms[:-1]):
        p = p * r2 + term
    return p


def sin_cos(angle: Tensor) -> tuple[Tensor, Tensor]:
    """Return sine and cosine of f64 angles of at most 2^20 quarter turns, as f64."""
    n = (angle * _TWO_OVER_PI).round()
    r = angle
    for part in _HALF_PI:
        r = r - n * part
    r2 = r * r
    sine, cosine = r * _taylor(r2, 1), _taylor(r2, 0)
    quadrant = n.to(torch.int64) & 3
    odd = (quadrant & 1).bool()
    s = torch.where(odd, cosine, sine)
    c = torch.where(odd, sine, cosine)
    s = torch.where(quadrant >= 2, -s, s)
    c = torch.where((quadrant == 1) | (quadrant == 2), -c, c)
    return s, c


def rope_table(positions: int, rope_dim: int, base: float) -> Tensor:
    """Return f32[positions, 2, rope_dim / 2]: cosine and sine of every position and pair."""
    if not 0 < positions <= _MAX_POSITIONS:
        raise InputError(f"a rotary table of {positions} positions is refused: use 1 to "
                         f"{_MAX_POSITIONS}")
    powers = torch.tensor(rope_powers(rope_dim // 2, base), dtype=torch.float64)
    s, c = sin_cos(torch.arange(positions, dtype=torch.float64)[:, None] / powers)
    return torch.stack([c.float(), s.float()], dim=1)


class RopeTable:
    """A rotary table that grows by doubling."""

    def __init__(self, rope_dim: int, base: float, device: str = "cpu") -> None:
        self.rope_dim, self.base, self.device = rope_dim, base, device
        self._table = rope_table(512, rope_dim, base).to(device)

    def table_for(self, positions: int) -> Tensor:
        """Return f32[at least `positions`, 2, pairs]; raise `InputError` past 2^20 positions."""
        size = self._table.shape[0]
        if positions > size:
            size = min(_MAX_POSITIONS, max(positions, 2 * size))
            self._table = rope_table(size, self.rope_dim, self.base).to(self.device)
        return self._table
