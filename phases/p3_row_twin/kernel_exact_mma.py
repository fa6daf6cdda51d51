"""exact-23 on int8 tensor cores: packed fragments, each weight word read once for 64 rows.

CUDA C++ (`exact_few.cu`, `exact_wide.cu`) compiled by NVRTC: the same bits as `kernel_exact`.
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
"""Whose warpgroups `exact_wide.cu` needs; such code runs on no other architecture."""
SHARED = 225_000
"""Bytes of shared memory that a multiprocessor's block may have."""
FEW = 128
"""Tiles of 16 rows that leave a multiprocessor one at most: a second team would idle."""
LIMBS = Path(__file__).with_name("limbs.cuh")
QUANTIZE = Path(__file__).with_name("quantize.cu")
TILES = Path(__file__).with_name("tiles.cuh")
FEW_ROWS = Path(__file__).with_name("exact_few.cu")
WIDE_ROWS = Path(__file__).with_name("exact_wide.cu")
ENTRY = Path(__file__).with_name("exact_entry.cu")
MOST_FEW = 16
"""Rows that `exact_few.cu` takes; more go to `exact_wide.cu`."""
CHUNK = 64
"""Rows that meet a weight at once."""
MOST_CHUNKS = 8
"""Chunks of a launch: each has room of its own for sums that are handed on."""
COUNTERS = 1 << 17
"""Tiles whose sums can be under way at once, before more room is asked for."""
MOST = 3
"""Types of a launch, and matrices of a type."""
_packed: WeakKeyDictionary[Weight, Tensor] = WeakKeyDictionary()
_joined: WeakKeyDictionary[Weight, tuple[list[str], Tensor]] = WeakKeyDictionary()


class _QuantisedRows(Structure):
    """Where a kernel reads or writes quantised activations."""

    _fields_ = (("limbs", c_void_p), ("sums", c_void_p), ("scales", c_void_p), ("groups", c_int),
                ("nts", c_int), ("pack", c_int))


class _Out(Structure):
    """Where a kernel puts the products of one matrix."""

    _fields_ = (("out", c_void_p), ("stride", c_longlong), ("n", c_int), ("first", c_int))


class _Part(Structure):
    """Matrices of one type in a launch, and the blocks that they have."""

    _fields_ = (("weights", c_void_p), ("partial", c_void_p), ("arrived", c_void_p),
                ("outs", _Out * MOST), ("tiles", c_int), ("first", c_int), ("blocks", c_int))


class _Parts(Structure):
    """The same of every type of a launch."""

    _fields_ = (("parts", _Part * MOST),)


@dataclass(frozen=True)
class QuantisedRows:
    """Activations of m rows as integers, in the order in which lanes read them, chunk by chunk."""

    m: int
    k: int
    limbs: Tensor
    sums: Tensor
    scales: Tensor

    @staticmethod
    def empty(m: int, k: int, device: torch.device) -> QuantisedRows:
        """Return room for m quantised rows of k values."""
        room = ceil(m / CHUNK) * ceil(k / 256) * tiles_of(m)
        return QuantisedRows(m, k, torch.empty(room * 1536, dtype=torch.int32, device=device),
                        torch.empty(room * 64, dtype=torch.int32, device=device),
                        torch.empty(room * 8, device=device))

    @property
    def argument(self) -> Structure:
        """What a kernel takes."""
        return _QuantisedRows(self.limbs.data_ptr(), self.sums.data_ptr(), self.scales.data_ptr(),
                         ceil(self.k / 256), tiles_of(self.m), int(self.m <= 2))


def tiles_of(m: int) -> int:
    """Return how many tiles of eight rows a chunk of m rows takes: 1, 2, 4 or 8."""
    return 1 << (ceil(min(m, CHUNK) / 8) - 1).bit_length()


def supports(case: Any) -> str | None:
    """Return why a case cannot be taken, or None: quantised types have an exact product."""
    kind = case.given.get("kind")
    return None if kind in CODE else f"{kind} has no exact product"


@dataclass(frozen=True)
class Plan:
    """How one launch is laid out; it decides speed and no bit."""

    file: Path
    """The source that says how a block multiplies."""
    defines: tuple[tuple[str, int], ...]
    """The constants that it is compiled with, beside those of the types."""
    columns: int
    """Blocks side by side that share K in equal parts, a grid's second axis."""
    least: int
    """Blocks that the matrices of a type need."""
    teams: int
    """Teams of warps of a block, each on tiles of its own."""
    segments: int
    """Segments of K that teams share beside tiles, four of them at once, or 0."""
    handed_on: int
    """Values a tile and chunk of rows that blocks hand on."""
    threads: int
    shared: int
    """Bytes of shared memory a block."""

    def options(self, kinds: Sequence[str]) -> tuple[str, ...]:
        """Return the compiler options of the variant for up to three types."""
        codes = [CODE[kind] for kind in kinds] + [0] * (MOST - len(kinds))
        return (*(f"-DKIND_{name}={code}" for name, code in zip("ABC", codes, strict=True)),
                *(f"-D{name}={value}" for name, value in self.defines),
                f"-DTHREADS={self.threads}")

    def items(self, tiles: int) -> int:
        """Return what teams share of so many tiles."""
        return ceil(tiles / 4) * self.segments if self.segments else tiles


