"""P5's reference outside the contract's cases: a pool of one slot, several long rows."""

from __future__ import annotations

import torch

from engine import ops
from engine.state import Refs
from phases.p5_batched_gdn import reference


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_pool_of_one_slot_is_enough() -> None:
    x, taps, window = draw(1, 3, 6), draw(2, 6, 4), draw(3, 1, 6, 3)
    q, k, v = draw(4, 3, 2, 128), draw(5, 3, 2, 128), draw(6, 3, 4, 128)
    g, beta, state = draw(7, 3, 4).sigmoid(), draw(8, 3, 4).sigmoid(), draw(9, 1, 4, 128, 128)
    got = []
    for module in (ops, reference):
        mixed, read = torch.empty(3, 6), torch.empty(3, 4, 128)
        windows, states = window.clone(), state.clone()
        module.conv_step(x, taps, Refs(windows, (0,)), (3,), mixed)
        module.delta_step(q, k, v, g, beta, Refs(states, (0,)), (3,), read)
        got.append((mixed, read, windows, states))
    assert all(map(torch.equal, *got))


def test_long_rows_of_different_lengths_advance_together() -> None:
    x, taps, window = draw(1, 335, 6), draw(2, 6, 4), draw(3, 3, 6, 3)
    got = []
    for module in (ops, reference):
        mixed, windows = torch.empty(335, 6), window.clone()
        module.conv_step(x, taps, Refs(windows, (2, 0, 1)), (65, 200, 70), mixed)
        got.append((mixed, windows))
    assert all(map(torch.equal, *got))
