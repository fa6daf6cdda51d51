"""Compares products of sampled matrices with integer arithmetic, a few rows of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from falsifiers.instruments import scalar_reference
from falsifiers.judging.batch_driver import make_prompt
from falsifiers.judging.judge import Judge

INPUT_SCALES = (1.0, 1 / 64, 16.0)
"""The scales of the input rows."""


class ProductSampler:
    """Chooses one matrix of each role and type, and compares rows of its product."""

    rows = 3
    """Rows of W that the scalar reference computes, for every input row."""

    def __init__(self, matrices: Sequence[Any],
                 project: Callable[[Any, Tensor, Tensor], None]) -> None:
        self.project = project
        groups: dict[tuple[str, str], list[Any]] = {}
        for weight in matrices:
            role = weight.name.removesuffix(".weight").rsplit(".", 1)[-1]
            groups.setdefault((role, weight.kind), []).append(weight)
        # small matrices first, so that a short time covers many types
        self.selection = sorted((group[len(group) // 2] for group in groups.values()),
                             key=lambda weight: weight.n * weight.k)

    @property
    def estimated_seconds(self) -> float:
        """The estimated seconds of the scalar reference, from one measured row."""
        if not self.selection:
            return 0.0
        weight: Any = self.selection[0]
        started = time.perf_counter()
        _reference_value(weight, 0, _input_rows(weight.k)[0].numpy())
        rate = (time.perf_counter() - started) / weight.k
        return float(rate * self.rows * len(INPUT_SCALES) * sum(int(w.k) for w in self.selection))

    def check_product(self, weight: Any, judge: Judge) -> None:
        """Compare rows of the product with the scalar reference, and x[1] with itself at m = 1."""
        x = _input_rows(weight.k)
        together, single = torch.empty(len(x), weight.n), torch.empty(1, weight.n)
        self.project(weight, x, together)
        for row in _spread_rows(weight.n, self.rows):
            for number, values in enumerate(x.numpy()):
                want = torch.tensor([_reference_value(weight, row, values)])
                judge.equal("product", together[number, row:row + 1], want, rule="truth",
                            tensor=weight.name, row=number, output=row)
        self.project(weight, x[1:2].clone(), single)
        judge.equal("product", together[1], single[0], tensor=weight.name, row=1)
        judge.engaged(type=weight.kind, arithmetic=weight.arithmetic, n=weight.n, k=weight.k)


def _spread_rows(n: int, count: int) -> list[int]:
    """Return up to `count` row numbers from the first to the last."""
    return sorted({round(i * (n - 1) / max(1, count - 1)) for i in range(count)})


def _input_rows(k: int) -> Tensor:
    """Return one input row f32[k] of each size, the same on every machine."""
    rows = [make_prompt(1000 + i, k, 1 << 16) for i in range(len(INPUT_SCALES))]
    values = (np.array(rows, dtype=np.float32) - 32768) / 16384
    return torch.from_numpy(values * np.array(INPUT_SCALES, dtype=np.float32)[:, None])


def _reference_value(weight: Any, row: int, x: np.ndarray) -> float:
    row_product = (scalar_reference.ordered_row if weight.arithmetic == "ordered"
                   else scalar_reference.exact_row)
    value: np.float32 = row_product(weight.kind, bytes(weight.raw[row]), x)
    return float(value)
