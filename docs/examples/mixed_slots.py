"""A candidate that P6 refuses: one padded call for all rows, which uses row numbers as slots.

    pytest -m phase6 --candidate file:docs/examples/mixed_slots.py

At m = 1 in slot 0 every row is correct. In a batch a row reads another row's slot.
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
            slot = keys.slots[row]
            keys.all_slots[slot, n], values.all_slots[slot, n] = k[at], v[at]
            seen = (x.all_slots[row, :n + 1].transpose(0, 1).unsqueeze(0) for x in (keys, values))
            read = scaled_dot_product_attention(q[at][None, :, None], *seen, enable_gqa=True)
            out[at] = read[0, :, 0] * torch.sigmoid(gate[at])
            at += 1
