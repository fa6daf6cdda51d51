"""Embedding lookup by tokens on the device, so a step does not need the host."""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.blocks import TYPES
from engine.kernels import launch
from engine.kernels.decode import CODES, load_group, typed_bytes
from engine.state import to_device
from engine.weights import Weight


@triton.jit
def _embed(weight, tokens, out, k, row_bytes, KIND: tl.constexpr):
    at, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(tokens + at) + tl.zeros([1], tl.int64)
    inside = row >= 0
    w = load_group(weight, row, inside, group, k, row_bytes, KIND, 1)
    column = group * 256 + tl.arange(0, 256)
    tl.store(out + at * k + column, tl.reshape(w, [256]), mask=column < k)


def embed(weight: Weight, tokens: Sequence[int] | Tensor, out: Tensor) -> None:
    """Write the dequantised rows of tokens i64[t] into contiguous out f32[t, K]."""
    tokens = to_device(torch.as_tensor(tokens), out.device)
    launch(_embed, (len(tokens), triton.cdiv(weight.k, 256)), typed_bytes(weight, out.device),
           tokens, out, weight.k, TYPES[weight.kind].row_bytes(weight.k), KIND=CODES[weight.kind])
