"""How long a product takes on a device, beside the floor measured in the same run.

A figure is the median of graph replays over copies of the weights that do not fit the L2 cache, in
microseconds a product; the floor is the file's bytes over the read bandwidth found just before.
Quantising the activations is told apart, since products that read the same ones share it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import c_longlong
from statistics import median

import torch
from torch import Tensor

from engine.blocks import TYPES
from engine.kernels.nvrtc import Kernel, compile_source
from engine.weights import Weight
from falsifiers.gate.benchmark_records import ProductTime, ProductTimes
from phases.p3_row_twin import kernel_exact_mma as mma
from phases.p3_row_twin.packing import pack

SHAPES = (("attn_qkv", "Q5_K", 8192, 2560), ("attn_gate", "Q4_K", 4096, 2560),
          ("attn_q", "Q4_K", 8192, 2560), ("ffn_gate", "Q4_K", 9216, 2560),
          ("ffn_down", "Q6_K", 2560, 9216), ("ffn_down", "Q4_K", 2560, 9216),
          ("ssm_out", "Q5_K", 2560, 4096), ("ssm_alpha", "Q8_0", 32, 2560),
          ("attn_v", "Q6_K", 1024, 2560), ("output", "Q6_K", 248320, 2560))
"""The matrices of a 4B file: what it is, type, rows and columns."""
BYTES_BEYOND_CACHE = 400_000_000
REPLAYS = 9
READ_KERNEL = """
extern "C" __global__ void read_all(const uint4* p, long long n, unsigned* out) {
  unsigned a = 0;
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  const long long s = (long long)gridDim.x * blockDim.x;
  for (; i + 3 * s < n; i += 4 * s) {
    uint4 v[4];
#pragma unroll
    for (int u = 0; u < 4; u++) v[u] = p[i + u * s];
#pragma unroll
    for (int u = 0; u < 4; u++) a ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
  }
  if (a == 0x9e3779b9) *out = a;
}
"""


def time_replays(run: Callable[[], None]) -> tuple[float, float, float]:
    """Return median, least and most microseconds of replays of a captured run."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    times = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return median(times), min(times), max(times)


def measure_bandwidth() -> float:
    """Return the bytes a second that a read-only pass over 4 GiB reaches here."""
    buffer = torch.empty(1 << 30, dtype=torch.int32, device="cuda")
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    kernel = Kernel(compile_source(READ_KERNEL, ()), "read_all")
    blocks = 16 * torch.cuda.get_device_properties(0).multi_processor_count
    best = time_replays(
        lambda: kernel((blocks, 1), 512, 0, buffer, c_longlong(buffer.nbytes // 16), out)
    )
    return buffer.nbytes / best[0] * 1e6


def random_weights(kind: str, rows: int, columns: int) -> tuple[Weight, Tensor]:
    """Return a matrix of random bytes with small, finite scales, and its packed tiles."""
    block = TYPES[kind]
    raw = torch.randint(0, 256, (rows, columns // block.weights, block.bytes), dtype=torch.uint8)
    for at in {"Q4_K": (1, 3), "Q5_K": (1, 3), "Q6_K": (209,), "Q8_0": (1,)}[kind]:
        raw[:, :, at] = raw[:, :, at] & 0x83 | 0x20
    flat = raw.reshape(rows, -1)
    return Weight("w", kind, flat.numpy()), pack(kind, flat.cuda(), block.bytes)


def _product_run(weight: Weight, copies: list[Tensor], m: int) -> Callable[[], None]:
    """Return a run of one product with every copy of the weights."""
    quantised = mma.quantize(torch.randn(m, weight.k, device="cuda"))
    out = torch.empty(m, weight.n, device="cuda")

    def run() -> None:
        for packed in copies:
            mma.launch([mma.LaunchPart([weight], packed, [out])], quantised)

    return run


def _quantize_twenty() -> None:
    x = torch.ones(8, 2560, device="cuda")
    for _ in range(20):
        mma.quantize(x)


def measure(ms: Sequence[int], shapes: Sequence[tuple[str, str, int, int]] = SHAPES,
            tell: Callable[[str], None] = lambda line: None) -> ProductTimes:
    """Measure every shape at every width; return figures with their conditions."""
    speed, figures = measure_bandwidth(), list[ProductTime]()
    for name, kind, rows, columns in shapes:
        block = TYPES[kind]
        size = rows * (columns // block.weights) * block.bytes
        weight, packed = random_weights(kind, rows, columns)
        copies = [packed.clone() for _ in range(max(2, min(24, BYTES_BEYOND_CACHE // size + 1)))]
        for m in ms:
            middle, least, most = time_replays(_product_run(weight, copies, m))
            figures.append(ProductTime(
                name=name, kind=kind, rows=rows, columns=columns, m=m, floor=size / speed * 1e6,
                microseconds=middle / len(copies), fastest=least / len(copies),
                slowest=most / len(copies)))
        tell(f"{name} {kind} {rows}x{columns}: floor {figures[-1].floor:.2f} us, " + ", ".join(
            f"m={f.m} {f.microseconds:.2f}" for f in figures[-len(ms):]))
    shared = time_replays(_quantize_twenty)[0] / 20
    return ProductTimes(device=torch.cuda.get_device_name(), torch=torch.__version__,
                    bandwidth_tb_s=speed / 1e12, quantize_m8_us=shared, figures=tuple(figures))
