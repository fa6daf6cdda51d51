"""Split attention in CUDA C++: every key and value read once for all query heads of its group.

`attend.cu` compiled by NVRTC, the bits of `kernel_attend`: a block asks for all of its split's
memory before it computes; the append is part of the launch, and decode needs two launches a layer.
The result is returned quantised too, for the product that follows.
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
ALIGNED = 16
"""Bytes of one load."""


class Strides(Structure):
    """How far apart tokens (or rows of a cache) and heads stand, in values."""

    _fields_ = (("token", c_longlong), ("head", c_longlong))


def source() -> str:
    """Return the text that is compiled, with what it includes."""
    return before.quantising_kernels().source(SOURCE)


def options(group: int, kv: torch.dtype = torch.float32) -> tuple[str, ...]:
    """Return the compiler options for so many query heads a KV head, and a type of cache."""
    narrow = {torch.float16: "f16", torch.bfloat16: "bf16"}.get(kv)
    return (f"-DSHARING={group}", *([f'-DNARROW="{narrow}"'] if narrow else ()))


def shared_bytes(group: int, kv: torch.dtype) -> int:
    """Return the shared memory of a block: values as they are cached, queries and weights."""
    wide = -(-group // 4) * 4
    return kv.itemsize * SPLIT * DIM + 4 * (group * DIM + SPLIT * wide)


@cache
def _function(name: str, group: int, kv: torch.dtype) -> Kernel:
    return Kernel(compile_source(source(), options(group, kv)), name, early=True)


def strides(x: Tensor) -> Strides:
    """Return the strides of x [..., tokens, heads, D]."""
    return Strides(x.stride(-3), x.stride(-2))


def is_aligned(x: Tensor) -> bool:
    """Return whether each head of x [..., heads, D] begins at a whole load."""
    width = x.element_size()
    return not any(at % ALIGNED for at in (x.data_ptr(), *(width * s for s in x.stride()[:-1])))


def attend(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, keys: Refs, values: Refs,
           lengths: Sequence[int], counts: Sequence[int], out: Tensor) -> QuantisedActivations:
    """Append k and v [t, G, D] to each row's cache and write gated attention into out[t, H, D]."""
    check_operands(q, k, v, gate, keys, values, out)
    for name, cache_ in (("key", keys.whole), ("value", values.whole)):
        if not is_aligned(cache_):
            raise InputError(f"heads of the {name} cache must begin at multiples of {ALIGNED} "
                             f"bytes")
    q, k, v = (x if is_aligned(x) else x.contiguous().clone() for x in (q, k, v))
    heads, groups, m = q.shape[1], k.shape[1], len(counts)
    lengths, counts = as_ints(lengths), as_ints(counts)
    single = all(count == 1 for count in counts)
    rows = (c_void_p() if single else counts.starts.on(out.device), lengths.on(out.device), m)
    pointers = keys.pointers, values.pointers
    at = [strides(x) for x in (q, k, v, keys.whole, values.whole)]
    group, kv = heads // groups, keys.whole.dtype
    split, merge = (_function(name, group, kv) for name in ("split", "merge"))
    quantised, argument = before.quantising_kernels().room(len(q), heads * DIM, out.device)
    for one in plan_launches(lengths, counts, heads):
        tops, parts = one.scratch(heads, out)
        split((one.splits, one.tokens * groups), 256, shared_bytes(group, kv), q, k, v, *pointers,
              *rows, one.first, groups, *at, tops, parts)
        merge((heads, one.tokens), 256, 0, gate, *rows, one.first, one.splits, tops, parts, out,
              strides(gate), strides(out), argument)
    return QuantisedActivations.of(out, quantised)
