"""Every tensor is used once or ignored by name; every parameter is present and finite."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from engine import testmodels
from engine.errors import InputError
from engine.gguf_file import GgufFile, TensorEntry, open_gguf
from engine.load import load_weights


def _nano_with(**tensors: TensorEntry | None) -> GgufFile:
    """Return the open nano file with tensors replaced, added or (None) taken away."""
    file = open_gguf(testmodels.model_path("nano"))
    changed = {**file.tensors, **{name.replace("__", "."): t for name, t in tensors.items()}}
    return replace(file, tensors={k: v for k, v in changed.items() if v is not None})


def _f32_entry(name: str, shape: tuple[int, ...], value: float = 1.0) -> TensorEntry:
    rows = 1 if len(shape) == 1 else shape[0]
    data = np.full(shape, value, "<f4").reshape(rows, -1).view(np.uint8)
    return TensorEntry(name, "F32", shape, data)


def test_every_tensor_of_a_generated_file_is_used() -> None:
    config, weights = load_weights(_nano_with())
    assert weights.ignored_names == ()
    assert len(weights.layers) == config.layers
    used = {w.name for w in weights.matrices()}
    assert len(used) == sum(1 for _ in weights.matrices())


@pytest.mark.parametrize(("tensors", "named"), [
    ({"token_embd__weight": None}, "token_embd.weight is missing"),
    ({"output_norm__weight": None}, "output_norm.weight is missing"),
    ({"blk__0__ssm_dt__bias": None}, "blk.0.ssm_dt.bias is missing"),
    ({"blk__0__surprise__weight": _f32_entry("blk.0.surprise.weight", (4,))}, "surprise"),
    ({"blk__0__ssm_a": _f32_entry("blk.0.ssm_a", (5,))}, r"\[5\]"),
    ({"blk__0__ssm_a": _f32_entry("blk.0.ssm_a", (4,), float("inf"))}, "not finite"),
    ({"blk__1__attn_k__weight": _f32_entry("blk.1.attn_k.weight", (8, 256))}, r"\[8, 256\]"),
])
def test_a_file_whose_tensors_do_not_add_up_is_refused(tensors: dict[str, Any],
                                                       named: str) -> None:
    with pytest.raises(InputError, match=named):
        load_weights(_nano_with(**tensors))


def test_a_quantised_norm_is_refused() -> None:
    file = _nano_with()
    entry = file.tensors["token_embd.weight"]
    wrong = TensorEntry("output_norm.weight", "Q8_0", (256,), np.zeros((1, 272), np.uint8))
    assert entry.kind != "F32"
    with pytest.raises(InputError, match="Q8_0"):
        load_weights(replace(file, tensors={**file.tensors, "output_norm.weight": wrong}))


def test_prediction_blocks_and_vision_tensors_are_ignored_by_name() -> None:
    extra = {"blk__2__eh_proj__weight": _f32_entry("blk.2.eh_proj.weight", (4,)),
             "v__patch__weight": _f32_entry("v.patch.weight", (4,))}
    file = _nano_with(**extra)
    metadata = {**file.metadata, "qwen35.block_count": 3, "qwen35.nextn_predict_layers": 1}
    _, weights = load_weights(replace(file, metadata=metadata))
    assert weights.ignored_names == ("blk.2.eh_proj.weight", "v.patch.weight")


def test_a_missing_head_is_the_embedding() -> None:
    _, weights = load_weights(_nano_with(output__weight=None))
    assert weights.head is weights.embedding
    _, plain = load_weights(_nano_with())
    assert plain.head is not plain.embedding
    assert torch.equal(plain.embedding.rows([0]), weights.embedding.rows([0]))
