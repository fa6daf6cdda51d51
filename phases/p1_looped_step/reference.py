"""The looped step: each row's tokens through `forward_single`, one row after another.

It reads every weight once a token of every row, so it gains nothing from a batch; it is what the
later phases are compared with.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.model import Model
from engine.path import Path, Rows, Sink
from engine.state import Pool


def step_rows(path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
              sink: Sink | None) -> Tensor:
    """Advance each row by its tokens; return logits f32[m, vocab] of each row's last token."""
    return torch.stack([model.prefill(own, pool.slot(slot), position, sink)
                        for slot, position, own in rows.spans(tokens)])
