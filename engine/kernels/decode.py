"""Dequantises weight blocks to f32 inside a kernel (contracts/arithmetic.md, item 9).

Blocks of 34 and 210 bytes are aligned to two bytes only, so quants and scales are loaded as bytes,
each byte once.
"""

# mypy: ignore-errors

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.device_bytes import device_bytes
from engine.weights import Weight

CODES = {"F32": 0, "F16": 1, "BF16": 2, "Q4_K": 4, "Q5_K": 5, "Q6_K": 6, "Q8_0": 8}
"""The type code that kernels take as KIND."""


def typed_bytes(weight: Weight, device: torch.device) -> Tensor:
    """Return a matrix's bytes on a device in the type that kernels load; BF16 as u16."""
    wide = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.uint16}
    raw = device_bytes(weight, device)
    return raw.view(wide[weight.kind]) if weight.kind in wide else raw


@triton.jit
def load_half(at, mask):
    """Return the f16 at two bytes as f32, in the shape of `at`."""
    low = tl.load(at, mask=mask, other=0).to(tl.int32)
    high = tl.load(at + 1, mask=mask, other=0).to(tl.int32)
    return (low | (high << 8)).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def load_scales(block, inside, N: tl.constexpr):
    """Return the eight scales and eight minima in the 12 bytes at `block`: int32[N, 8] each."""
    at = block[:, None] + tl.arange(0, 4)[None, :]
    low = tl.load(at, mask=inside[:, None], other=0).to(tl.int32)
    middle = tl.load(at + 4, mask=inside[:, None], other=0).to(tl.int32)
    high = tl.load(at + 8, mask=inside[:, None], other=0).to(tl.int32)
    scale = tl.join(low & 63, (high & 15) | ((low >> 6) << 4))
    minimum = tl.join(middle & 63, (high >> 4) | ((middle >> 6) << 4))
    return (tl.reshape(tl.permute(scale, [0, 2, 1]), [N, 8]),
            tl.reshape(tl.permute(minimum, [0, 2, 1]), [N, 8]))


@triton.jit
def load_nibbles(at, inside, N: tl.constexpr, RUN: tl.constexpr):
    """Return 128 bytes as int32[N, 256]: per RUN bytes the low nibbles, then the high ones."""
    byte = tl.load(at[:, None] + tl.arange(0, 128)[None, :], mask=inside[:, None],
                   other=0).to(tl.int32)
    byte = tl.reshape(byte, [N, 128 // RUN, RUN])
    both = tl.permute(tl.join(byte & 15, byte >> 4), [0, 1, 3, 2])
    return tl.reshape(both, [N, 256])


@triton.jit
def load_q45(block, inside, KIND: tl.constexpr, N: tl.constexpr):
    """Return one super-block of Q4_K or Q5_K per row as f32[N, 256]."""
    d, dmin = load_half(block, inside), load_half(block + 2, inside)
    scale, minimum = load_scales(block + 4, inside, N)
    q = tl.reshape(load_nibbles(block + (48 if KIND == 5 else 16), inside, N, 32), [N, 8, 32])
    if KIND == 5:
        fifth = tl.load(block[:, None] + 16 + tl.arange(0, 32)[None, :], mask=inside[:, None],
                        other=0).to(tl.int32)
        q = q | (((fifth[:, None, :] >> tl.arange(0, 8)[None, :, None]) & 1) << 4)
    step = d[:, None] * scale.to(tl.float32)
    low = dmin[:, None] * minimum.to(tl.float32)
    return tl.reshape(step[:, :, None] * q.to(tl.float32) - low[:, :, None], [N, 256])


@triton.jit
def load_q6(block, inside, N: tl.constexpr):
    """Return one super-block of Q6_K per row as f32[N, 256]."""
    two = tl.load(block[:, None] + 128 + tl.arange(0, 64)[None, :], mask=inside[:, None],
                  other=0).to(tl.int32)
    shift = 2 * tl.arange(0, 4)[None, None, :, None]
    high = (tl.reshape(two, [N, 2, 1, 32]) >> shift) & 3
    q = (load_nibbles(block, inside, N, 64) | (tl.reshape(high, [N, 256]) << 4)) - 32
    scale = tl.load(block[:, None] + 192 + tl.arange(0, 16)[None, :], mask=inside[:, None], other=0)
    step = load_half(block + 208, inside)[:, None] * scale.to(tl.int8, bitcast=True).to(tl.float32)
    return tl.reshape(step[:, :, None] * tl.reshape(q, [N, 16, 16]).to(tl.float32), [N, 256])


@triton.jit
def load_q8(row, inside, group, k, N: tl.constexpr):
    """Return eight blocks of Q8_0 per row as f32[N, 256]; columns past k are zero."""
    j = group * 8 + tl.arange(0, 8)
    block = row[:, None] + j[None, :] * 34
    valid = inside[:, None] & (j * 32 < k)[None, :]
    d = load_half(block, valid)
    q = tl.load(block[:, :, None] + 2 + tl.arange(0, 32)[None, None, :], mask=valid[:, :, None],
                other=0)
    return tl.reshape(d[:, :, None] * q.to(tl.int8, bitcast=True).to(tl.float32), [N, 256])


@triton.jit
def load_float(weight, row, inside, group, k, KIND: tl.constexpr):
    """Return 256 weights of F32, F16 or BF16 per row as f32[N, 256]; columns past k are zero."""
    column = group * 256 + tl.arange(0, 256)
    mask = inside[:, None] & (column < k)[None, :]
    at = weight + row[:, None] + column[None, :]
    if KIND == 2:
        bits = tl.load(at, mask=mask, other=0).to(tl.int32)
        return (bits << 16).to(tl.float32, bitcast=True)
    return tl.load(at, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def load_group(weight, row, inside, group, k, row_bytes, KIND: tl.constexpr, N: tl.constexpr):
    """Return columns 256 * group to 256 * group + 255 of rows `row` i64[N] as f32[N, 256]."""
    if KIND < 3:
        w = load_float(weight, row * k, inside, group, k, KIND)
    elif KIND == 8:
        w = load_q8(weight + row * row_bytes, inside, group, k, N)
    elif KIND == 6:
        w = load_q6(weight + row * row_bytes + group * 210, inside, N)
    else:
        w = load_q45(weight + row * row_bytes + group * (144 if KIND == 4 else 176), inside,
                        KIND, N)
    return w
