"""The file reader equals the `gguf` package, and each hostile file gives one sentence."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine import gguf_file, gguf_header
from engine.blocks import TYPES
from engine.errors import InputError
from engine.gguf_file import open_gguf
from engine.gguf_fixtures import (
    FLAG_KEY,
    ONE_TENSOR,
    REFUSED_FILES,
    pack_file,
    pack_string,
    pack_tensor_info,
)
from engine.load import TensorReader


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a file of every tensor type and value type with the gguf package."""
    path = tmp_path_factory.mktemp("gguf") / "all.gguf"
    writer = gguf.GGUFWriter(path, "qwen35")
    for number, kind in enumerate(("uint8", "int8", "uint16", "int16", "uint32", "int32",
                                   "uint64", "int64")):
        getattr(writer, f"add_{kind}")(f"x.{kind}", number + 100)
    writer.add_float32("x.f32", 0.1)
    writer.add_float64("x.f64", 0.1)
    writer.add_bool("x.flag", True)
    writer.add_string("x.text", "Grüße")
    writer.add_array("x.flags", [True, False])
    writer.add_array("x.numbers", [3, -1, 2])
    writer.add_array("x.reals", [0.5, 0.25])
    writer.add_array("x.texts", ["a", "", "ü"])
    random = np.random.default_rng(0)
    for block in TYPES.values():
        raw = random.integers(0, 256, (3, 2 * block.bytes * (8 if block.weights == 1 else 1)),
                              np.uint8)
        writer.add_tensor(f"{block.name}.weight", raw,
                          raw_dtype=gguf.GGMLQuantizationType(block.ggml))
    writer.add_tensor("vector", np.arange(5, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_and_tensors_are_those_the_package_reads(written: Path) -> None:
    got, want = open_gguf(written), gguf.GGUFReader(written)
    fields = {name: entry.contents() for name, entry in want.fields.items()
              if not name.startswith("GGUF.")}
    assert got.metadata == fields
    assert [type(v) for v in got.metadata.values()] == [type(v) for v in fields.values()]
    assert list(got.tensors) == [t.name for t in want.tensors]
    for entry in want.tensors:
        mine = got.tensors[entry.name]
        assert mine.shape == tuple(int(n) for n in reversed(entry.shape))
        assert mine.kind == entry.tensor_type.name
        assert mine.data.tobytes() == entry.data.tobytes()


def test_tensor_bytes_are_rows_that_cannot_be_written(written: Path) -> None:
    entry = open_gguf(written).tensors["Q6_K.weight"]
    assert entry.data.shape == (3, 420)
    assert entry.shape == (3, 512)
    assert not entry.data.flags.writeable
    assert open_gguf(written).tensors["vector"].data.shape == (1, 20)


def test_digest_covers_the_complete_file(written: Path) -> None:
    import hashlib

    assert open_gguf(written).sha256() == hashlib.sha256(written.read_bytes()).hexdigest()


@pytest.mark.parametrize("name", REFUSED_FILES)
def test_a_hostile_file_is_refused_with_one_sentence(name: str, tmp_path: Path) -> None:
    raw, sentence = REFUSED_FILES[name]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(raw)
    with pytest.raises(InputError, match=sentence) as refusal:
        open_gguf(path)
    assert str(refusal.value).startswith(f"{path} is not a usable GGUF file: ")
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 400


def test_a_file_that_is_not_there_or_cannot_be_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    os.mkfifo(tmp_path / "pipe.gguf")
    for name, sentence in {"none.gguf": "No such file", "empty.gguf": "is empty",
                           "pipe.gguf": "is not a file", "": "is not a file",
                           "a" * 300: "too long", "empty.gguf/x": "Not a directory",
                           "zero\0byte": "null byte"}.items():
        with pytest.raises(InputError, match=sentence):
            open_gguf(f"{tmp_path}/{name}")


def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = tmp_path / "locked.gguf"
    path.write_bytes(pack_file(tensors=ONE_TENSOR))
    monkeypatch.setattr(Path, "open", refuse)  # a test run as root may read everything
    with pytest.raises(InputError, match=r"cannot read .*locked\.gguf: Permission denied"):
        open_gguf(path)


def test_a_header_longer_than_any_real_one_is_refused(tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "long.gguf"
    path.write_bytes(pack_file((FLAG_KEY,), ONE_TENSOR))
    assert open_gguf(path).metadata == {"flag": True}
    monkeypatch.setattr(gguf_header, "MAX_HEADER_BYTES", 40)
    with pytest.raises(InputError, match="40 bytes are over"):
        open_gguf(path)


def small_file() -> bytes:
    """Return a small file with a list, a text and two tensors."""
    words = (
        pack_string("words") + struct.pack("<IIQ", 9, 8, 2) + pack_string("a") + pack_string("ß")
    )
    name = pack_string("general.name") + struct.pack("<I", 8) + pack_string("small")
    count = pack_string("count") + struct.pack("<II", 4, 7)
    return pack_file(
        (words, name, count, FLAG_KEY),
        (pack_tensor_info("a.weight", (256, 1), 12), pack_tensor_info("b", (3,), 0, 160)),
        data=160 + 12,
    )


def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    path, raw = tmp_path / "cut.gguf", small_file()
    path.write_bytes(raw)
    assert list(open_gguf(path).tensors) == ["a.weight", "b"]
    for length in range(len(raw)):
        path.write_bytes(raw[:length])
        with pytest.raises(InputError):
            open_gguf(path)


@given(changes=st.lists(st.tuples(st.integers(0, len(small_file()) - 1), st.integers(0, 255)),
                        min_size=1, max_size=8), cut=st.integers(0, len(small_file())))
@example(changes=[(15, 255)], cut=0)
@example(changes=[(23, 255)], cut=0)
def test_changed_bytes_end_in_a_file_or_in_a_sentence(
        tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]],
        cut: int) -> None:
    raw = bytearray(small_file())
    for at, value in changes:
        raw[at] = value
    path = tmp_path_factory.getbasetemp() / "mutated.gguf"
    path.write_bytes(raw[:len(raw) - cut // 8])
    try:
        got = open_gguf(path)
    except InputError:
        return
    assert all(entry.data.size for entry in got.tensors.values())


def test_small_file_that_is_cut_while_in_use_keeps_its_data(written: Path,
                                                                  tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    path.write_bytes(written.read_bytes())
    file = open_gguf(path)
    os.truncate(path, 100)
    assert file.tensors["vector"].data.tobytes() == np.arange(5, dtype=np.float32).tobytes()


def test_mapped_file_that_is_cut_is_refused_before_it_is_read(
        written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_file, "MAX_UNMAPPED_BYTES", 0)
    path = tmp_path / "large.gguf"
    path.write_bytes(written.read_bytes())
    file = open_gguf(path)
    file.check_size()
    os.truncate(path, 100)
    for use in (file.check_size, lambda: TensorReader(file).take("Q6_K.weight", (3, 512))):
        with pytest.raises(InputError, match=rf"{path} had \d+ bytes when it .* has 100 now$"):
            use()
    path.unlink()
    file.check_size()


def test_both_versions_and_four_dimensions_are_read(tmp_path: Path) -> None:
    path = tmp_path / "old.gguf"
    for version in (2, 3):
        path.write_bytes(
            pack_file(tensors=(pack_tensor_info("a", (32, 1, 1, 2)),), version=version)
        )
        assert open_gguf(path).tensors["a"].shape == (2, 1, 1, 32)


def test_header_ends_at_256_mib_of_a_longer_file(tmp_path: Path) -> None:
    path = tmp_path / "sparse.gguf"
    path.touch()
    os.truncate(path, (1 << 28) + 8192)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        cursor = gguf_header.Cursor(data)
        assert cursor.take(268_435_456, "all of it") == 0
        with pytest.raises(gguf_header.HeaderError, match="268435456 bytes are over after 0"):
            cursor.take(1, "one more")


def test_names_are_printed_in_full_up_to_80_characters() -> None:
    assert gguf_header.abbreviate("x" * 80) == "x" * 80
    assert gguf_header.abbreviate("x" * 81) == "x" * 77 + "..."
