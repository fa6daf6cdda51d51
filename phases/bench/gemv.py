"""Times of P3's exact product on a device, next to the memory floor of the same run.

A figure is the median of graph replays over copies of the weights that do not fit the L2 cache, in
microseconds a product. The floor is the file's bytes over the read bandwidth. Quantising the
activations is timed separately, since products that read the same activations share it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from engine.blocks import TYPES
from engine.weights import Weight
from falsifiers.gate.benchmark_records import ProductTime, ProductTimes
from phases.bench.device_timing import (
    BYTES_BEYOND_CACHE,
    conditions,
    measure_bandwidth,
    time_replays,
)
from phases.p3_row_twin import kernel_exact_mma as mma
from phases.p3_row_twin.packing import pack

SHAPES = (("attn_qkv", "Q5_K", 8192, 2560), ("attn_gate", "Q4_K", 4096, 2560),
          ("attn_q", "Q4_K", 8192, 2560), ("ffn_gate", "Q4_K", 9216, 2560),
          ("ffn_down", "Q6_K", 2560, 9216), ("ffn_down", "Q4_K", 2560, 9216),
          ("ssm_out", "Q5_K", 2560, 4096), ("ssm_alpha", "Q8_0", 32, 2560),
          ("attn_v", "Q6_K", 1024, 2560), ("output", "Q6_K", 248320, 2560))
"""The matrices of a 4B file: name, type, rows and columns."""


def random_weights(kind: str, rows: int, columns: int) -> tuple[Weight, Tensor]:
    """Return a matrix of random bytes with small, finite scales, and its packed tiles."""
    block = TYPES[kind]
    raw = torch.randint(0, 256, (rows, columns // block.weights, block.bytes), dtype=torch.uint8)
    for at in {"Q4_K": (1, 3), "Q5_K": (1, 3), "Q6_K": (209,), "Q8_0": (1,)}[kind]:
        raw[:, :, at] = raw[:, :, at] & 0x83 | 0x20
    flat = raw.reshape(rows, -1)
    return Weight("w", kind, flat.numpy()), pack(kind, flat.cuda(), block.bytes)


def _time_product(weight: Weight, copies: list[Tensor], m: int) -> dict[str, float]:
    """Time one product of m rows, with every copy of the weights in turn."""
    quantised = mma.quantize(torch.randn(m, weight.k, device="cuda"))
    out = torch.empty(m, weight.n, device="cuda")
    return time_replays([
        partial(mma.launch, [mma.LaunchPart([weight], packed, [out])], quantised)
        for packed in copies])


def measure(ms: Sequence[int], shapes: Sequence[tuple[str, str, int, int]] = SHAPES,
            tell: Callable[[str], None] = lambda line: None) -> ProductTimes:
    """Time every shape at every width."""
    speed, figures = measure_bandwidth(), list[ProductTime]()
    for name, kind, rows, columns in shapes:
        block = TYPES[kind]
        size = rows * (columns // block.weights) * block.bytes
        weight, packed = random_weights(kind, rows, columns)
        copies = [packed.clone() for _ in range(max(2, min(24, BYTES_BEYOND_CACHE // size + 1)))]
        figures += [ProductTime.model_validate({
            "name": name, "kind": kind, "rows": rows, "columns": columns, "m": m,
            "floor": size / speed * 1e6, **_time_product(weight, copies, m)}) for m in ms]
        tell(f"{name} {kind} {rows}x{columns}: floor {figures[-1].floor:.2f} us, " + ", ".join(
            f"m={f.m} {f.microseconds:.2f}" for f in figures[-len(ms):]))
    x = torch.ones(8, 2560, device="cuda")
    shared = time_replays([partial(mma.quantize, x)] * 20)["microseconds"]
    return ProductTimes(**conditions("cuda", speed), quantize_m8_us=shared, figures=tuple(figures))
