"""A candidate for P3 in CUDA C++, compiled when it is first used.

    rowtwin gate --phase 3 --device emulate --candidate file:docs/examples/cuda_rows.py
    rowtwin gate --phase 3 --device cuda --candidate file:docs/examples/cuda_rows.py

The first command runs it on an emulated device; the second needs a device and NVRTC, which a CUDA
build of torch contains. It supports Q4_K, and declines everything else with a reason. It has its
own arithmetic (f32, fused multiply-adds, 32 lanes), so `truth` uses the contract's budget. It
passes `twin` because the order and the instructions of a row's sum do not depend on m: more rows
only need more accumulators.
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
"""Rows of weights in a block, one warp each."""
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
      const float w = fmaf(d * scale, q, -dmin * low);  // explicit: no M may contract otherwise
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
"""The largest number of rows of each variant of the kernel."""


def supports(case: Any) -> str | None:
    """Return why a case is declined, or None."""
    if case.tier not in ("cuda", "emulate"):
        return "it runs only on a CUDA device or an emulated one"
    return None if case["kind"] == "Q4_K" else "it decodes only Q4_K"


@cache
def compiled(most: int) -> Kernel:
    """Return the variant for up to this number of rows."""
    return Kernel(compile_source(KERNEL, (f"-DM={most}",)), "rows")


def prepare(weight: Any) -> Tensor:
    """Return the matrix in the kernel's layout: the file's blocks, u8[N, bytes]."""
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