def plan_for(groups: int, m: int, live: int) -> Plan:
    """Return the layout of a launch of m rows over `live` tiles of weights, by the sizes alone."""
    return few(groups, m, live) if m <= MOST_FEW else wide(groups, m)


def few(groups: int, m: int, live: int) -> Plan:
    """Return the layout for up to 16 rows: teams of a warp a group."""
    slices, warps = slices_of(groups, m)
    teams = 2 if live > FEW and warps <= 12 else 1
    tiles, pack = tiles_of(m), m <= 2
    inputs = warps * tiles * (64 + 32 + 2048 if pack else 256 + 32 + 6144)
    values = teams * 2 * warps * 16 * (2 if pack else tiles * 8) * 4
    return Plan(FEW_ROWS, (("WARPS", warps), ("TEAMS", teams), ("ALONE", int(slices == 1)),
                           ("PACK", int(pack))),
                slices, 1, teams, 0, ceil(groups / 4) * 16 * m if slices > 1 else 0,
                teams * warps * 32, inputs + values)


def wide(groups: int, m: int) -> Plan:
    """Return the layout for 17 rows and more: two warpgroups, each on four tiles and a segment."""
    tiles = tiles_of(m)
    each = tiles * (6144 + 256 + 32)
    hold = min(SHARED // each, groups)
    hold = hold if hold == groups else hold // 4 * 4
    segments = ceil(groups / 4)
    return Plan(WIDE_ROWS, (("TEAMS", 2), ("HOLD", hold), ("NTS", tiles)),
                1, ceil(groups / hold), 2, segments, segments * tiles * 128 if segments > 1 else 0,
                256, hold * each)


def source(path: Path) -> str:
    """Return the source of a kernel that writes or reads quantised rows, with what it includes."""
    around = ((TILES,), (ENTRY,)) if path in (FEW_ROWS, WIDE_ROWS) else ((), ())
    return source_of(LIMBS, *around[0], path, *around[1])


@cache
def _function(name: str, path: Path, options: tuple[str, ...]) -> Kernel:
    return Kernel(compile_source(source(path), options, ARCH), name, early=True)


def slices_of(groups: int, m: int) -> tuple[int, int]:
    """Return the slices of K and a slice's groups, a warp each: all of a short K, else 12 at most.

    More than eight rows leave no shared memory for more than 12 groups.
    """
    if groups <= (16 if m <= 8 else 12):
        return 1, groups
    segments = ceil(groups / 4)
    warps = 4 * ceil(segments / ceil(segments / 3))
    return ceil(groups / warps), warps


def prepare(weight: Weight, device: torch.device) -> Tensor:
    """Return a matrix's packed tiles on a device, made once."""
    if weight not in _packed:
        raw = device_bytes(weight, device)
        _packed[weight] = pack(weight.kind, raw, TYPES[weight.kind].bytes)
        torch.cuda.synchronize(device)  # a product reads tiles before it waits for other launches
    return _packed[weight]


def prepare_all(weights: Sequence[Weight], device: torch.device) -> Tensor:
    """Return the tiles of matrices of one type and width, one behind the other, kept once."""
    known = _joined.get(weights[0])
    if known is None:
        each = [prepare(weight, device) for weight in weights]
        whole = torch.cat(each)
        for weight, tiles in zip(weights, whole.split([len(t) for t in each]), strict=True):
            _packed[weight] = tiles
        torch.cuda.synchronize(device)
        known = _joined[weights[0]] = [weight.name for weight in weights], whole
    return known[1]


def groups_of(weights: Sequence[Weight]) -> list[list[int]]:
    """Return which matrices share a part of a launch: up to three of one type, always the same.

    Tiles move once, when they are first joined: later launches find them where they are.
    """
    groups: list[list[int]] = []
    for kind in dict.fromkeys(weight.kind for weight in weights):
        same = [i for i, weight in enumerate(weights) if weight.kind == kind]
        for first in range(0, len(same), MOST):
            some = same[first:first + MOST]
            known = _joined.get(weights[some[0]])
            fits = known is None or known[0] == [weights[i].name for i in some]
            groups += [some] if fits else [[i] for i in some]
    return groups


def quantize(x: Tensor) -> QuantisedRows:
    """Return x f32[m, K] quantised; rows may be strided, K is any length."""
    m, k = x.shape
    made = QuantisedRows.empty(m, k, x.device)
    _function("quantize", QUANTIZE, ())((ceil(k / 256), m), 32, 0, x, c_longlong(x.stride(0)), k,
                                        made.argument)
    return made


@cache
def _blocks(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def _arrived(device: torch.device, stream: int, count: int) -> Tensor:
    """Counters of slices that have come, one set a stream; the last sets its own back to 0."""
    return torch.zeros(count, dtype=torch.int32, device=device)


def multiply(weight: Weight, a: QuantisedRows, out: Tensor) -> None:
    """Write W x for quantised rows into out f32[m, N]."""
    launch([Part([weight], prepare(weight, out.device), [out])], a)


def multiply_all(weights: Sequence[Weight], a: QuantisedRows, outs: Sequence[Tensor]) -> None:
    """Write W x for quantised rows and each matrix of one width, of up to three types a launch."""
    parts, device = [], outs[0].device
    for some in groups_of(weights):
        chosen = [weights[i] for i in some]
        packed = prepare_all(chosen, device) if len(some) > 1 else prepare(chosen[0], device)
        parts.append(Part(chosen, packed, [outs[i] for i in some]))
    for first in range(0, len(parts), MOST):
        launch(parts[first:first + MOST], a)


@dataclass(frozen=True)
class Part:
    """Matrices of one type in a launch: packed tiles one behind the other, each with its out."""

    weights: Sequence[Weight]
    packed: Tensor
    outs: Sequence[Tensor]

    @property
    def live(self) -> int:
        """Tiles that hold rows."""
        *others, last = (int(weight.n) for weight in self.weights)
        return sum(_padded(n) for n in others) + ceil(last / 16)

    def argument(self, partial: Tensor, arrived: Tensor, first: int, blocks: int) -> _Part:
        """Return what a kernel takes of blocks from `first` on."""
        places, tile = [_Out(None, 0, 0, 1 << 30) for _ in range(MOST)], 0
        for i, (weight, out) in enumerate(zip(self.weights, self.outs, strict=True)):
            places[i] = _Out(out.data_ptr(), out.stride(0), weight.n, tile)
            tile += _padded(weight.n)
        return _Part(self.packed.data_ptr(), partial.data_ptr(), arrived.data_ptr(),
                     (_Out * MOST)(*places), len(self.packed), first, blocks)


def _padded(n: int) -> int:
    return ceil(n / ROWS) * ROWS // 16


@cache
def shares(tiles: tuple[int, ...], costs: tuple[int, ...], teams: int, room: int,
           least: int) -> list[int]:
    """Return the blocks of each part: at least one, and the next to whose teams have most to do.

    Teams walk `tiles`, each at a cost, in rounds; a block more than rounds need is not started.
    """
    blocks = [least] * len(tiles)

    def rounds(part: int) -> int:
        return ceil(tiles[part] / (blocks[part] * teams))

    while sum(blocks) < room:
        part = max(range(len(tiles)), key=lambda i: (rounds(i) > 1, rounds(i) * costs[i]))
        if rounds(part) == 1:
            break
        blocks[part] += 1
    return blocks


def launch(parts: Sequence[Part], a: QuantisedRows) -> None:
    """Write the products of packed tiles of one width and quantised rows, each into its own out.

    Rows past a launch's chunks get launches of their own.
    """
    groups, out = parts[0].packed.shape[1], parts[0].outs[0]
    live, tiles = tuple(part.live for part in parts), sum(len(part.packed) for part in parts)
    plan = plan_for(groups, a.m, sum(live))
    kinds = [part.weights[0].kind for part in parts]
    costs = tuple(tile_bytes(kind) for kind in kinds)
    rounds = tuple(plan.items(count) for count in live)
    room = max(len(parts) * plan.least, _blocks(out.device) // plan.columns)
    blocks = shares(rounds, costs, plan.teams, room, plan.least)
    chunks = ceil(a.m / CHUNK)
    at_once = min(chunks, MOST_CHUNKS, max(1, COUNTERS // tiles))
    arrived = _arrived(out.device, torch.cuda.current_stream(out.device).cuda_stream,
                       max(COUNTERS, tiles))
    partial = out.new_empty(at_once * tiles * plan.handed_on)  # of all parts, alive at the launch
    made, first, before = [_Part() for _ in range(MOST)], 0, 0
    for i, part in enumerate(parts):
        made[i] = part.argument(partial[before * plan.handed_on:], arrived[before:], first,
                                blocks[i])
        first += blocks[i]
        before += at_once * len(part.packed)
    function = _function("gemv", plan.file, plan.options(kinds))
    for chunk in range(0, chunks, at_once):
        function((first, plan.columns if plan.columns > 1 else min(at_once, chunks - chunk)),
                 plan.threads, plan.shared, _Parts((_Part * MOST)(*made)), a.argument, groups, a.m,
                 chunk)


def gemv_rows(weight: Weight, x: Tensor, out: Tensor) -> None:
    """Write W x for every row of x f32[m, K] into out f32[m, N], any row strides."""
    multiply(weight, quantize(x), out)
