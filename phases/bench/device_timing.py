"""How kernels are timed: CUDA graph replays, next to the bandwidth that the same run reads."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from ctypes import c_longlong
from statistics import median
from typing import Any

import torch

from engine.kernels.nvrtc import Kernel, compile_source

BYTES_BEYOND_CACHE = 400_000_000
"""Bytes of weights or state that do not fit the L2 cache together."""
HOST_BUFFER = 1 << 27
"""Bytes that a host without a device reads to measure its bandwidth."""
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


def time_replays(runs: Sequence[Callable[[], object]]) -> dict[str, float]:
    """Return the microseconds of one of `runs`, which one graph captures and replays in order.

    `microseconds` is the median; `fastest` and `slowest` are the extremes.
    """
    def run_all() -> None:
        for run in runs:
            run()

    run_all()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run_all()
    times = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / len(runs))
    return {"microseconds": median(times), "fastest": min(times), "slowest": max(times)}


def measure_bandwidth() -> float:
    """Return the bytes a second that a read-only pass reaches on the device, or on the host."""
    if not torch.cuda.is_available():
        return _measure_host_bandwidth()
    buffer = torch.empty(1 << 30, dtype=torch.int32, device="cuda")
    out = torch.zeros(1, dtype=torch.int32, device="cuda")
    kernel = Kernel(compile_source(READ_KERNEL, ()), "read_all")
    blocks = 16 * torch.cuda.get_device_properties(0).multi_processor_count
    count = c_longlong(buffer.nbytes // 16)
    spent = time_replays([lambda: kernel((blocks, 1), 512, 0, buffer, count, out)])
    return buffer.nbytes / spent["microseconds"] * 1e6


def conditions(device: str, bandwidth: float) -> dict[str, Any]:
    """Return the conditions that every benchmark record states; bandwidth in bytes a second."""
    name = (torch.cuda.get_device_name() if device.startswith("cuda")
            else f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)")
    return {"device": name, "torch": torch.__version__, "bandwidth_tb_s": bandwidth / 1e12}


def _measure_host_bandwidth() -> float:
    """Return the bytes a second of the best of five sums on the host."""
    buffer, best = torch.ones(HOST_BUFFER // 8, dtype=torch.float64), float("inf")
    for _ in range(5):
        began = time.perf_counter()
        buffer.sum()
        best = min(best, time.perf_counter() - began)
    return buffer.nbytes / best
