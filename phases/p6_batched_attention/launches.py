"""How attention is cut into launches, for Triton and CUDA alike; nothing here decides a bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.errors import InputError
from engine.ops import SPLIT
from engine.state import KV_TYPES, Ints, Refs

DIM = 256
"""Width of a head; a model of another is refused when it is loaded."""
MAX_TOKENS = 1024
"""Tokens of one launch."""
SCRATCH_FLOATS = 1 << 25
"""Floats of partial results that one launch may leave for the next."""


@dataclass(frozen=True)
class Launch:
    """Some of a step's tokens, few enough for the room."""

    first: int
    tokens: int
    splits: int
    """Splits of the longest of them; a token with fewer leaves the rest alone."""

    def scratch(self, heads: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return room for each split's largest score and sum, and for its weighted values."""
        parts = self.tokens * heads * self.splits
        return like.new_empty(parts * 2), like.new_empty(parts * DIM)


def plan_launches(lengths: Sequence[int], counts: Sequence[int], heads: int) -> Iterator[Launch]:
    """Yield the launches of a step: tokens in order, partial results bounded."""
    reach = [length + i + 1 for length, count in zip(lengths, counts, strict=True)
             for i in range(count)]
    room = SCRATCH_FLOATS // (heads * DIM)
    first = 0
    while first < len(reach):
        last, longest = first + 1, reach[first]
        while last < min(len(reach), first + MAX_TOKENS):
            wider = max(longest, reach[last])
            if -(-wider // SPLIT) * (last + 1 - first) > room:
                break
            last, longest = last + 1, wider
        yield Launch(first, last - first, -(-longest // SPLIT))
        first = last


def as_ints(values: Sequence[int]) -> Ints:
    """Return rows' integers in the form that can be asked for on a device."""
    return values if isinstance(values, Ints) else Ints(values)


def check_operands(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, keys: Refs, values: Refs,
          out: Tensor) -> None:
    """Refuse operands that a kernel would misread, before anything is written."""
    caches = {"the key cache": keys.whole, "the value cache": values.whole}
    for name, x in {"q": q, "k": k, "v": v, "gate": gate, "out": out, **caches}.items():
        fits = x.dtype in KV_TYPES.values() if name in caches else x.dtype == torch.float32
        if not fits or x.shape[-1] != DIM or x.stride(-1) != 1:
            kinds = " or ".join(KV_TYPES) if name in caches else "f32"
            raise InputError(f"{name} of attention must be {kinds} with heads of {DIM} "
                             f"neighbouring values, but is {str(x.dtype).removeprefix('torch.')}"
                             f"{list(x.shape)} with strides {list(x.stride())}")
        if x.device != out.device:
            raise InputError(f"{name} is on {x.device}, but out is on {out.device}")
    if keys.whole.dtype != values.whole.dtype:
        raise InputError(f"keys are cached in {keys.whole.dtype}, but values in "
                         f"{values.whole.dtype}")
    if not q.shape == gate.shape == out.shape or k.shape != v.shape or len(q) != len(k):
        raise InputError(f"shapes of attention do not fit: q {list(q.shape)}, k {list(k.shape)}, "
                         f"v {list(v.shape)}, gate {list(gate.shape)}, out {list(out.shape)}")
    if q.shape[1] % k.shape[1]:
        raise InputError(f"{q.shape[1]} query heads cannot share {k.shape[1]} KV heads evenly")
