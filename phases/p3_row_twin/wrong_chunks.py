"""Wrong products of many rows: later chunks use the first chunk's quantised activations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.weights import Weight
from phases.p3_row_twin.increment import WIDEST, gemv_rows
from phases.p3_row_twin.increment import gemv_rows_all as right
from phases.p3_row_twin.wrong_launches import ARITHMETIC, supports

__all__ = ["ARITHMETIC", "gemv_rows", "gemv_rows_all", "supports"]


def gemv_rows_all(weights: Sequence[Weight], x: Tensor, outs: Sequence[Tensor]) -> None:
    right(weights, x[torch.arange(len(x), device=x.device) % WIDEST], outs)
