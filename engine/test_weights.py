"""Weight matrices: large ones, which are widened by chunks, have the bits of small ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine import weights
from engine.blocks import TYPES
from engine.errors import InputError
from engine.weights import Weight


def _random_blocks(kind: str, n: int, k: int) -> np.ndarray:
    block = TYPES[kind]
    raw = np.random.default_rng(3).integers(0, 256, (n, k // block.weights, block.bytes), np.uint8)
    for at in {"Q4_K": (1, 3), "Q5_K": (1, 3), "Q6_K": (209,), "Q8_0": (1,), "F16": (1,)}[kind]:
        raw[:, :, at] &= 0xBB  # finite scales
    return raw.reshape(n, -1)


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K", "Q8_0", "F16"])
@pytest.mark.parametrize("arithmetic", ["exact-23", "ordered"])
def test_chunked_and_widened_matrices_have_the_same_bits(
        kind: str, arithmetic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw, x = (_random_blocks(kind, 37, 512),
              torch.randn(3, 512, generator=torch.Generator().manual_seed(1)))
    want = Weight("w", kind, raw, arithmetic).product(x)
    monkeypatch.setattr(weights, "_MAX_WIDENED_WEIGHTS", 0)
    monkeypatch.setattr(weights, "_CHUNK", 5 * 512)
    assert torch.equal(Weight("w", kind, raw, arithmetic).product(x), want)


def test_unit_vectors_return_each_weight() -> None:
    weight = Weight("w", "Q6_K", _random_blocks("Q6_K", 4, 256))
    picked = weight.product(torch.eye(256)).T
    assert torch.allclose(picked, weight.rows([0, 1, 2, 3]), rtol=1e-6, atol=0)


def test_unknown_arithmetics_are_refused() -> None:
    with pytest.raises(InputError, match="exact-8"):
        Weight("w", "Q4_K", _random_blocks("Q4_K", 1, 256), "exact-8")


def test_float_types_have_only_the_ordered_product() -> None:
    assert Weight("w", "F16", _random_blocks("F16", 1, 256)).arithmetic == "ordered"
