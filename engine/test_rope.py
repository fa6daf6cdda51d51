"""The rotary table against the host's f64 functions, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch

from engine.errors import InputError
from engine.rope import RopeTable, rope_powers, rope_table, sin_cos


@pytest.mark.parametrize("position", [0, 1, 63, 4095, 262143])
def test_table_is_within_half_an_ulp_of_one_of_the_true_angle(position: int) -> None:
    table = rope_table(position + 1, 64, 1e7)[position]
    for pair in range(32):
        angle = position * 1e7 ** (-pair / 32)
        # the angle itself carries a few f64 roundings, which grow with the position
        slack = 2.0 ** -25 + position * 2.0 ** -47
        assert abs(float(table[0, pair]) - math.cos(angle)) <= slack
        assert abs(float(table[1, pair]) - math.sin(angle)) <= slack


def test_growing_a_table_changes_no_bit() -> None:
    grown = RopeTable(64, 1e7)
    small = grown.table_for(512).clone()
    assert torch.equal(grown.table_for(2000)[:512], small)
    assert torch.equal(grown.table_for(2000)[:2000], rope_table(2000, 64, 1e7))


def test_sine_and_cosine_have_the_written_bits() -> None:
    # the first quadrant, nothing reduced; a tenth term shows in the bits of the last two
    angles = [*(i / 64 for i in range(50)), 0.7810691893196158, 0.7727060033885879]
    sine, cosine = sin_cos(torch.tensor(angles, dtype=torch.float64))
    for angle, s, c in zip(angles, sine.tolist(), cosine.tolist(), strict=True):
        sums = []
        for first in (1, 0):
            total = 0.0
            for j in reversed(range(9)):
                total = total * (angle * angle) + (-1) ** j / math.factorial(first + 2 * j)
            sums.append(total)
        assert (s, c) == (angle * sums[0], sums[1])


def test_one_pair_turns_with_the_position_itself() -> None:
    assert rope_powers(1, 1e7) == [1.0]
    with pytest.raises(InputError, match="is 0"):
        rope_powers(0, 1e7)


def test_table_is_computed_again_only_to_grow_and_then_doubles() -> None:
    table = RopeTable(64, 1e7)
    first = table.table_for(512)
    assert table.table_for(10) is first
    assert [len(table.table_for(positions)) for positions in (513, 5000)] == [1024, 5000]


@pytest.mark.parametrize(("positions", "width"), [(0, 64), (1 << 21, 64), (8, 60)])
def test_impossible_tables_are_refused(positions: int, width: int) -> None:
    with pytest.raises(InputError, match=str(positions) if width == 64 else "30"):
        rope_table(positions, width, 1e7)
