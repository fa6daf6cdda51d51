"""exact-23 product on int8 tensor cores, in CUDA C++ compiled by NVRTC.

`exact_few.cu` takes up to 16 activation rows, `exact_wide.cu` more. Weights are packed once in
fragment order, and a launch reads each weight word once for 64 rows. Same bits as `kernel_exact`.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, c_int, c_longlong, c_void_p
from dataclasses import dataclass
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from engine.blocks import TYPES
from engine.kernels.device_bytes import device_bytes
from engine.kernels.nvrtc import Kernel, compile_source, source_of
from engine.weights import EXACT, Weight
from phases.p3_row_twin.packing import CODE, ROWS, pack, tile_bytes

ARITHMETIC = EXACT
ARCH = "sm_90a"
"""`exact_wide.cu` uses wgmma, which exists on sm_90a only."""
MAX_SHARED_BYTES = 225_000
"""Largest dynamic shared memory of a block, in bytes."""
ONE_TEAM_TILES = 128
"""With no more tiles of 16 rows than this, a second team per block would be idle."""
LIMBS_SOURCE = Path(__file__).with_name("limbs.cuh")
QUANTIZE_SOURCE = Path(__file__).with_name("quantize.cu")
TILES_SOURCE = Path(__file__).with_name("tiles.cuh")
FEW_ROWS_SOURCE = Path(__file__).with_name("exact_few.cu")
WIDE_ROWS_SOURCE = Path(__file__).with_name("exact_wide.cu")
ENTRY_SOURCE = Path(__file__).with_name("exact_entry.cu")
MAX_FEW_ROWS = 16
"""Largest m of `exact_few.cu`; larger m use `exact_wide.cu`."""
CHUNK = 64
"""Activation rows multiplied with a weight word per load."""
MAX_CHUNKS = 8
"""Chunks per launch; each chunk has its own buffer for partial sums."""
COUNTERS = 1 << 17
"""Arrival counters allocated per stream; a launch of more tiles allocates more."""
MAX_PARTS = 3
"""Largest number of types per launch, and of matrices per type."""
_packed_tiles: WeakKeyDictionary[Weight, Tensor] = WeakKeyDictionary()
_joined_tiles: WeakKeyDictionary[Weight, tuple[list[str], Tensor]] = WeakKeyDictionary()


class _QuantisedRows(Structure):
    """The kernel argument that describes quantised activations (`limbs.cuh`)."""

    _fields_ = (("limbs", c_void_p), ("sums", c_void_p), ("scales", c_void_p), ("groups", c_int),
                ("n_tiles", c_int), ("pack_limbs", c_int))


class _Output(Structure):
    """The output of one matrix (`tiles.cuh`)."""

    _fields_ = (("out", c_void_p), ("stride", c_longlong), ("rows", c_int),
                ("first_tile", c_int))


class _LaunchPart(Structure):
    """Matrices of one type in a launch, and their range of blocks (`tiles.cuh`)."""

    _fields_ = (("weights", c_void_p), ("partial_sums", c_void_p),
                ("arrival_counters", c_void_p),
                ("outputs", _Output * MAX_PARTS), ("tiles", c_int), ("first_block", c_int),
                ("blocks", c_int))


class _LaunchParts(Structure):
    """All parts of a launch."""

    _fields_ = (("parts", _LaunchPart * MAX_PARTS),)


@dataclass(frozen=True)
class QuantisedRows:
    """Activations of m rows, quantised to three int8 limbs, in the layout of `limbs.cuh`."""

    m: int
    k: int
    limbs: Tensor
    sums: Tensor
    scales: Tensor

    @staticmethod
    def empty(m: int, k: int, device: torch.device) -> QuantisedRows:
        """Allocate the buffers for m rows of k values, uninitialised."""
        tiles = ceil(m / CHUNK) * ceil(k / 256) * n_tiles_of(m)
        return QuantisedRows(
            m, k, torch.empty(tiles * 1536, dtype=torch.int32, device=device),
            torch.empty(tiles * 64, dtype=torch.int32, device=device),
            torch.empty(tiles * 8, device=device))

    @property
    def argument(self) -> Structure:
        """The kernel argument."""
        return _QuantisedRows(
            self.limbs.data_ptr(), self.sums.data_ptr(), self.scales.data_ptr(),
            ceil(self.k / 256), n_tiles_of(self.m), int(self.m <= 2))


def n_tiles_of(m: int) -> int:
    """Return the number of n-tiles of eight rows in a chunk of m rows: 1, 2, 4 or 8."""
    return 1 << (ceil(min(m, CHUNK) / 8) - 1).bit_length()


def supports(case: Any) -> str | None:
    """Return why a case is not supported, or None. Only quantised types have an exact product."""
    kind = case.given.get("kind")
    return None if kind in CODE else f"{kind} has no exact product"


@dataclass(frozen=True)
class Plan:
    """The layout of one launch. It affects speed, never bits."""

    file: Path
    """The source that defines `multiply`."""
    defines: tuple[tuple[str, int], ...]
    """Macros of the source, without the types."""
    slices: int
    """Slices of K, the second axis of the grid."""
    min_blocks: int
    """Smallest number of blocks per launch part."""
    teams: int
    """Teams of warps per block; each team takes its own tiles."""
    segments: int
    """Segments of K that teams also divide, four tiles at a time; 0 if a team covers all of K."""
    partial_values: int
    """Floats of partial sums per tile and chunk of rows."""
    threads: int
    shared: int
    """Dynamic shared memory per block, in bytes."""

    def options(self, kinds: Sequence[str]) -> tuple[str, ...]:
        """Return the compiler options of the variant for up to three types."""
        kind_codes = [CODE[kind] for kind in kinds] + [0] * (MAX_PARTS - len(kinds))
        return (*(f"-DKIND_{name}={code}" for name, code in zip("ABC", kind_codes, strict=True)),
                *(f"-D{name}={value}" for name, value in self.defines),
                f"-DTHREADS={self.threads}")

    def items(self, tiles: int) -> int:
        """Return the number of work items that teams divide, for a number of tiles."""
        return ceil(tiles / 4) * self.segments if self.segments else tiles


def plan_for(groups: int, m: int, real_tiles: int) -> Plan:
    """Return the layout of a launch of m rows over `real_tiles` weight tiles."""
    return plan_few_rows(groups, m, real_tiles) if m <= MAX_FEW_ROWS else plan_many_rows(groups, m)


def plan_few_rows(groups: int, m: int, real_tiles: int) -> Plan:
    """Return the layout for up to 16 rows: one warp per group of 256 columns."""
    slices, warps = slices_and_warps(groups, m)
    teams = 2 if real_tiles > ONE_TEAM_TILES and warps <= 12 else 1
    tiles, pack_limbs = n_tiles_of(m), m <= 2
    inputs = warps * tiles * (64 + 32 + 2048 if pack_limbs else 256 + 32 + 6144)
    values = teams * 2 * warps * 16 * (2 if pack_limbs else tiles * 8) * 4
    return Plan(FEW_ROWS_SOURCE, (("WARPS", warps), ("TEAMS", teams),
                                  ("SINGLE_SLICE", int(slices == 1)),
                                  ("PACK_LIMBS", int(pack_limbs))),
                slices, 1, teams, 0, ceil(groups / 4) * 16 * m if slices > 1 else 0,
                teams * warps * 32, inputs + values)


def plan_many_rows(groups: int, m: int) -> Plan:
    """Return the layout for 17 rows and more: two warpgroups, each on four tiles and a segment."""
    tiles = n_tiles_of(m)
    group_bytes = tiles * (6144 + 256 + 32)
    shared_groups = min(MAX_SHARED_BYTES // group_bytes, groups)
    shared_groups = shared_groups if shared_groups == groups else shared_groups // 4 * 4
    segments = ceil(groups / 4)
    return Plan(WIDE_ROWS_SOURCE,
                (("TEAMS", 2), ("SHARED_GROUPS", shared_groups), ("N_TILES", tiles)),
                1, ceil(groups / shared_groups), 2, segments,
                segments * tiles * 128 if segments > 1 else 0, 256, shared_groups * group_bytes)


def source(path: Path) -> str:
    """Return a source that reads or writes quantised activations, with its headers."""
    if path in (FEW_ROWS_SOURCE, WIDE_ROWS_SOURCE):
        return source_of(LIMBS_SOURCE, TILES_SOURCE, path, ENTRY_SOURCE)
    return source_of(LIMBS_SOURCE, path)


@cache
def _function(name: str, path: Path, options: tuple[str, ...]) -> Kernel:
    return Kernel(compile_source(source(path), options, ARCH), name, pdl=True)


def slices_and_warps(groups: int, m: int) -> tuple[int, int]:
    """Return the slices of K and the warps per slice, one per group.

    A short K is one slice. A slice of a longer K has 12 groups at most, and so has any slice for
    more than eight rows, because shared memory is full.
    """
    if groups <= (16 if m <= 8 else 12):
        return 1, groups
    segments = ceil(groups / 4)
    warps = 4 * ceil(segments / ceil(segments / 3))
    return ceil(groups / warps), warps


def prepare(weight: Weight, device: torch.device) -> Tensor:
    """Return the packed tiles of a matrix on a device; the result is cached."""
    if weight not in _packed_tiles:
        raw = device_bytes(weight, device)
        _packed_tiles[weight] = pack(weight.kind, raw, TYPES[weight.kind].bytes)
        torch.cuda.synchronize(device)  # kernels read weights before pdl_wait
    return _packed_tiles[weight]


def prepare_all(weights: Sequence[Weight], device: torch.device) -> Tensor:
    """Return the concatenated tiles of matrices of one type and width; the result is cached."""
    joined = _joined_tiles.get(weights[0])
    if joined is None:
        tiles_each = [prepare(weight, device) for weight in weights]
        all_tiles = torch.cat(tiles_each)
        sizes = [len(tiles) for tiles in tiles_each]
        for weight, tiles in zip(weights, all_tiles.split(sizes), strict=True):
            _packed_tiles[weight] = tiles
        torch.cuda.synchronize(device)
        joined = _joined_tiles[weights[0]] = [weight.name for weight in weights], all_tiles
    return joined[1]


def group_by_type(weights: Sequence[Weight]) -> list[list[int]]:
    """Return the indices of the matrices of each launch part: up to three of one type.

    The first call concatenates the tiles of a part. A later call with other matrices gives each
    matrix its own part, because joined tiles do not move again.
    """
    groups: list[list[int]] = []
    for kind in dict.fromkeys(weight.kind for weight in weights):
        members = [i for i, weight in enumerate(weights) if weight.kind == kind]
        for first in range(0, len(members), MAX_PARTS):
            indices = members[first:first + MAX_PARTS]
            joined = _joined_tiles.get(weights[indices[0]])
            reusable = joined is None or joined[0] == [weights[i].name for i in indices]
            groups += [indices] if reusable else [[i] for i in indices]
    return groups


def quantize(x: Tensor) -> QuantisedRows:
    """Quantise x f32[m, K]; rows may be strided, K is any length."""
    m, k = x.shape
    quantised = QuantisedRows.empty(m, k, x.device)
    _function("quantize", QUANTIZE_SOURCE, ())(
        (ceil(k / 256), m), 32, 0, x, c_longlong(x.stride(0)), k, quantised.argument)
    return quantised


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def _arrival_counters(device: torch.device, stream: int, count: int) -> Tensor:
    """Return zeroed counters of finished slices, per stream; the last block resets its counter."""
    return torch.zeros(count, dtype=torch.int32, device=device)


def multiply(weight: Weight, quantised: QuantisedRows, out: Tensor) -> None:
    """Write W x for quantised rows into out f32[m, N]."""
    launch([LaunchPart([weight], prepare(weight, out.device), [out])], quantised)


def multiply_all(weights: Sequence[Weight], quantised: QuantisedRows,
                 outs: Sequence[Tensor]) -> None:
    """Write W x for quantised rows and several matrices of one width, up to 3 types a launch."""
    parts, device = [], outs[0].device
    for indices in group_by_type(weights):
        chosen = [weights[i] for i in indices]
        packed = prepare_all(chosen, device) if len(indices) > 1 else prepare(chosen[0], device)
        parts.append(LaunchPart(chosen, packed, [outs[i] for i in indices]))
    for first in range(0, len(parts), MAX_PARTS):
        launch(parts[first:first + MAX_PARTS], quantised)


@dataclass(frozen=True)
class LaunchPart:
    """Matrices of one type in a launch: their concatenated packed tiles and their outputs."""

    weights: Sequence[Weight]
    packed: Tensor
    outs: Sequence[Tensor]

    @property
    def real_tiles(self) -> int:
        """Tiles without the padding after the last matrix."""
        *others, last = (int(weight.n) for weight in self.weights)
        return sum(_padded_tile_count(n) for n in others) + ceil(last / 16)

    def argument(self, partial: Tensor, counters: Tensor, first: int, blocks: int) -> _LaunchPart:
        """Return the kernel argument for `blocks` blocks from `first` on."""
        outputs, tile = [_Output(None, 0, 0, 1 << 30) for _ in range(MAX_PARTS)], 0
        for i, (weight, out) in enumerate(zip(self.weights, self.outs, strict=True)):
            outputs[i] = _Output(out.data_ptr(), out.stride(0), weight.n, tile)
            tile += _padded_tile_count(weight.n)
        return _LaunchPart(self.packed.data_ptr(), partial.data_ptr(), counters.data_ptr(),
                           (_Output * MAX_PARTS)(*outputs), len(self.packed), first, blocks)


def _padded_tile_count(n: int) -> int:
    return ceil(n / ROWS) * ROWS // 16


@cache
def split_blocks(tiles: tuple[int, ...], tile_costs: tuple[int, ...], teams: int, available: int,
                 min_blocks: int) -> list[int]:
    """Return the number of blocks of each part.

    Each part starts with `min_blocks`. Every further block goes to the part whose teams have the
    most work left, `rounds * cost`, until each part needs one round or `available` blocks are used.
    """
    blocks = [min_blocks] * len(tiles)

    def rounds(part: int) -> int:
        return ceil(tiles[part] / (blocks[part] * teams))

    while sum(blocks) < available:
        part = max(range(len(tiles)), key=lambda i: (rounds(i) > 1, rounds(i) * tile_costs[i]))
        if rounds(part) == 1:
            break
        blocks[part] += 1
    return blocks


def launch(parts: Sequence[LaunchPart], quantised: QuantisedRows) -> None:
    """Write the products of packed tiles of one width and quantised rows, each into its own out.

    Rows past MAX_CHUNKS chunks use further launches.
    """
    groups, out = parts[0].packed.shape[1], parts[0].outs[0]
    real_tiles = tuple(part.real_tiles for part in parts)
    total_tiles = sum(len(part.packed) for part in parts)
    plan = plan_for(groups, quantised.m, sum(real_tiles))
    kinds = [part.weights[0].kind for part in parts]
    tile_costs = tuple(tile_bytes(kind) for kind in kinds)
    work = tuple(plan.items(count) for count in real_tiles)
    available = max(len(parts) * plan.min_blocks, _multiprocessors(out.device) // plan.slices)
    blocks = split_blocks(work, tile_costs, plan.teams, available, plan.min_blocks)
    chunks = ceil(quantised.m / CHUNK)
    launch_chunks = min(chunks, MAX_CHUNKS, max(1, COUNTERS // total_tiles))
    counters = _arrival_counters(out.device, torch.cuda.current_stream(out.device).cuda_stream,
                                 max(COUNTERS, total_tiles))
    partial_sums = out.new_empty(launch_chunks * total_tiles * plan.partial_values)
    arguments, first, tiles_before = [_LaunchPart() for _ in range(MAX_PARTS)], 0, 0
    for i, part in enumerate(parts):
        arguments[i] = part.argument(partial_sums[tiles_before * plan.partial_values:],
                                     counters[tiles_before:], first, blocks[i])
        first += blocks[i]
        tiles_before += launch_chunks * len(part.packed)
    function = _function("gemv", plan.file, plan.options(kinds))
    for chunk in range(0, chunks, launch_chunks):
        function((first, plan.slices if plan.slices > 1 else min(launch_chunks, chunks - chunk)),
                 plan.threads, plan.shared, _LaunchParts((_LaunchPart * MAX_PARTS)(*arguments)),
                 quantised.argument, groups, quantised.m, chunk)


def gemv_rows(weight: Weight, x: Tensor, out: Tensor) -> None:
    """Write W x for every row of x f32[m, K] into out f32[m, N], any row strides."""
    multiply(weight, quantize(x), out)
