"""Split-KV attention in CUDA C++ (`attend.cu`, compiled by NVRTC); same bits as `kernel_attend`.

Each key and value is read once for all query heads of its KV head. A block starts all loads of its
split before it computes. The append to the cache is part of the launch, so decode takes two
launches per layer. The result is also quantised for the next product.
"""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, c_longlong, c_void_p
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import InputError
from engine.kernels.nvrtc import Kernel, compile_source
from engine.quantised import QuantisedActivations
from engine.state import Refs
from phases.p5_batched_gdn import increment as before
from phases.p6_batched_attention.launches import DIM, SPLIT, as_ints, check_operands, plan_launches

SOURCE = Path(__file__).with_name("attend.cu")
ALIGNMENT = 16
"""Bytes of the widest load."""


class Strides(Structure):
    """Strides of tokens (or cache rows) and of heads, in elements."""

    _fields_ = (("token", c_longlong), ("head", c_longlong))


def source() -> str:
    """Return the source of `attend.cu` with its headers."""
    return before.quantising_kernels().source(SOURCE)


def options(q_per_kv: int, kv: torch.dtype = torch.float32) -> tuple[str, ...]:
    """Return the NVRTC options for a number of query heads per KV head, and a cache type."""
    narrow = {torch.float16: "f16", torch.bfloat16: "bf16"}.get(kv)
    return (f"-DQ_PER_KV={q_per_kv}", *([f'-DNARROW_KV="{narrow}"'] if narrow else ()))


def shared_bytes(q_per_kv: int, kv: torch.dtype) -> int:
    """Return the shared memory per block: values in the cache type, queries and weights."""
    padded_heads = -(-q_per_kv // 4) * 4
    return kv.itemsize * SPLIT * DIM + 4 * (q_per_kv * DIM + SPLIT * padded_heads)


@cache
def _function(name: str, q_per_kv: int, kv: torch.dtype) -> Kernel:
    return Kernel(compile_source(source(), options(q_per_kv, kv)), name, pdl=True)


def strides(x: Tensor) -> Strides:
    """Return the strides of x [..., tokens, heads, D]."""
    return Strides(x.stride(-3), x.stride(-2))


def is_aligned(x: Tensor) -> bool:
    """Return whether each head of x [..., heads, D] is aligned to ALIGNMENT bytes."""
    offsets = (x.data_ptr(), *(x.element_size() * stride for stride in x.stride()[:-1]))
    return not any(offset % ALIGNMENT for offset in offsets)


def attend(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, keys: Refs, values: Refs,
           lengths: Sequence[int], counts: Sequence[int], out: Tensor) -> QuantisedActivations:
    """Append k and v [t, G, D] to each row's cache and write gated attention into out[t, H, D]."""
    check_operands(q, k, v, gate, keys, values, out)
    for name, cache_ in (("key", keys.all_slots), ("value", values.all_slots)):
        if not is_aligned(cache_):
            raise InputError(f"heads of the {name} cache must begin at multiples of {ALIGNMENT} "
                             f"bytes")
    q, k, v = (x if is_aligned(x) else x.contiguous().clone() for x in (q, k, v))
    heads, kv_heads, m = q.shape[1], k.shape[1], len(counts)
    lengths, counts = as_ints(lengths), as_ints(counts)
    one_token_each = all(count == 1 for count in counts)
    starts = c_void_p() if one_token_each else counts.starts.on(out.device)
    rows = starts, lengths.on(out.device), m
    pointers = keys.pointers, values.pointers
    input_strides = [strides(x) for x in (q, k, v, keys.all_slots, values.all_slots)]
    q_per_kv, kv = heads // kv_heads, keys.all_slots.dtype
    split, merge = (_function(name, q_per_kv, kv) for name in ("split", "merge"))
    quantised, argument = before.quantising_kernels().room(len(q), heads * DIM, out.device)
    for launch in plan_launches(lengths, counts, heads):
        stats, partials = launch.scratch(heads, out)
        split((launch.splits, launch.tokens * kv_heads), 256, shared_bytes(q_per_kv, kv), q, k, v,
              *pointers, *rows, launch.first, kv_heads, *input_strides, stats, partials)
        merge((heads, launch.tokens), 256, 0, gate, *rows, launch.first, launch.splits, stats,
              partials, out, strides(gate), strides(out), argument)
    return QuantisedActivations.of(out, quantised)
