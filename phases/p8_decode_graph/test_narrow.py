"""Graphs of one model over caches of several types: each type has its own graph."""

from __future__ import annotations

import torch

from engine import testmodels
from engine.path import Rows
from phases.p8_decode_graph import increment


def test_each_type_of_cache_has_its_own_graph() -> None:
    graph, eager = increment.path(), increment.path(graphs=False)
    logits = {}
    for kv in ("f32", "f16", "bf16", "f32"):
        model = testmodels.load("nano").with_kv(kv)
        pools = [model.new_pool(3, 8) for _ in range(2)]
        for position in range(2):
            rows, tokens = Rows.decode((2, 0), (position,) * 2), (7 + position, 9)
            got, want = (path.step(model, pool, tokens, rows)
                         for path, pool in zip((graph, eager), pools, strict=True))
            assert torch.equal(got, want)
        for slot in (0, 2):
            assert pools[0].slot(slot).digest() == pools[1].slot(slot).digest()
        logits[kv] = got
    assert not torch.equal(logits["f32"], logits["f16"])
    assert not torch.equal(logits["f16"], logits["bf16"])
