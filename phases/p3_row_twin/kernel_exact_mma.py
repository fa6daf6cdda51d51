"""exact-23 on int8 tensor cores: packed fragments, each weight word read once for all m rows.

CUDA C++ (`exact_mma.cu`) compiled by NVRTC: the same bits as `kernel_exact`, near the memory floor.
"""

from __future__ import annotations

from ctypes import c_longlong
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
from engine.kernels.nvrtc import Kernel, compile_source
from engine.weights import EXACT, Weight
from phases.p3_row_twin.packing import CODE, pack

ARITHMETIC = EXACT
SHARED = 225_000
"""Bytes of shared memory that a multiprocessor's blocks may have."""
SOURCE = Path(__file__).with_name("exact_mma.cu")
_packed: WeakKeyDictionary[Weight, Tensor] = WeakKeyDictionary()


@dataclass(frozen=True)
class Integers:
    """Activations of m rows as integers, in the order in which lanes read them."""

    m: int
    k: int
    limbs: Tensor
    sums: Tensor
    scales: Tensor

    @property
    def tiles(self) -> int:
        """How many tiles of eight rows there are."""
        return ceil(self.m / 8)


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
    """Groups of 256 columns, a warp each, of a slice."""
    blocks: int
    """Blocks a multiprocessor."""
    pack: bool
    """Whether the limbs of one or two rows stand side by side in one tile."""
    direct: bool
    """Whether activations are read through L1, as too many for shared memory."""
    shared: int
    """Bytes of shared memory a block."""

    def options(self, kind: str) -> tuple[str, ...]:
        """Return the compiler options of the variant."""
        return (f"-DKIND={CODE[kind]}", f"-DWARPS={self.warps}", f"-DBLOCKS={self.blocks}",
                f"-DALONE={int(self.slices == 1)}", f"-DPACK={int(self.pack)}",
                f"-DDIRECT={int(self.direct)}")


def plan_for(groups: int, m: int) -> Plan:
    """Return the layout of a launch for m rows, by the sizes alone."""
    slices, warps = slices_of(groups, m)
    tiles, pack = ceil(m / 8), m <= 2
    limbs = warps * tiles * (2048 if pack else 6144)
    values = 4 * warps * 16 * (2 if pack else tiles * 8) * 4
    direct = limbs + values > SHARED
    blocks = 2 if pack and warps <= 10 else 1
    shared = values + (0 if direct else limbs)
    return Plan(slices, warps, blocks, pack, direct, shared)


@cache
def _function(name: str, options: tuple[str, ...]) -> Kernel:
    return Kernel(compile_source(SOURCE.read_text(), options), name)


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
    return _packed[weight]


def quantize(x: Tensor) -> Integers:
    """Return the integers of x f32[m, K]; rows may be strided, K is any length."""
    m, k = x.shape
    groups, tiles = ceil(k / 256), ceil(m / 8)
    limbs = torch.empty(groups * tiles * 1536, dtype=torch.int32, device=x.device)
    sums = torch.empty(groups * tiles * 64, dtype=torch.int32, device=x.device)
    scales = torch.empty(groups * tiles * 8, device=x.device)
    _function("quantize", ())((groups, m), 64, 0, x, c_longlong(x.stride(0)), k, tiles,
                              int(m <= 2), limbs, sums, scales)
    return Integers(m, k, limbs, sums, scales)


@cache
def _blocks(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def _arrived(device: torch.device, stream: int) -> Tensor:
    """Counters of slices that have come, one set a stream; the last sets its own back to 0."""
    return torch.zeros(1 << 12, dtype=torch.int32, device=device)


def multiply(weight: Weight, a: Integers, out: Tensor) -> None:
    """Write W x for quantised rows into out f32[m, N]."""
    launch(weight, prepare(weight, out.device), a, out)


def launch(weight: Weight, packed: Tensor, a: Integers, out: Tensor) -> None:
    """Write the product of packed tiles and quantised rows into out f32[m, N]."""
    tiles, groups, _ = packed.shape
    plan = plan_for(groups, a.m)
    segments = ceil(groups / 4)
    partial = out.new_empty(segments * tiles * 16 * a.m if plan.slices > 1 else 0)
    kernel = _function("gemv", plan.options(weight.kind))
    room = max(1, _blocks(out.device) * plan.blocks // plan.slices)
    kernel((min(ceil(weight.n / 16), room), plan.slices), plan.warps * 32, plan.shared, packed,
           a.limbs, a.sums, a.scales, out, c_longlong(out.stride(0)), weight.n, groups, tiles, a.m,
           a.tiles, partial,
           _arrived(out.device, torch.cuda.current_stream(out.device).cuda_stream))


def gemv_rows(weight: Weight, x: Tensor, out: Tensor) -> None:
    """Write W x for every row of x f32[m, K] into out f32[m, N], m up to 64, any row strides."""
    multiply(weight, quantize(x), out)
