"""A candidate for P3 in CUDA C++, compiled when it is first used.

    rowtwin gate --phase 3 --device emulate --candidate file:docs/examples/cuda_rows.py
    rowtwin gate --phase 3 --device cuda --candidate file:docs/examples/cuda_rows.py

The first runs it on the CPU, with the device emulated; the second needs a device, and NVRTC, which
a CUDA build of torch brings. It takes Q4_K alone; everything else it declines with its reason. Its
arithmetic is its own (f32, fused multiply-adds, 32 lanes), so `truth` is judged by the contract's
budget. It passes `twin` because a row is added up in the same order, by the same instructions,
whatever m is: more rows only mean more sums held in registers.
"""

from __future__ import annotations

from ctypes import c_longlong
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.kernels.nvrtc import Kernel, compile_source

WARPS = 4
"""Rows of weights that a block takes, a warp each."""
KERNEL = """
__device__ __forceinline__ float half_of(const unsigned char* at) {
  float value;
  const unsigned short bits = at[0] | at[1] << 8;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

// out[i][row] for up to M rows of x: a warp takes one row of weights and reads each block once.
extern "C" __global__ void rows(const unsigned char* weight, const float* x, float* out,
                                long long n, long long blocks, int m, long long x_stride,
                                long long out_stride) {
  const long long row = (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= n) return;
  float sum[M];
#pragma unroll
  for (int i = 0; i < M; i++) sum[i] = 0.0f;
  for (long long b = 0; b < blocks; b++) {
    const unsigned char* block = weight + (row * blocks + b) * 144;
    const unsigned char* packed = block + 4;
    const float d = half_of(block), dmin = half_of(block + 2);
    for (int j = 0; j < 8; j++) {  // a sub-block of 32 columns, one a lane
      const int scale = j < 4 ? packed[j] & 63 : (packed[j + 4] & 15) | packed[j - 4] >> 6 << 4;
      const int low = j < 4 ? packed[j + 4] & 63 : packed[j + 4] >> 4 | packed[j] >> 6 << 4;
      const int q = block[16 + j / 2 * 32 + lane] >> 4 * (j % 2) & 15;
      const float w = fmaf(d * scale, q, -dmin * low);  // told, so that every M contracts alike
      const float* at = x + b * 256 + j * 32 + lane;
#pragma unroll
      for (int i = 0; i < M; i++)
        if (i < m) sum[i] = fmaf(w, at[i * x_stride], sum[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < M; i++) {
    for (int step = 16; step; step /= 2) sum[i] += __shfl_xor_sync(~0u, sum[i], step);
    if (lane == 0 && i < m) out[i * out_stride + row] = sum[i];
  }
}
"""
ROWS = (1, 4, 16, 64)
"""Rows that a variant of the kernel takes at most."""


def supports(case: Any) -> str | None:
    """Return why a case cannot be taken, or None."""
    if case.tier not in ("cuda", "emulate"):
        return "it runs on a CUDA device alone, or where one is emulated"
    return None if case["kind"] == "Q4_K" else "it decodes Q4_K alone"


@cache
def compiled(most: int) -> Kernel:
    """Return the variant for up to so many rows."""
    return Kernel(compile_source(KERNEL, (f"-DM={most}",)), "rows")


def prepare(weight: Any) -> Tensor:
    """Return the matrix as the kernel wants it: the file's blocks u8[N, bytes]."""
    blocks = torch.from_numpy(np.array(weight.raw))
    return blocks.cuda() if torch.cuda.is_available() else blocks


def gemv_rows(weight: Tensor, x: Tensor, out: Tensor) -> None:
    """Write W x for every row of x f32[m, K] into out f32[m, N]."""
    n, blocks = len(weight), weight.shape[1] // 144
    for first in range(0, len(x), ROWS[-1]):
        some, into = x[first:first + ROWS[-1]], out[first:first + ROWS[-1]]
        m = len(some)
        kernel = compiled(next(most for most in ROWS if m <= most))
        kernel(((n + WARPS - 1) // WARPS, 1), 32 * WARPS, 0, weight, some, into, c_longlong(n),
               c_longlong(blocks), m, c_longlong(some.stride(0)), c_longlong(into.stride(0)))
