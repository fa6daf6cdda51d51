"""The distance of two rows: bit-equal, within budget, flipped at a near-tie, or diverged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from contracts.schema import Budget

Kind = Literal["bit-equal", "within budget", "near-tie", "diverged"]


@dataclass(frozen=True)
class Closeness:
    """The result of comparing two rows."""

    kind: Kind
    """The closest kind that applies to the row."""
    cosine: float
    """1 for two rows of zeros; NaN when either row contains NaN."""
    norm_ratio: float
    """The norm of the row got over the norm of the row wanted."""
    margin: float
    """The wanted row's top-2 margin over its standard deviation, or infinity without a flip."""


def cosine_and_norm_ratio(got: Tensor, want: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosine [rows] and norm ratio [rows], in f64, of two tensors [rows, n].

    A row of zeros against a row of zeros counts as equal; NaN stays NaN.
    """
    a, b = got.detach().cpu().double(), want.detach().cpu().double()
    norm_a, norm_b = a.norm(dim=-1), b.norm(dim=-1)
    both_zero = (norm_a == 0) & (norm_b == 0)
    ones = torch.ones_like(norm_a)
    cosine = torch.where(both_zero, ones, (a * b).sum(-1) / (norm_a * norm_b))
    return cosine, torch.where(both_zero, ones, norm_a / norm_b)


def flip_margin(got: Tensor, want: Tensor) -> float:
    """Return the margin in `want` [n] between its argmax and the argmax of `got` [n].

    The unit is the standard deviation of `want`. Rows with the same argmax give infinity.
    """
    a, b = got.detach().cpu().double(), want.detach().cpu().double()
    first, other = int(b.argmax()), int(a.argmax())
    if first == other:
        return float("inf")
    return float((b[first] - b[other]) / b.std(unbiased=False))


def classify(got: Tensor, want: Tensor, budget: Budget) -> Closeness:
    """Return how close one row of logits [n] is to the expected row [n]."""
    cosine, ratio = (float(x) for x in cosine_and_norm_ratio(got[None], want[None]))
    margin = flip_margin(got, want)
    inside = cosine >= budget.cosine and abs(ratio - 1) <= budget.norm  # a NaN is not inside
    kind: Kind = "diverged"
    if inside:
        kind = "within budget" if margin == float("inf") else "near-tie"
    if kind == "near-tie" and not margin <= budget.near_tie:
        kind = "diverged"
    if _same_bytes(got, want) and bool(torch.isfinite(got).all()):
        kind = "bit-equal"
    return Closeness(kind, cosine, ratio, margin)


def _same_bytes(a: Tensor, b: Tensor) -> bool:
    a, b = a.detach().cpu().contiguous(), b.detach().cpu().contiguous()
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))
