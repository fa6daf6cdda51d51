"""The kernel that reads the embedding rows of a graph's tokens, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from engine import ops
from engine.encode import encode
from engine.weights import Weight

pytestmark = pytest.mark.tier("interpret")


def make_embedding(kind: str, rows: int, k: int) -> Weight:
    """Return an embedding of drawn values."""
    values = torch.randn(rows, k, generator=torch.Generator().manual_seed(k))
    return Weight("token_embd", kind, encode(kind, values.numpy()))


@pytest.mark.parametrize(("kind", "k"), [("Q4_K", 512), ("Q6_K", 256), ("Q8_0", 288), ("F16", 257)])
def test_rows_of_tokens_equal_the_engines(kind: str, k: int) -> None:
    from phases.p8_decode_graph.kernel_embed import embed
    weight, tokens = make_embedding(kind, 7, k), [6, 0, 3, 0]
    want, out = torch.empty(4, k), torch.full((5, k), torch.nan)
    ops.embed(weight, tokens, want)
    embed(weight, torch.tensor(tokens), out[:4])
    assert torch.equal(out[:4], want)
    assert bool(out[4].isnan().all())


def test_row_of_the_nan_token_is_zeros() -> None:
    from phases.p8_decode_graph.kernel_embed import embed

    weight, want = make_embedding("F16", 3, 256), torch.empty(1, 256)
    out = torch.full((2, 256), torch.nan)
    ops.embed(weight, [2], want)
    embed(weight, torch.tensor([-1, 2]), out)
    assert not bool(out[0].any())
    assert torch.equal(out[1:], want)
