"""Generated files are complete, the same on every machine, and of the shapes they name."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from engine import draw, make
from engine.blocks import TYPES, dequantize, has_finite_scales, unpack_blocks
from engine.config import Config
from engine.errors import InputError
from engine.gguf_file import GgufFile, open_gguf
from engine.make import make_model
from engine.model import Model
from engine.shapes import QUANTS, SHAPES, plan_tensors

DIGESTS = {
    ("nano", "mixed"):
        "0d3489a71117572c7090effed36fd496744dbf0e1d9d7f2aba1f6b1c067bcedf",
    ("tiny", "mixed"):
        "44ef02462b454ffda393ac23537d5e46680f43f84d80d4541ba731e5652f8f9e",
    ("nano", "f32"):
        "d4a5f0e5984038b27702d80f5aa6454f1125d0aeb31efd414fc7e6476ea446df",
    ("nano", "q4_k_m"):
        "84c74da4f12cbf53be8db5b69f34b8c6b92433e377cd0e6009a103e5ab02c795",
}


@pytest.mark.parametrize(("shape", "quant"), DIGESTS)
def test_a_generated_file_has_its_recorded_bytes(shape: str, quant: str, tmp_path: Path) -> None:
    path = make_model(tmp_path / "new.gguf", shape, quant)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == DIGESTS[shape, quant]


@pytest.fixture(scope="module", params=["nano", "tiny"])
def mixed(request: pytest.FixtureRequest,
          tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    """Write a small model of mixed types."""
    path = tmp_path_factory.mktemp("models") / f"{request.param}.gguf"
    return open_gguf(make_model(path, request.param, "mixed"))


def read_config(file: GgufFile) -> Config:
    """Read the config of an open file."""
    rows = file.tensors["token_embd.weight"].shape[0]
    return Config.from_metadata(file.metadata, rows, "output.weight" not in file.tensors)


def test_every_weight_type_occurs_in_a_mixed_file(mixed: GgufFile) -> None:
    matrices = {e.kind for e in mixed.tensors.values() if len(e.shape) == 2 and e.shape[1] > 4}
    assert matrices == set(TYPES)


def test_the_package_reads_a_generated_file_and_the_model_uses_all_of_it(mixed: GgufFile) -> None:
    reader = gguf.GGUFReader(mixed.path)
    assert {t.name for t in reader.tensors} == set(mixed.tensors)
    assert Model.load(mixed.path).weights.ignored_names == ()
    assert all(has_finite_scales(e.kind, e.data) for e in mixed.tensors.values())


def test_metadata_say_everything_that_readers_ask_for(mixed: GgufFile) -> None:
    got, config = mixed.metadata, read_config(mixed)
    assert got["general.architecture"] == "qwen35"
    assert isinstance(got["tokenizer.chat_template"], str)
    tokens, types = got["tokenizer.ggml.tokens"], got["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list)
    assert isinstance(types, list)
    assert len(tokens) == len(types) == config.vocab
    assert tokens[-6:-3] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert types[-6:] == [3, 3, 3, 3, 4, 4]
    assert got["tokenizer.ggml.eos_token_id"] == tokens.index("<|im_end|>")
    assert got["tokenizer.ggml.padding_token_id"] == tokens.index("<|vision_pad|>")


def test_layer_kinds_come_from_a_list_in_tiny_and_from_an_interval_in_nano(tmp_path: Path) -> None:
    tiny = open_gguf(make_model(tmp_path / "tiny.gguf", "tiny", "mixed"))
    nano = open_gguf(make_model(tmp_path / "nano.gguf", "nano", "mixed"))
    assert read_config(tiny).recurrent == (True, True, False, True, False)
    assert "qwen35.full_attention_interval" not in tiny.metadata
    assert read_config(nano).recurrent == (True, False)
    assert "qwen35.attention.recurrent_layers" not in nano.metadata


def test_no_two_heads_or_norms_have_the_same_constants(mixed: GgufFile) -> None:
    seen: list[bytes] = []
    for entry in mixed.tensors.values():
        if len(entry.shape) == 1:
            values = dequantize("F32", entry.data)[0]
            assert len(np.unique(values)) > 0.9 * len(values)
            assert not np.any(values == 1)
            seen.append(values.tobytes())
    assert len(set(seen)) == len(seen)


def test_one_gdn_layer_has_faint_query_and_key_channels(mixed: GgufFile) -> None:
    config = read_config(mixed)
    faint = []
    for layer in config.gdn_layers:
        entry = mixed.tensors[f"blk.{layer}.ssm_conv1d.weight"]
        taps = np.abs(dequantize("F32", entry.data.reshape(1, -1))).reshape(entry.shape)
        keys, values = taps[:2 * config.key_dim], taps[2 * config.key_dim:]
        if keys.mean() < 1e-3 * values.mean():
            faint.append(layer)
    assert faint == [0]


@pytest.mark.parametrize(("shape", "parameters", "tensors"), [
    ("0.8b", 752_393_024, 320), ("4b", 4_205_751_296, 426), ("9b", 8_953_803_264, 427)])
def test_released_sizes_have_their_parameters(shape: str, parameters: int, tensors: int) -> None:
    planned = plan_tensors(SHAPES[shape], "q4_k_m")
    assert sum(int(np.prod(t.shape)) for t in planned) == parameters
    assert len({t.name for t in planned}) == len(planned) == tensors


def test_a_4b_file_has_the_types_and_the_bytes_of_a_real_one() -> None:
    planned = plan_tensors(SHAPES["4b"], "q4_k_m")
    assert sum(make._tensor_bytes(t) for t in planned) == 2_731_997_184
    kinds = {t.role: t.kind for t in planned if len(t.shape) == 2 and t.role != "ffn_down"}
    assert {role for role, kind in kinds.items() if kind == "Q4_K"} == {
        "ffn_gate", "ffn_up", "attn_gate", "attn_q", "attn_k", "attn_output"}
    assert {role: kind for role, kind in kinds.items() if kind != "Q4_K"} == {
        "token_embd": "Q6_K", "attn_v": "Q6_K", "attn_qkv": "Q5_K", "ssm_out": "Q5_K",
        "ssm_alpha": "Q8_0", "ssm_beta": "Q8_0", "ssm_conv1d": "F32"}
    down = [t.kind for t in planned if t.role == "ffn_down"]
    assert (down.count("Q6_K"), down.count("Q4_K")) == (16, 16)


@pytest.mark.parametrize("quant", QUANTS)
def test_a_small_released_shape_is_drawn_directly_and_loads(quant: str,
                                                            tmp_path: Path) -> None:
    path = make_model(tmp_path / "new.gguf", "4b", quant, embd=512, ffn=512, layers=4, heads=2,
                      kv_heads=1, key_heads=1, value_heads=2, vocab=4100)
    model = Model.load(path)
    logits = model.forward_single(7, model.new_state(1), 0)
    assert 0.3 < float(logits.std()) < 3


@pytest.mark.parametrize("kind", TYPES)
def test_blocks_drawn_directly_have_the_requested_mean_and_deviation(kind: str) -> None:
    rows = dequantize(kind, draw.random_blocks(kind, "a stream", 256, 2048, 0.02)).astype(float)
    assert abs(rows.std() / 0.02 - 1) < 0.03
    assert abs(rows.mean()) < 0.02 * 5 / np.sqrt(rows.size) + (0.5 * 0.02 / 74)
    assert np.abs(rows.mean(1)).max() < 0.02 * 5 / np.sqrt(2048)


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K"])
def test_minima_drawn_directly_cancel_the_mean_of_every_sub_block(kind: str) -> None:
    parts = unpack_blocks(kind, draw.random_blocks(kind, "a stream", 16, 2048, 0.02))
    assert parts.scale is not None
    assert parts.minimum is not None
    assert parts.dmin is not None
    assert np.array_equal(parts.scale, parts.minimum)
    assert (parts.scale.min(), parts.scale.max()) == (32, 63)
    assert np.array_equal(parts.dmin, parts.d * {"Q4_K": 7.5, "Q5_K": 15.5}[kind])


def test_a_tensor_of_several_chunks_is_not_the_same_chunk_again(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw, "CHUNK", 256 * 100)
    file = open_gguf(make_model(tmp_path / "new.gguf", "nano", "f32"))
    rows = dequantize("F32", file.tensors["token_embd.weight"].data)
    assert rows.shape == (509, 256)
    assert len(np.unique(rows, axis=0)) == 509


def test_the_number_of_threads_changes_no_byte(tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    files = []
    for threads in (1, 7):
        monkeypatch.setattr(os, "cpu_count", lambda threads=threads: threads)
        files.append(make_model(tmp_path / f"{threads}.gguf", "nano", "mixed").read_bytes())
    assert files[0] == files[1]


def test_seeds_give_different_weights_and_the_same_metadata(tmp_path: Path) -> None:
    one, two = (open_gguf(make_model(tmp_path / f"{s}.gguf", "nano", "mixed", s)) for s in (1, 2))
    assert {k for k in one.metadata if one.metadata[k] != two.metadata[k]} == {"general.name"}
    for name, entry in one.tensors.items():
        assert entry.data.tobytes() != two.tensors[name].data.tobytes()


def test_rows_that_fit_no_block_take_a_smaller_type_in_other_head_shapes(
        tmp_path: Path) -> None:
    file = open_gguf(make_model(tmp_path / "odd.gguf", "nano", "q4_k_m", embd=288, ffn=300,
                                key_heads=3, value_heads=6, heads=3, kv_heads=1, tied=True))
    config = read_config(file)
    assert (config.key_heads, config.value_heads, config.heads, config.kv_heads) == (3, 6, 3, 1)
    assert config.tied
    assert file.tensors["blk.0.attn_gate.weight"].kind == "Q8_0"
    assert file.tensors["blk.0.ffn_down.weight"].kind == "F16"
    model = Model.load(file.path)
    assert bool(model.forward_single(0, model.new_state(1), 0).isfinite().all())


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"shape": "5b"}, "--shape 5b is not known; known are nano, tiny, 0.8b"),
    ({"quant": "q2_k"}, "--quant q2_k is not known; known are q4_k_m, f32, mixed"),
    ({"seed": -1}, "seed must lie between 0"), ({"vocab": 100}, "100 tokens is too small"),
    ({"embd": 0}, "embd must lie between"), ({"heads": 3}, "3 query heads cannot share 2"),
    ({"value_heads": 3}, "3 value heads cannot share 2"), ({"layers": 0}, "layers must lie"),
])
def test_impossible_shapes_are_refused_and_nothing_is_written(
        changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        make_model(tmp_path / "new.gguf", **{"shape": "nano", "quant": "mixed", **changes})
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_exists_is_replaced_only_by_force(tmp_path: Path) -> None:
    path = tmp_path / "mine.gguf"
    path.write_bytes(b"precious")
    with pytest.raises(InputError, match=r"mine\.gguf exists; --force replaces it"):
        make_model(path, "nano", "mixed")
    assert path.read_bytes() == b"precious"
    make_model(path, "nano", "mixed", force=True)
    assert open_gguf(path).tensors
    with pytest.raises(InputError, match="is a directory"):
        make_model(tmp_path, "nano", "mixed", force=True)
    with pytest.raises(InputError, match=r"cannot write .*: No such file"):
        make_model(tmp_path / "no" / "new.gguf", "nano", "mixed")


def test_a_file_in_use_keeps_its_bytes_when_its_name_is_given_to_another(tmp_path: Path) -> None:
    path = make_model(tmp_path / "mine.gguf", "nano", "mixed")
    entry = open_gguf(path).tensors["output.weight"]
    before = entry.data.tobytes()
    make_model(path, "nano", "mixed", 2, force=True)
    assert entry.data.tobytes() == before
    assert open_gguf(path).tensors["output.weight"].data.tobytes() != before


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    path = tmp_path / "mine.gguf"
    path.write_bytes(b"precious")
    monkeypatch.setattr(make, "_write_chunk", full)
    with pytest.raises(InputError, match=r"cannot write .*mine\.gguf: No space left on device"):
        make_model(path, "nano", "mixed", force=True)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.gguf"]
    assert path.read_bytes() == b"precious"


def test_progress_ends_at_the_last_byte(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    make_model(tmp_path / "new.gguf", "nano", "mixed",
               progress=lambda done, total: calls.append((done, total)))
    assert calls == sorted(calls)
    total = sum(make._tensor_bytes(t) for t in plan_tensors(SHAPES["nano"], "mixed"))
    assert calls[-1] == (total, total)
