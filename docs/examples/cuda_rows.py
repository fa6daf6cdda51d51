"""A candidate for P3 in CUDA C++, built when it is first used by torch's extension loader.

    rowtwin gate --phase 3 --device cuda --candidate file:docs/examples/cuda_rows.py

It needs a device, `nvcc` and a host compiler, and takes Q4_K alone; everything else it declines
with its reason. Its arithmetic is its own (f32, fused multiply-adds, 32 lanes), so `truth` is
judged by the contract's budget. It passes `twin` because a row is added up in the same order, by
the same instructions, whatever m is: more rows only mean more sums held in registers.
"""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

WIDEST = 64
KERNEL = """
__device__ __forceinline__ float half_of(const unsigned char* at) {
  float value;
  const unsigned short bits = at[0] | at[1] << 8;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}

// out[i][row] for up to M rows of x: a warp takes one row of weights and reads each block once.
template <int M>
__global__ void rows(const unsigned char* weight, const float* x, float* out, long long n,
                     long long blocks, int m, long long x_stride, long long out_stride) {
  const long long row = (long long)blockIdx.x * blockDim.y + threadIdx.y;
  const int lane = threadIdx.x;
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
HOST = """
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

template <int M>
void launch(const torch::Tensor& weight, const torch::Tensor& x, torch::Tensor& out) {
  const dim3 block(32, 4);
  const long long n = weight.size(0);
  rows<M><<<(n + 3) / 4, block, 0, at::cuda::getCurrentCUDAStream()>>>(
      weight.data_ptr<unsigned char>(), x.data_ptr<float>(), out.data_ptr<float>(), n,
      weight.size(1) / 144, x.size(0), x.stride(0), out.stride(0));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

void gemv_rows(torch::Tensor weight, torch::Tensor x, torch::Tensor out) {
  const auto m = x.size(0);
  if (m <= 1) launch<1>(weight, x, out);
  else if (m <= 4) launch<4>(weight, x, out);
  else if (m <= 16) launch<16>(weight, x, out);
  else launch<64>(weight, x, out);
}
"""


def supports(case: Any) -> str | None:
    """Return why a case cannot be taken, or None."""
    if case.tier != "cuda" or not torch.cuda.is_available():
        return "it runs on a CUDA device alone"
    if case["kind"] != "Q4_K":
        return "it decodes Q4_K alone"
    from torch.utils import cpp_extension
    return None if cpp_extension.CUDA_HOME else "it is built by nvcc, which is not here"


@cache
def built() -> Any:
    """Return the compiled extension; torch keeps it for the next process."""
    from torch.utils import cpp_extension
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # which architectures are built is no fault of a product
        return cpp_extension.load_inline(
            "rowtwin_cuda_rows", "void gemv_rows(torch::Tensor, torch::Tensor, torch::Tensor);",
            "#include <torch/extension.h>\n" + KERNEL + HOST, functions=["gemv_rows"])


def prepare(weight: Any) -> Tensor:
    """Return the matrix as the kernel wants it: the file's blocks u8[N, bytes], on the device."""
    return torch.from_numpy(np.array(weight.raw)).cuda()


def gemv_rows(weight: Tensor, x: Tensor, out: Tensor) -> None:
    """Write W x for every row of x f32[m, K] into out f32[m, N]."""
    for first in range(0, len(x), WIDEST):
        built().gemv_rows(weight, x[first:first + WIDEST], out[first:first + WIDEST])
