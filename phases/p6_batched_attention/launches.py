"""Splits a step's attention into launches, for Triton and CUDA. It affects no bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.errors import InputError
from engine.ops import SPLIT
from engine.state import KV_TYPES, Ints, Refs

DIM = 256
"""Head width; loading a model with another width fails."""
MAX_TOKENS = 1024
"""Largest number of tokens per launch."""
MAX_SCRATCH = 1 << 25
"""Largest number of floats of partial results per launch."""


@dataclass(frozen=True)
class Launch:
    """Consecutive tokens of a step whose partial results fit the scratch limit."""

    first: int
    tokens: int
    splits: int
    """Splits of the longest token; shorter tokens do not use the rest."""

    def scratch(self, heads: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Allocate each split's statistics (largest score, sum of weights) and weighted values."""
        n_partials = self.tokens * heads * self.splits
        return like.new_empty(n_partials * 2), like.new_empty(n_partials * DIM)


def plan_launches(lengths: Sequence[int], counts: Sequence[int], heads: int) -> Iterator[Launch]:
    """Yield the launches of a step: tokens in order, partial results bounded."""
    n_keys = [length + i + 1 for length, count in zip(lengths, counts, strict=True)
             for i in range(count)]
    max_splits = MAX_SCRATCH // (heads * DIM)
    first = 0
    while first < len(n_keys):
        last, longest = first + 1, n_keys[first]
        while last < min(len(n_keys), first + MAX_TOKENS):
            new_longest = max(longest, n_keys[last])
            if -(-new_longest // SPLIT) * (last + 1 - first) > max_splits:
                break
            last, longest = last + 1, new_longest
        yield Launch(first, last - first, -(-longest // SPLIT))
        first = last


def as_ints(values: Sequence[int]) -> Ints:
    """Return per-row integers as `Ints`, which can be copied to a device."""
    return values if isinstance(values, Ints) else Ints(values)


def check_operands(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, keys: Refs, values: Refs,
          out: Tensor) -> None:
    """Raise `InputError` for operands that a kernel would misread, before anything is written."""
    caches = {"the key cache": keys.all_slots, "the value cache": values.all_slots}
    for name, x in {"q": q, "k": k, "v": v, "gate": gate, "out": out, **caches}.items():
        fits = x.dtype in KV_TYPES.values() if name in caches else x.dtype == torch.float32
        if not fits or x.shape[-1] != DIM or x.stride(-1) != 1:
            kinds = " or ".join(KV_TYPES) if name in caches else "f32"
            raise InputError(f"{name} of attention must be {kinds} with heads of {DIM} "
                             f"neighbouring values, but is {str(x.dtype).removeprefix('torch.')}"
                             f"{list(x.shape)} with strides {list(x.stride())}")
        if x.device != out.device:
            raise InputError(f"{name} is on {x.device}, but out is on {out.device}")
    if keys.all_slots.dtype != values.all_slots.dtype:
        raise InputError(f"keys are cached in {keys.all_slots.dtype}, but values in "
                         f"{values.all_slots.dtype}")
    if not q.shape == gate.shape == out.shape or k.shape != v.shape or len(q) != len(k):
        raise InputError(f"shapes of attention do not fit: q {list(q.shape)}, k {list(k.shape)}, "
                         f"v {list(v.shape)}, gate {list(gate.shape)}, out {list(out.shape)}")
    if q.shape[1] % k.shape[1]:
        raise InputError(f"{q.shape[1]} query heads cannot share {k.shape[1]} KV heads evenly")
