"""A config has the values of the file, and an error names the wrong key."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import Config
from engine.errors import InputError


def metadata(**changes: object) -> dict[str, object]:
    """Return the metadata of a four-layer model; `None` removes a key, `__` stands for a dot."""
    values: dict[str, object] = {
        "block_count": 4, "context_length": 4096, "embedding_length": 512,
        "feed_forward_length": 768, "attention.head_count": 2, "attention.head_count_kv": 1,
        "attention.key_length": 256, "attention.value_length": 256,
        "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e7,
        "rope.dimension_count": 64, "rope.dimension_sections": [11, 11, 10, 0],
        "ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.group_count": 2,
        "ssm.time_step_rank": 4, "ssm.inner_size": 512}
    values |= {key.replace("__", "."): value for key, value in changes.items()}
    named = {f"qwen35.{key}": value for key, value in values.items() if value is not None}
    return {"general.architecture": "qwen35", **named}


def read_config(**changes: object) -> Config:
    """Read a config from changed metadata."""
    return Config.from_metadata(metadata(**changes), vocab=1021, tied=False)


def test_every_number_lands_in_its_own_field() -> None:
    got = read_config()
    assert got.recurrent == (True, True, True, False)
    assert (got.layers, got.embd, got.ffn, got.vocab, got.context) == (4, 512, 768, 1021, 4096)
    assert (got.heads, got.kv_heads, got.head_dim, got.rope_dim) == (2, 1, 256, 64)
    assert (got.rope_base, got.eps, got.rope_sections) == (1e7, 1e-6, (11, 11, 10, 0))
    assert (got.conv_kernel, got.key_heads, got.value_heads, got.state_size) == (4, 2, 4, 128)
    assert (got.key_dim, got.value_dim, got.conv_dim) == (256, 512, 1024)
    assert (got.query_dim, got.kv_dim) == (512, 256)
    assert (got.gdn_layers, got.attention_layers) == ((0, 1, 2), (3,))
    assert not got.tied


@pytest.mark.parametrize("key", [key.removeprefix("qwen35.") for key in metadata()])
def test_a_required_key_that_is_absent_is_refused_by_its_name(key: str) -> None:
    values = metadata()
    name = key if key in values else f"qwen35.{key}"
    del values[name]
    with pytest.raises(InputError, match=f"key {name} is missing"):
        Config.from_metadata(values, vocab=8, tied=True)


def test_the_per_layer_list_wins_over_the_interval() -> None:
    got = read_config(attention__recurrent_layers=[True, False, True, True],
                      full_attention_interval=2)
    assert got.recurrent == (True, False, True, True)


def test_the_interval_places_full_attention_last_in_each_group() -> None:
    assert read_config(full_attention_interval=2).recurrent == (True, False, True, False)
    assert read_config(block_count=5).recurrent == (True, True, True, False, True)


def test_prediction_blocks_are_counted_but_are_no_layers() -> None:
    got = read_config(block_count=6, nextn_predict_layers=1,
               attention__recurrent_layers=[True, True, True, False, True, False])
    assert got.layers == 5
    assert got.recurrent == (True, True, True, False, True)
    assert read_config(block_count=5, nextn_predict_layers=1).recurrent == (True, True, True, False)


def test_key_value_heads_given_per_layer_are_those_of_the_attention_layers() -> None:
    assert read_config(attention__head_count_kv=[0, 0, 0, 1]).kv_heads == 1
    with pytest.raises(InputError, match="differs between layers"):
        read_config(full_attention_interval=2, attention__head_count_kv=[0, 1, 0, 2])
    with pytest.raises(InputError, match="too few"):
        read_config(attention__head_count_kv=[0, 1])


def test_three_sections_are_read_when_they_mean_plain_rope() -> None:
    assert read_config(rope__dimension_sections=[11, 11, 10]).rope_sections == (11, 11, 10)


@pytest.mark.parametrize("sections", [
    [32, 0, 0, 0], [0, 32, 0, 0], [8, 8, 8, 8], [11, 11, 9, 1], [11, 11, 10, 1], [12, 11, 9, 0],
    [11, 10, 10, 0], [], [32], [-1, 22, 11, 0]])
def test_sections_that_are_not_plain_rope_for_text_are_refused(sections: list[int]) -> None:
    with pytest.raises(InputError, match="sections"):
        read_config(rope__dimension_sections=sections)


@pytest.mark.parametrize(("changes", "sentence"), [
    ({"ssm__inner_size": 511}, "inner_size is 511, which contradicts"),
    ({"attention__value_length": 128}, "value_length is 128, which contradicts"),
    ({"attention__key_length": 128, "attention__value_length": 128}, "width 128 are not"),
    ({"attention__head_count": 3, "attention__head_count_kv": 2}, "cannot share 2 key-value"),
    ({"ssm__time_step_rank": 3, "ssm__inner_size": 384}, "cannot share 2 key"),
    ({"ssm__conv_kernel": 3}, "3 taps"),
    ({"ssm__state_size": 64, "ssm__inner_size": 256}, "GDN heads of width 64"),
    ({"block_count": 0}, "block_count must lie between 1"),
    ({"block_count": 1 << 31}, "block_count must lie between 1"),
    ({"block_count": "4"}, "block_count must be an integer"),
    ({"block_count": True}, "block_count must be an integer"),
    ({"block_count": 2, "nextn_predict_layers": 2}, "leaves no layer"),
    ({"attention__recurrent_layers": [True, False]}, "has 2 entries, but block_count is 4"),
    ({"attention__recurrent_layers": [1, 2, 0, 0]}, "list of true and false"),
    ({"attention__recurrent_layers": "all"}, "list of true and false"),
    ({"nextn_predict_layers": 1, "attention__recurrent_layers": [True] * 4}, "prediction block"),
    ({"full_attention_interval": 0}, "interval must be at least 1"),
    ({"rope__freq_base": float("nan")}, "rope base must be finite"),
    ({"rope__freq_base": "1e7"}, "must be a number"),
    ({"rope__dimension_count": 63}, "rotated width"),
    ({"rope__dimension_count": 258}, "rotated width"),
    ({"rope__dimension_sections": 32}, "must be a list"),
    ({"attention__layer_norm_rms_epsilon": 0.0}, "epsilon"),
    ({"attention__layer_norm_rms_epsilon": float("inf")}, "epsilon"),
    ({"context_length": -1}, "context_length|context must"),
    ({"embedding_length": 1 << 30}, "embd must lie between"),
])
def test_contradictory_metadata_is_refused_by_name(changes: dict[str, object],
                                                   sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read_config(**changes)


@pytest.mark.parametrize("architecture", ["llama", "qwen35moe", 7])
def test_another_architecture_is_refused_by_its_name(architecture: object) -> None:
    with pytest.raises(InputError, match=f"must be qwen35, but is {architecture!r}"):
        Config.from_metadata({**metadata(), "general.architecture": architecture}, 8, False)


def test_a_config_built_directly_is_checked_too() -> None:
    with pytest.raises(InputError, match="list of layer kinds has 4 entries"):
        dataclasses.replace(read_config(), layers=5)
    with pytest.raises(InputError, match="vocab must lie between 1"):
        dataclasses.replace(read_config(), vocab=0)


@given(key=st.sampled_from(sorted(metadata())), value=st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(),
    st.lists(st.integers() | st.floats() | st.text() | st.booleans(), max_size=6)))
def test_any_value_under_any_key_is_read_or_refused_with_a_sentence(key: str,
                                                                    value: object) -> None:
    try:
        got = Config.from_metadata({**metadata(), key: value}, vocab=8, tied=True)
    except InputError:
        return
    assert got.layers == len(got.recurrent)
