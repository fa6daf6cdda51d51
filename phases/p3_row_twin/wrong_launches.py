"""A wrong product that only device counters detect: one launch per row."""

from __future__ import annotations

from torch import Tensor

from contracts.schema import DEVICE_TIERS, Case
from engine.weights import EXACT, Weight
from phases.p3_row_twin.increment import gemv_rows as right

ARITHMETIC = EXACT


def supports(case: Case) -> str | None:
    return None if case.tier in DEVICE_TIERS else "its fault is one of launches on a device"


def gemv_rows(weight: Weight, x: Tensor, out: Tensor) -> None:
    for row, into in zip(x.split(1), out.split(1), strict=True):
        right(weight, row, into)
