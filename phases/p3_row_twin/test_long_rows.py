"""Rows longer than the contract's cases take off a device: every edge of how K is shared out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.weights import Weight
from phases.p3_row_twin.data import activations, blocks
from phases.p3_row_twin.increment import gemv_rows, kernel


def make_operands(kind: str, m: int, n: int, groups: int) -> tuple[Weight, Tensor, Tensor]:
    """Return a matrix, rows of activations, and room for their products."""
    k = 256 * groups
    out = torch.full((m, n), torch.nan)
    return Weight("random", kind, blocks(kind, n, k)), activations(m, k), out


@pytest.mark.tier("interpret")
@pytest.mark.parametrize("groups", [6, 9])  # a segment of one group more changes no bit
def test_triton_adds_segments_of_four_groups(groups: int) -> None:
    weight, x, out = make_operands("Q4_K", 2, 1, groups)
    kernel(weight.arithmetic)(weight, x, out)
    assert torch.equal(out, weight.product(x))


@pytest.mark.emulated
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("groups", "m"), [
    (17, 3),  # two slices, the second of fewer groups than a team has warps
    (14, 9),  # the same with tiles of eight rows
    (49, 1),  # thirteen segments: more than a thread reads at once
    (18, 17)])  # five segments, more than a lane reads at once, and a short one last
def test_tensor_cores_add_all_of_a_long_row(groups: int, m: int) -> None:
    weight, x, out = make_operands("Q4_K", m, 17, groups)
    for _ in range(2):  # counters are as they were
        gemv_rows(weight, x, out.fill_(torch.nan))
        assert torch.equal(out, weight.product(x))


@pytest.mark.emulated
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("groups", "m"), [(3, 2), (3, 9), (17, 2)])
def test_two_teams_keep_their_values_apart(monkeypatch: pytest.MonkeyPatch, groups: int,
                                           m: int) -> None:
    from phases.p3_row_twin import kernel_exact_mma
    # with the default only matrices of 2,049 rows and more have two teams
    monkeypatch.setattr(kernel_exact_mma, "ONE_TEAM_TILES", 0)
    monkeypatch.setattr(kernel_exact_mma, "_multiprocessors", lambda device: 2)
    weight, x, out = make_operands("Q5_K", m, 100, groups)
    gemv_rows(weight, x, out)
    assert torch.equal(out, weight.product(x))
