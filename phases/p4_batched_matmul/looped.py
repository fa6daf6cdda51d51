"""The looped step remade from `forward_single`, one token of one row at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.model import Model
from engine.path import Rows, Sink
from engine.state import Pool


def looped_step(model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
           sink: Sink | None = None) -> Tensor:
    """Advance each row by its tokens, one after another; return logits f32[m, vocab]."""
    return torch.stack([model.prefill(own, pool.slot(slot), position, sink)
                        for slot, position, own in rows.spans(tokens)])
