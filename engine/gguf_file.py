"""A GGUF file, opened without trusting it: every count, length and offset is checked first.

The header is walked here and not by `gguf.GGUFReader`, which trusts lengths and needs many
seconds for a vocabulary of real size; tests hold that both read the same. Weights stay in the
file and are memory-mapped.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import stat
import struct
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from engine.blocks import TYPES, Bytes
from engine.errors import InputError

HEADER = 1 << 28
"""A header of more bytes is refused; a vocabulary of 248,320 tokens takes 10 million."""
ENTRIES = 1 << 23
"""The most list entries all metadata may have together."""
COUNT = 1 << 16
"""The most metadata keys, and the most tensors."""
DIMENSIONS = 4
ALIGNMENT = 32

_SCALARS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "|b1",
            10: "<u8", 11: "<i8", 12: "<f8"}
_BOOL, _STRING, _LIST = 7, 8, 9
_KINDS = {t.ggml: t for t in TYPES.values()}


@dataclass(frozen=True, eq=False)
class TensorEntry:
    """One tensor of a file; its bytes stay in the file until they are read."""

    name: str
    kind: str
    """A name in `engine.blocks.TYPES`."""
    shape: tuple[int, ...]
    """In numpy order: the last entry is the length of a row."""
    data: Bytes
    """[rows, bytes of a row], memory-mapped, read-only; a tensor of one dimension is one row."""


@dataclass(frozen=True, eq=False)
class GgufFile:
    """An open file: its metadata as plain Python values and its tensors by name."""

    path: Path
    size: int
    """Bytes of the whole file."""
    metadata: dict[str, object]
    tensors: dict[str, TensorEntry]
    _digest: list[str] = field(default_factory=list, repr=False)

    def sha256(self) -> str:
        """Return the digest of the whole file, computed when it is first asked for."""
        if not self._digest:
            with self.path.open("rb") as handle:
                self._digest.append(hashlib.file_digest(handle, "sha256").hexdigest())
        return self._digest[0]


def open_gguf(path: str | os.PathLike[str]) -> GgufFile:
    """Open a GGUF file; `InputError` says in one sentence why one cannot be used."""
    path = Path(path)
    data = _map(path)
    try:
        cursor = _Cursor(data)
        tensor_count, key_count = _opening(cursor)
        metadata = _metadata(cursor, key_count)
        infos = _infos(cursor, tensor_count)
        tensors = _tensors(data, infos, _padded(cursor.at, _alignment(metadata)), metadata)
    except _FileError as broken:
        raise InputError(f"{path} is not a usable GGUF file: {broken}") from None
    return GgufFile(path, len(data), metadata, tensors)


class _FileError(Exception):
    """What is wrong with the file, without its name."""


def _map(path: Path) -> mmap.mmap:
    """Map a regular, non-empty file for reading."""
    try:
        # Opening a pipe would wait for a writer, so the kind of file is asked for first.
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{path} is not a file")
        if status.st_size == 0:
            raise InputError(f"{path} is empty")
        with path.open("rb") as handle:
            return mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"cannot read {path}: {reason}") from None


class _Cursor:
    """Reads forward through the header and refuses to leave the file."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.end = min(len(data), HEADER)
        self.at = 0
        self.entries = 0

    def take(self, size: int, what: str) -> int:
        """Step over `size` bytes and return where they start."""
        start = self.at
        if size > self.end - start:
            limit = "the file ends" if self.end == len(self.data) else f"{HEADER} bytes are over"
            raise _FileError(f"{what} needs {size} bytes at offset {start}, but {limit} "
                          f"after {self.end - start}")
        self.at = start + size
        return start

    def number(self, form: str, what: str) -> int:
        """Return an unsigned integer of a `struct` form."""
        start = self.take(struct.calcsize(form), what)
        return int(struct.unpack_from(form, self.data, start)[0])

    def text(self, what: str) -> str:
        """Return a string: its length, then UTF-8."""
        start = self.take(self.number("<Q", what), what)
        try:
            return str(self.data[start:self.at], "utf-8")
        except UnicodeDecodeError:
            raise _FileError(f"{what} at offset {start} is not UTF-8") from None

    def values(self, kind: int, count: int, what: str) -> list[object]:
        """Return `count` values of one kind."""
        self.entries += count
        if self.entries > ENTRIES:
            raise _FileError(f"{what} brings the list entries to {self.entries}, over {ENTRIES}")
        if kind == _STRING:
            return [self.text(what) for _ in range(count)]
        form = np.dtype(_SCALARS[kind])
        start = self.take(count * form.itemsize, what)
        if kind == _BOOL and any(b > 1 for b in self.data[start:self.at]):
            raise _FileError(f"{what} is neither true nor false")
        return list(np.frombuffer(self.data, form, count, start).tolist())


