"""A malformed file is refused; the rules judge absent keys."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falsifiers.meta.witness.witness_files import WITNESS_TABLE, make_band, make_witness
from falsifiers.witness import file
from falsifiers.witness.file import BAND, WITNESS, MalformedWitness, parse_json, read_witness


@pytest.fixture
def written(tmp_path: Path) -> Any:
    """Return a function that writes bytes, a text or a value to a file and returns its path."""
    def write(what: Any) -> Path:
        path = tmp_path / "witness.json"
        if isinstance(what, bytes):
            path.write_bytes(what)
        else:
            path.write_text(what if isinstance(what, str) else json.dumps(what))
        return path

    return write


@pytest.mark.parametrize(("raw", "why"), [
    (b"", "the file is empty"), (b" \n", "the file is empty"), (b"\xef\xbb\xbf", "empty"),
    (b"{", "line 1 is not JSON"), (b"{}\n{}", "line 2 is not JSON: extra data"),
    (b"\xff{}", "byte 0 is not UTF-8"), (b"[]", "holds a list, not an object"),
    (b"null", "holds null, not an object"), (b"3", "holds a number, not an object"),
    (b'"x"', "holds a string, not an object"), (b"true", "holds true, not an object"),
    (b"{}", "the witness has no bands"), (b'{"bands": null}', "no bands"),
    (b'{"bands": []}', "no bands"), (b'{"bands": {}}', "bands must be a list, not an object"),
    (b'{"bands": [3]}', r"bands\[0\] must be an object, not a number"),
    (b'{"bands": [null]}', r"bands\[0\] must be an object, not null"),
    (b'{"bands": [{"c": NaN}]}', "NaN is not JSON"), (b'{"x": -Infinity}', "-Infinity is not"),
    (b'{"bands": [{"decode_tok_s": 1e999}]}', "decode_tok_s must be a number, not a number beyond"),
    (b'{"bands": [{"m_formed": ' + b"9" * 400 + b"}]}", "not a number beyond all bounds"),
    (b'{"bands": [{"c": ' + b"9" * 5000 + b"}]}", "holds a number that is too long"),
    (b'{"bands": [' + b"{}," * 4096 + b"3]}", "the witness has 4,097 bands, more than 4,096"),
    (b"[" * 200_000, "nested too deeply"), (b'{"a": 1, "a": 2}', "the same key twice"),
    (b'{"bands": [{"c": 4, "c": 8}]}', "the same key twice")])
def test_malformed_file_is_refused_in_a_sentence(written: Any, raw: bytes, why: str) -> None:
    with pytest.raises(MalformedWitness, match=why) as message:
        read_witness(written(raw))
    assert str(message.value).isprintable()


WRONG: dict[str, tuple[Any, ...]] = {
    file.INTEGER: (True, "4", 4.5, [4], {}), file.NUMBER: (False, "0.01", [], {}),
    file.TEXT: (True, 4, 1.5, [], {}), file.BOOLEAN: (1, 0, "true", [], {})}


def places(shape: Any, *path: Any) -> Any:
    """Yield every known key with the path to it."""
    if isinstance(shape, str):
        yield path, shape
    elif isinstance(shape, dict):
        for key, inner in shape.items():
            yield from places(inner, *path, key)
    else:
        yield from places(shape[0], *path, 0)


def full() -> dict[str, Any]:
    """Return a witness that holds every known object."""
    return make_witness(
        sampler={}, reference={}, bands=[make_band(c, slots=[{}]) for c in (1, 4, 8, 16)]
    )


def put(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    witness = full()
    inner: Any = witness
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return witness


@pytest.mark.parametrize(("path", "shape"), list(places(WITNESS)),
                         ids=lambda value: ".".join(map(str, value)) if value else "")
def test_present_field_of_the_wrong_type_is_malformed(written: Any, path: tuple[Any, ...],
                                                      shape: str) -> None:
    for value in WRONG[shape]:
        with pytest.raises(MalformedWitness, match=f"must be {shape}, not "):
            read_witness(written(put(path, value)))
    assert read_witness(written(put(path, None)))


@pytest.mark.parametrize("key", ["model", "sampler", "reference"])
@pytest.mark.parametrize("value", [3, "x", [], True])
def test_object_of_the_wrong_type_is_malformed(written: Any, key: str, value: Any) -> None:
    with pytest.raises(MalformedWitness, match=f"{key} must be an object"):
        read_witness(written(make_witness(**{key: value})))


def test_unknown_keys_hold_anything(written: Any) -> None:
    assert read_witness(
        written(make_witness(notes=[1, None, {"c": True}], bands=[make_band(4, gpus="four")]))
    )


def test_every_key_of_the_rules_has_a_type() -> None:
    assert set(make_witness()) - {"taken"} <= set(WITNESS)
    assert set(make_band(1)) <= set(BAND)


@pytest.mark.parametrize("name", WITNESS_TABLE)
def test_witnesses_of_the_table_are_well_formed(written: Any, name: str) -> None:
    assert read_witness(written(WITNESS_TABLE[name][0])) == WITNESS_TABLE[name][0]


def test_integer_may_be_written_with_a_point(written: Any) -> None:
    assert read_witness(written('{"bands": [{"c": 4.0, "m_formed": 4e0}]}'))["bands"][0]["c"] == 4


def test_unreadable_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, why in ((tmp_path / "none", "no such file"), (tmp_path, "not a regular file"),
                      (tmp_path / "pipe", "not a regular file"), (Path("a\0b"), "null"),
                      (Path("/dev/zero"), "not a regular file")):
        with pytest.raises(MalformedWitness, match=why):
            read_witness(path)
    (tmp_path / "long").write_bytes(b" " * 11)
    monkeypatch.setattr(file, "MAX_BYTES", 10)
    with pytest.raises(MalformedWitness, match="longer than"):
        read_witness(tmp_path / "long")


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) |
                    st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) |
                    st.dictionaries(st.sampled_from(["bands", "c", "model", "x"]), inner,
                                    max_size=3), max_leaves=8)


@given(value=JSON)
def test_any_value_is_read_or_refused(value: Any) -> None:
    raw = json.dumps(value).encode()
    try:
        found = parse_json(raw)
    except MalformedWitness:
        assert b"Infinity" in raw
    else:
        assert found == value


@given(raw=st.binary(max_size=60))
def test_any_bytes_are_parsed_or_refused(raw: bytes) -> None:
    try:
        json.dumps(parse_json(raw))
    except MalformedWitness as why:
        message = str(why)
    else:
        message = "a value"
    assert message.isprintable()
