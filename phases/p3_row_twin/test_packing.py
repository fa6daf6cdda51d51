"""Packed tiles lose nothing."""

from __future__ import annotations

import re
from math import ceil

import pytest
import torch

from engine.blocks import TYPES
from phases.p3_row_twin.kernel_exact_mma import plan_for, slices_and_warps, split_blocks
from phases.p3_row_twin.packing import CODE, pack, tile_bytes, unpack


@pytest.mark.parametrize("kind", CODE)
@pytest.mark.parametrize(("n", "k"), [(1, 256), (33, 768), (64, 4096)])
def test_unpacking_gives_the_packed_bytes_back(kind: str, n: int, k: int) -> None:
    block = TYPES[kind]
    raw = torch.randint(0, 256, (n, k // block.weights * block.bytes), dtype=torch.uint8,
                        generator=torch.Generator().manual_seed(n))
    tiles = pack(kind, raw, block.bytes)
    assert tiles.shape[2] == tile_bytes(kind)
    assert torch.equal(unpack(kind, tiles, n, k), raw)


def test_a_short_group_is_filled_with_zero_blocks() -> None:
    raw = torch.randint(1, 256, (5, 11 * 34), dtype=torch.uint8)
    tiles = pack("Q8_0", raw, 34)
    assert tiles.shape[:2] == (2, 2)
    assert torch.equal(unpack("Q8_0", tiles, 5, 352), raw)
    unpacked = unpack("Q8_0", tiles, 5, 512)
    assert not bool(unpacked[:, 11 * 34:].any())


@pytest.mark.parametrize("m", [1, 16])
@pytest.mark.parametrize("groups", range(1, 80))
def test_slices_cover_all_groups_and_cut_between_segments(groups: int, m: int) -> None:
    slices, warps = slices_and_warps(groups, m)
    assert slices * warps >= groups > (slices - 1) * warps
    assert slices == 1 or warps % 4 == 0
    assert warps <= 16


@pytest.mark.parametrize("m", [1, 2, 3, 8, 16, 17, 33, 64])
@pytest.mark.parametrize("groups", [1, 10, 16, 36, 48])
@pytest.mark.parametrize("tiles", [1, 500])
def test_a_plan_fits_a_multiprocessor(tiles: int, groups: int, m: int) -> None:
    plan = plan_for(groups, m, tiles)
    assert plan.shared <= 232_448
    assert plan.threads <= 1024
    assert re.fullmatch(r"(-D[A-Z_]+=\d+ ?)+", " ".join(plan.options(["Q4_K", "Q6_K"])))


@pytest.mark.parametrize("teams", [1, 2])
@pytest.mark.parametrize("tiles", [(1,), (512, 256, 4), (576, 64), (4, 4, 4), (15520,), (1, 900)])
def test_parts_of_a_launch_share_its_blocks_by_what_they_have_to_do(
        tiles: tuple[int, ...], teams: int) -> None:
    room = 132
    blocks = split_blocks(tiles, (2880,) * len(tiles), teams, room, 1)
    rounds = [ceil(t / (b * teams)) for t, b in zip(tiles, blocks, strict=True)]
    assert min(blocks) >= 1
    assert sum(blocks) <= room
    assert all(b <= ceil(t / teams) for t, b in zip(tiles, blocks, strict=True))
    assert max(rounds) <= ceil(sum(tiles) / (room * teams)) + 1


def test_costly_tiles_get_more_blocks() -> None:
    cheap, costly = split_blocks((300, 300), (1000, 3000), 1, 100, 1)
    assert costly > 2 * cheap


@pytest.mark.parametrize("m", [17, 33, 64, 600])
@pytest.mark.parametrize("groups", range(1, 80))
def test_many_rows_are_cut_between_segments_too(groups: int, m: int) -> None:
    plan = plan_for(groups, m, 500)
    shared_groups = dict(plan.defines)["SHARED_GROUPS"]
    assert plan.min_blocks == ceil(groups / shared_groups)
    assert shared_groups == groups or shared_groups % 4 == 0
    assert plan.items(5) == 2 * ceil(groups / 4)
    (blocks,) = split_blocks((plan.items(500),), (1,), plan.teams, 132, plan.min_blocks)
    starts = [at * shared_groups * blocks // groups for at in range(plan.min_blocks)]
    assert sorted(set(starts)) == starts  # each slice has a block
