"""P5's reference where its contract does not go: a pool of one slot, several long rows."""

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
        held = window.clone(), state.clone()
        module.conv_step(x, taps, Refs(held[0], (0,)), (3,), mixed)
        module.delta_step(q, k, v, g, beta, Refs(held[1], (0,)), (3,), read)
        got.append((mixed, read, *held))
    assert all(torch.equal(want, have) for want, have in zip(*got, strict=True))


def test_long_rows_of_unlike_lengths_move_on_together() -> None:
    x, taps, window = draw(1, 335, 6), draw(2, 6, 4), draw(3, 3, 6, 3)
    got = []
    for module in (ops, reference):
        mixed, held = torch.empty(335, 6), window.clone()
        module.conv_step(x, taps, Refs(held, (2, 0, 1)), (65, 200, 70), mixed)
        got.append((mixed, held))
    assert all(torch.equal(want, have) for want, have in zip(*got, strict=True))