def _opening(cursor: _Cursor) -> tuple[int, int]:
    """Check magic and version, and return the number of tensors and of metadata keys."""
    start = cursor.take(4, "the magic number")
    magic = cursor.data[start:start + 4]
    if magic != b"GGUF":
        raise _FileError(f"it starts with {magic!r}, not with b'GGUF'")
    version = cursor.number("<I", "the version")
    if version & 0xFFFF == 0:
        raise _FileError("it is big-endian, which is not supported")
    if version not in (2, 3):
        raise _FileError(f"its version is {version}, and only 2 and 3 are supported")
    tensors = cursor.number("<Q", "the number of tensors")
    keys = cursor.number("<Q", "the number of metadata keys")
    for count, what in ((tensors, "tensors"), (keys, "metadata keys")):
        if count > COUNT:
            raise _FileError(f"it claims {count} {what}, over {COUNT}")
    return tensors, keys


def _metadata(cursor: _Cursor, count: int) -> dict[str, object]:
    """Read the metadata as plain values; a list stays a list."""
    metadata: dict[str, object] = {}
    for number in range(count):
        key = cursor.text(f"the name of metadata key {number}")
        what = f"metadata key {_short(key)}"
        if key in metadata:
            raise _FileError(f"{what} occurs twice")
        kind, many = cursor.number("<I", what), False
        if kind == _LIST:
            kind, many = cursor.number("<I", what), True
            if kind == _LIST:
                raise _FileError(f"{what} is a list of lists, which is not supported")
        if kind != _STRING and kind not in _SCALARS:
            raise _FileError(f"{what} has the unknown value type {kind}")
        values = cursor.values(kind, cursor.number("<Q", what) if many else 1, what)
        metadata[key] = values if many else values[0]
    return metadata


@dataclass(frozen=True)
class _Info:
    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


def _infos(cursor: _Cursor, count: int) -> dict[str, _Info]:
    """Read what the header says of each tensor."""
    infos: dict[str, _Info] = {}
    for number in range(count):
        name = cursor.text(f"the name of tensor {number}")
        what = f"tensor {_short(name)}"
        if name in infos:
            raise _FileError(f"{what} occurs twice")
        dimensions = cursor.number("<I", what)
        if not 1 <= dimensions <= DIMENSIONS:
            raise _FileError(f"{what} has {dimensions} dimensions, not 1 to {DIMENSIONS}")
        shape = tuple(cursor.number("<Q", what) for _ in range(dimensions))[::-1]
        infos[name] = _Info(name, shape, cursor.number("<I", what), cursor.number("<Q", what))
    return infos


def _alignment(metadata: dict[str, object]) -> int:
    value = metadata.get("general.alignment", ALIGNMENT)
    if type(value) is not int or not 0 < value <= 1 << 20 or value & (value - 1):
        raise _FileError(f"general.alignment must be a power of two up to {1 << 20}, but is "
                      f"{_short(value)}")
    return value


def _tensors(data: mmap.mmap, infos: dict[str, _Info], start: int,
             metadata: dict[str, object]) -> dict[str, TensorEntry]:
    """Place every tensor in the mapped file, in the header's order."""
    if not infos:
        raise _FileError("it has no tensors")
    alignment = _alignment(metadata)
    whole = np.frombuffer(data, np.uint8)
    tensors, spans = {}, []
    for info in infos.values():
        rows, row_bytes = _extent(info, len(data))
        if info.offset % alignment:
            raise _FileError(f"tensor {_short(info.name)} starts at {info.offset}, which is not a "
                          f"multiple of {alignment}")
        first = start + info.offset
        last = first + rows * row_bytes
        if last > len(data):
            raise _FileError(f"tensor {_short(info.name)} ends at byte {last}, but the file has "
                          f"{len(data)}")
        spans.append((first, last, info.name))
        tensors[info.name] = TensorEntry(info.name, _KINDS[info.kind].name, info.shape,
                                         whole[first:last].reshape(rows, row_bytes))
    spans.sort()
    for (_, end, before), (begin, _, after) in pairwise(spans):
        if begin < end:
            raise _FileError(f"tensors {_short(before)} and {_short(after)} overlap")
    return tensors


def _extent(info: _Info, size: int) -> tuple[int, int]:
    """Return the rows of a tensor and the bytes of a row, or refuse its type or shape."""
    what = f"tensor {_short(info.name)}"
    if info.kind not in _KINDS:
        raise _FileError(f"{what} has type {_type_name(info.kind)}, which is not supported "
                      f"(supported are {', '.join(sorted(TYPES))})")
    # A weight takes at least half a byte, which bounds the product before anything uses it.
    if min(info.shape) < 1 or math.prod(info.shape) > 2 * size:
        raise _FileError(f"{what} has the shape {list(info.shape)}, which cannot be in a file of "
                      f"{size} bytes")
    kind = _KINDS[info.kind]
    if info.shape[-1] % kind.weights:
        raise _FileError(f"{what} has rows of {info.shape[-1]} weights, not whole {kind.name} "
                      f"blocks of {kind.weights}")
    return math.prod(info.shape[:-1]), kind.row_bytes(info.shape[-1])


def _type_name(number: int) -> str:
    """Return the name of a tensor type as the gguf package has it."""
    from gguf import GGMLQuantizationType

    try:
        return str(GGMLQuantizationType(number).name)
    except ValueError:
        return f"number {number}"


def _padded(at: int, alignment: int) -> int:
    return (at + alignment - 1) // alignment * alignment


def _short(value: object) -> str:
    text = value if isinstance(value, str) and value.isprintable() else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
