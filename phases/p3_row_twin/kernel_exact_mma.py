"""exact-23 on int8 tensor cores: packed fragments, each weight word read once for all m rows.

CUDA C++ (`exact_mma.cu`) compiled by NVRTC: the same bits as `kernel_exact`, near the memory floor.
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
from phases.p3_row_twin.packing import CODE, ROWS, pack

ARITHMETIC = EXACT
SHARED = 225_000
"""Bytes of shared memory that a multiprocessor's block may have."""
FEW = 128
"""Tiles of 16 rows that leave a multiprocessor one at most: a second team would idle."""
SOURCE = Path(__file__).with_name("exact_mma.cu")
LIMBS = Path(__file__).with_name("limbs.cuh")
MOST = 3
"""Matrices of a launch."""
_packed: WeakKeyDictionary[Weight, Tensor] = WeakKeyDictionary()
_joined: WeakKeyDictionary[Weight, tuple[list[str], Tensor]] = WeakKeyDictionary()


class _Integers(Structure):
    """Where a kernel finds or puts the integers of activations."""

    _fields_ = (("limbs", c_void_p), ("sums", c_void_p), ("scales", c_void_p), ("nts", c_int),
                ("pack", c_int))


NOWHERE = _Integers()
"""What a kernel that also makes integers takes where none are wanted."""


class _Out(Structure):
    """Where a kernel puts the products of one matrix."""

    _fields_ = (("out", c_void_p), ("stride", c_longlong), ("n", c_int), ("first", c_int))


class _Outs(Structure):
    """The same of every matrix of a launch."""

    _fields_ = (("outs", _Out * MOST),)


@dataclass(frozen=True)
class Integers:
    """Activations of m rows as integers, in the order in which lanes read them."""

    m: int
    k: int
    limbs: Tensor
    sums: Tensor
    scales: Tensor

    @staticmethod
    def empty(m: int, k: int, device: torch.device) -> Integers:
        """Return room for the integers of m rows of k values."""
        room = ceil(k / 256) * ceil(m / 8)
        return Integers(m, k, torch.empty(room * 1536, dtype=torch.int32, device=device),
                        torch.empty(room * 64, dtype=torch.int32, device=device),
                        torch.empty(room * 8, device=device))

    @property
    def argument(self) -> Structure:
        """What a kernel takes."""
        return _Integers(self.limbs.data_ptr(), self.sums.data_ptr(), self.scales.data_ptr(),
                         ceil(self.m / 8), int(self.m <= 2))


def supports(case: Any) -> str | None:
    """Return why a case cannot be taken, or None: quantised types have an exact product."""
    kind = case.given.get("kind")
    return None if kind in CODE else f"{kind} has no exact product"


@dataclass(frozen=True)
class Plan:
    """How one launch is laid out; it decides speed and no bit."""

    slices: int
    """Blocks that share K."""
    warps: int
    """Groups of 256 columns, a warp each, of a slice: a team."""
    teams: int
    """Teams of a block, each on tiles of its own."""
    pack: bool
    """Whether the limbs of one or two rows stand side by side in one tile."""
    direct: bool
    """Whether activations are read through L1, as too many for shared memory."""
    shared: int
    """Bytes of shared memory a block."""

    def options(self, kind: str) -> tuple[str, ...]:
        """Return the compiler options of the variant."""
        return (f"-DKIND={CODE[kind]}", f"-DWARPS={self.warps}", f"-DTEAMS={self.teams}",
                f"-DALONE={int(self.slices == 1)}", f"-DPACK={int(self.pack)}",
                f"-DDIRECT={int(self.direct)}")


def plan_for(groups: int, m: int, live: int) -> Plan:
    """Return the layout of a launch of m rows over `live` tiles of weights, by the sizes alone."""
    slices, warps = slices_of(groups, m)
    teams = 2 if live > FEW and warps <= 12 else 1
    tiles, pack = ceil(m / 8), m <= 2
    rest = warps * tiles * (96 if pack else 288)
    limbs = warps * tiles * (2048 if pack else 6144)
    values = teams * 2 * warps * 16 * (2 if pack else tiles * 8) * 4
    direct = rest + limbs + values > SHARED
    return Plan(slices, warps, teams, pack, direct, rest + values + (0 if direct else limbs))


def source(path: Path = SOURCE) -> str:
    """Return the text of a kernel that makes or takes integers, with what it includes."""
    return source_of(LIMBS, path)


@cache
def _function(name: str, options: tuple[str, ...]) -> Kernel:
    return Kernel(compile_source(source(), options), name, early=True)


def slices_of(groups: int, m: int) -> tuple[int, int]:
    """Return the slices of K and a slice's groups, a warp each: all of a short K, else 12 at most.

    More than 32 rows leave no shared memory for more than 12 groups.
    """
    if groups <= (16 if m <= 32 else 12):
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
    """Return which matrices share a launch: up to three of one type, always the same ones.

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


def quantize(x: Tensor) -> Integers:
    """Return the integers of x f32[m, K]; rows may be strided, K is any length."""
    m, k = x.shape
    made = Integers.empty(m, k, x.device)
    _function("quantize", ())((ceil(k / 256), m), 32, 0, x, c_longlong(x.stride(0)), k,
                              made.argument)
    return made


@cache
def _blocks(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def _arrived(device: torch.device, stream: int) -> Tensor:
    """Counters of slices that have come, one set a stream; the last sets its own back to 0."""
    return torch.zeros(1 << 12, dtype=torch.int32, device=device)


def multiply(weight: Weight, a: Integers, out: Tensor) -> None:
    """Write W x for quantised rows into out f32[m, N]."""
    launch([weight], prepare(weight, out.device), a, [out])


def multiply_all(weights: Sequence[Weight], a: Integers, outs: Sequence[Tensor]) -> None:
    """Write W x for quantised rows and each matrix, those of one type in one launch."""
    device = outs[0].device
    for some in groups_of(weights):
        chosen = [weights[i] for i in some]
        packed = prepare_all(chosen, device) if len(some) > 1 else prepare(chosen[0], device)
        launch(chosen, packed, a, [outs[i] for i in some])


def launch(weights: Sequence[Weight], packed: Tensor, a: Integers, outs: Sequence[Tensor]) -> None:
    """Write the products of packed tiles and quantised rows, each matrix's into its own out."""
    tiles, groups, _ = packed.shape
    device = outs[0].device
    places, first = [_Out(None, 0, 0, 1 << 30) for _ in range(MOST)], 0
    for i, (weight, out) in enumerate(zip(weights, outs, strict=True)):
        places[i] = _Out(out.data_ptr(), out.stride(0), weight.n, first)
        first += ceil(weight.n / ROWS) * ROWS // 16
    live = first if len(weights) > 1 else ceil(weights[0].n / 16)
    plan = plan_for(groups, a.m, live)
    partial = outs[0].new_empty(ceil(groups / 4) * tiles * 16 * a.m if plan.slices > 1 else 0)
    kernel = _function("gemv", plan.options(weights[0].kind))
    grid = min(ceil(live / plan.teams), max(1, _blocks(device) // plan.slices))
    kernel((grid, plan.slices), plan.teams * plan.warps * 32, plan.shared, packed, a.argument,
           _Outs((_Out * MOST)(*places)), groups, tiles, a.m, partial,
           _arrived(device, torch.cuda.current_stream(device).cuda_stream))


def gemv_rows(weight: Weight, x: Tensor, out: Tensor) -> None:
    """Write W x for every row of x f32[m, K] into out f32[m, N], m up to 64, any row strides."""
    multiply(weight, quantize(x), out)
