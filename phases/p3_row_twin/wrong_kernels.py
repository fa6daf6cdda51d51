"""Wrong Triton kernels for F32 and Q6_K; the constant FAULT selects the fault."""

# ruff: noqa: ANN001, ANN202
# mypy: ignore-errors
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import launch
from engine.kernels.decode import load_half, load_nibbles
from engine.kernels.device_bytes import device_bytes
from engine.weights import Weight
from phases.p3_row_twin import kernel_ordered
from phases.p3_row_twin.increment import GemvRows
from phases.p3_row_twin.kernel_ordered import pair_sums

NONE, ROWS, COLUMNS, STORE, REREAD, STRIDE, NARROW = range(7)


@triton.jit
def _f32_rows(weight, x, out, n, k, m, x_stride, out_stride, FAULT: tl.constexpr, N: tl.constexpr,
              M: tl.constexpr):
    wide = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    inside = (wide < n) | (FAULT == 1)
    row = tl.arange(0, M)
    first = row.to(tl.int64) * x_stride
    if FAULT == 6:
        first = first & 0x3FFFFFFF
    sums = tl.zeros([M, N, 256], tl.float32)
    for group in range((k + 255) // 256):
        column = group * 256 + tl.arange(0, 256)
        there = (column < k) | (FAULT == 2)
        at = weight + wide[:, None] * k + column[None, :]
        w = tl.load(at, mask=inside[:, None] & there[None, :], other=0.0)
        if FAULT == 4:
            for again in range(1, m):
                w = tl.load(at + again * 0, mask=inside[:, None] & there[None, :], other=0.0)
        value = tl.load(x + first[:, None] + column[None, :],
                        mask=(row < m)[:, None] & there[None, :], other=0.0)
        sums = sums + value[:, None, :] * w[None, :, :]
    y = tl.reshape(pair_sums(tl.reshape(sums, [M * N * 256]), M * N * 256, 8), [M, N])
    stored = (wide < n) | (FAULT == 3)
    tl.store(out + row.to(tl.int64)[:, None] * out_stride + wide[None, :], y,
             mask=(row < m)[:, None] & stored[None, :])


@triton.jit
def _q6_rows(weight, x, out, n, k, row_words, row_bytes, N: tl.constexpr):
    wide = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)
    inside = wide < n
    sums = tl.zeros([N, 256], tl.float32)
    for group in range(k // 256):
        block = weight + wide * row_bytes + group * 210
        words = (block + 192).to(tl.pointer_type(tl.uint32), bitcast=True)
        packed = tl.load(words[:, None] + tl.arange(0, 4)[None, :], mask=inside[:, None], other=0)
        scale = (packed[:, :, None] >> (8 * tl.arange(0, 4)[None, None, :])).to(tl.int32) & 255
        scale = tl.reshape(scale, [N, 16]).to(tl.int8)
        two = tl.load(block[:, None] + 128 + tl.arange(0, 64)[None, :], mask=inside[:, None],
                      other=0).to(tl.int32)
        high = (tl.reshape(two, [N, 2, 1, 32]) >> (2 * tl.arange(0, 4)[None, None, :, None])) & 3
        q = (load_nibbles(block, inside, N, 64) | (tl.reshape(high, [N, 256]) << 4)) - 32
        step = load_half(block + 208, inside)[:, None] * scale.to(tl.float32)
        w = step[:, :, None] * tl.reshape(q, [N, 16, 16]).to(tl.float32)
        sums = sums + tl.load(x + group * 256 + tl.arange(0, 256))[None, :] * tl.reshape(
            w, [N, 256])
    tl.store(out + wide, pair_sums(tl.reshape(sums, [N * 256]), N * 256, 8), mask=inside)


def f32_rows(fault: int, rows: int = 4) -> GemvRows:
    """Return an F32 product whose kernel has one fault, or none."""
    def product(weight: Weight, x: Tensor, out: Tensor) -> None:
        raw = device_bytes(weight, x.device).view(torch.float32)
        strides = (weight.k, weight.n) if fault == STRIDE else (x.stride(0), out.stride(0))
        launch(_f32_rows, (triton.cdiv(weight.n, rows),), raw, x, out, weight.n, weight.k, len(x),
               *strides, FAULT=fault, N=rows, M=triton.next_power_of_2(len(x)))

    return product


def words_at_odd_blocks(weight: Weight, x: Tensor, out: Tensor) -> None:
    raw = device_bytes(weight, x.device)
    for row, into in zip(x, out, strict=True):
        launch(_q6_rows, (triton.cdiv(weight.n, 4),), raw, row, into, weight.n, weight.k,
               0, raw.shape[1], N=4)


def launch_of_sixteen_rows(weight: Weight, x: Tensor, out: Tensor) -> None:
    for row in range(0, len(x), 16):
        kernel_ordered.gemv_rows(weight, x[row:row + 16], out[row:row + 16])


def launch_of_one_row(weight: Weight, x: Tensor, out: Tensor) -> None:
    for row, into in zip(x.split(1), out.split(1), strict=True):
        kernel_ordered.gemv_rows(weight, row, into)


def on_a_stream_of_its_own(weight: Weight, x: Tensor, out: Tensor) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(20_000_000)
        kernel_ordered.gemv_rows(weight, x, out)
