"""A candidate for P6: torch's attention, called for each token of each row.

    pytest -m phase6 --candidate file:docs/examples/sdpa_rows.py

It declares no arithmetic, so `truth` uses the contract's budget; `twin` is still bitwise. It passes
`twin` because each call gets a single token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def attend(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, keys: Any, values: Any,
           lengths: tuple[int, ...], counts: tuple[int, ...], out: Tensor) -> None:
    """Append k and v [t, G, 256] to each row's cache and write gated attention into out."""
    at = 0
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        for n in range(length, length + count):
            cached_k = keys.all_slots[keys.slots[row]]
            cached_v = values.all_slots[values.slots[row]]
            cached_k[n], cached_v[n] = k[at], v[at]
            seen = (x[:n + 1].transpose(0, 1).unsqueeze(0) for x in (cached_k, cached_v))
            read = scaled_dot_product_attention(q[at][None, :, None], *seen, enable_gqa=True)
            out[at] = read[0, :, 0] * torch.sigmoid(gate[at])
            at += 1
