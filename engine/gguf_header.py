"""Parser for the header of a GGUF file; every count and length is checked before use."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass

import numpy as np

MAX_HEADER_BYTES = 1 << 28
"""A header of more bytes is refused; a vocabulary of 248,320 tokens takes 10 million."""
MAX_LIST_ENTRIES = 1 << 23
"""The most list entries of all metadata together."""
MAX_COUNT = 1 << 16
"""The most metadata keys, and the most tensors."""
MAX_DIMENSIONS = 4

_SCALARS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "|b1",
            10: "<u8", 11: "<i8", 12: "<f8"}
_BOOL, _STRING, _LIST = 7, 8, 9


class HeaderError(Exception):
    """What is wrong with the file, without its name."""


class Cursor:
    """Reads the header from start to end; raises `HeaderError` at the end of the file."""

    def __init__(self, data: mmap.mmap | bytes) -> None:
        self.data = data
        self.end = min(len(data), MAX_HEADER_BYTES)
        self.offset = 0
        self.entries = 0

    def take(self, size: int, what: str) -> int:
        """Advance by `size` bytes and return their first offset."""
        start = self.offset
        if size > self.end - start:
            limit = ("the file ends" if self.end == len(self.data)
                     else f"{MAX_HEADER_BYTES} bytes are over")
            raise HeaderError(f"{what} needs {size} bytes at offset {start}, but {limit} "
                              f"after {self.end - start}")
        self.offset = start + size
        return start

    def read_uint(self, form: str, what: str) -> int:
        """Return an unsigned integer of a `struct` form."""
        start = self.take(struct.calcsize(form), what)
        return int(struct.unpack_from(form, self.data, start)[0])

    def read_string(self, what: str) -> str:
        """Return a string: its length, then UTF-8."""
        start = self.take(self.read_uint("<Q", what), what)
        try:
            return str(self.data[start:self.offset], "utf-8")
        except UnicodeDecodeError:
            raise HeaderError(f"{what} at offset {start} is not UTF-8") from None

    def read_values(self, kind: int, count: int, what: str) -> list[object]:
        """Return `count` values of one kind."""
        self.entries += count
        if self.entries > MAX_LIST_ENTRIES:
            raise HeaderError(f"{what} brings the list entries to {self.entries}, over "
                              f"{MAX_LIST_ENTRIES}")
        if kind == _STRING:
            return [self.read_string(what) for _ in range(count)]
        form = np.dtype(_SCALARS[kind])
        start = self.take(count * form.itemsize, what)
        if kind == _BOOL and any(b > 1 for b in self.data[start:self.offset]):
            raise HeaderError(f"{what} is neither true nor false")
        return list(np.frombuffer(self.data, form, count, start).tolist())


def read_preamble(cursor: Cursor) -> tuple[int, int]:
    """Check magic and version, and return the number of tensors and of metadata keys."""
    start = cursor.take(4, "the magic number")
    magic = cursor.data[start:start + 4]
    if magic != b"GGUF":
        raise HeaderError(f"it starts with {magic!r}, not with b'GGUF'")
    version = cursor.read_uint("<I", "the version")
    if version & 0xFFFF == 0:
        raise HeaderError("it is big-endian, which is not supported")
    if version not in (2, 3):
        raise HeaderError(f"its version is {version}, and only 2 and 3 are supported")
    tensors = cursor.read_uint("<Q", "the number of tensors")
    keys = cursor.read_uint("<Q", "the number of metadata keys")
    for count, what in ((tensors, "tensors"), (keys, "metadata keys")):
        if count > MAX_COUNT:
            raise HeaderError(f"it claims {count} {what}, over {MAX_COUNT}")
    return tensors, keys


def read_metadata(cursor: Cursor, count: int) -> dict[str, object]:
    """Return the metadata by key as Python values and lists."""
    metadata: dict[str, object] = {}
    for number in range(count):
        key = cursor.read_string(f"the name of metadata key {number}")
        what = f"metadata key {abbreviate(key)}"
        if key in metadata:
            raise HeaderError(f"{what} occurs twice")
        kind, many = cursor.read_uint("<I", what), False
        if kind == _LIST:
            kind, many = cursor.read_uint("<I", what), True
            if kind == _LIST:
                raise HeaderError(f"{what} is a list of lists, which is not supported")
        if kind != _STRING and kind not in _SCALARS:
            raise HeaderError(f"{what} has the unknown value type {kind}")
        values = cursor.read_values(kind, cursor.read_uint("<Q", what) if many else 1, what)
        metadata[key] = values if many else values[0]
    return metadata


@dataclass(frozen=True)
class TensorInfo:
    """The header's entry of one tensor, not yet checked against the file."""

    name: str
    shape: tuple[int, ...]
    """In numpy order."""
    kind: int
    """The number of its type."""
    offset: int
    """First byte of its data, relative to the end of the header."""


def read_tensor_infos(cursor: Cursor, count: int) -> dict[str, TensorInfo]:
    """Return the header's entry of each tensor, by name."""
    infos: dict[str, TensorInfo] = {}
    for number in range(count):
        name = cursor.read_string(f"the name of tensor {number}")
        what = f"tensor {abbreviate(name)}"
        if name in infos:
            raise HeaderError(f"{what} occurs twice")
        dimensions = cursor.read_uint("<I", what)
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise HeaderError(f"{what} has {dimensions} dimensions, not 1 to {MAX_DIMENSIONS}")
        shape = tuple(cursor.read_uint("<Q", what) for _ in range(dimensions))[::-1]
        infos[name] = TensorInfo(name, shape, cursor.read_uint("<I", what),
                                 cursor.read_uint("<Q", what))
    return infos


def abbreviate(value: object) -> str:
    """Return a string, or the repr of another value, at most 80 characters long."""
    text = value if isinstance(value, str) and value.isprintable() else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
