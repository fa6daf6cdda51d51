"""A GGUF file, opened without trusting it: every count, length and offset is checked first.

`gguf.GGUFReader` is not used: it trusts lengths and takes many seconds for a real vocabulary. Tests
compare what both read. A small file is read into memory, a larger one is memory-mapped. If another
process shortens a mapped file after `check_size`, the next read ends this process.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import stat
from collections.abc import Container
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from engine.blocks import TYPES, Bytes
from engine.errors import InputError
from engine.gguf_header import (
    Cursor,
    HeaderError,
    TensorInfo,
    abbreviate,
    read_metadata,
    read_preamble,
    read_tensor_infos,
)

ALIGNMENT = 32
MAX_UNMAPPED_BYTES = 1 << 25
"""A file of at most this many bytes is read into memory, not mapped."""
_TYPES_BY_NUMBER = {t.ggml: t for t in TYPES.values()}


@dataclass(frozen=True, eq=False)
class TensorEntry:
    """One tensor of a file; its bytes stay in the file until they are read."""

    name: str
    kind: str
    """A name in `engine.blocks.TYPES`."""
    shape: tuple[int, ...]
    """In numpy order: the last entry is the length of a row."""
    data: Bytes
    """[rows, bytes of a row], read-only; a tensor of one dimension is one row."""


@dataclass(frozen=True, eq=False)
class GgufFile:
    """An open file: its metadata as plain Python values and its tensors by name."""

    path: Path
    size: int
    """Bytes of the file when it was opened."""
    metadata: dict[str, object]
    tensors: dict[str, TensorEntry]
    unsupported_tensors: dict[str, str] = field(default_factory=dict)
    """Tensors of types that are not supported, by name: the type's own name."""
    _digest: list[str] = field(default_factory=list, repr=False)

    def check_size(self) -> None:
        """Raise `InputError` if the file has become shorter since it was opened."""
        try:
            size = self.path.stat().st_size
        except OSError:  # unlinked: its bytes stay as long as they are mapped
            return
        if size < self.size:
            raise InputError(f"{self.path} had {self.size} bytes when it was opened, but has "
                             f"{size} now")

    def sha256(self) -> str:
        """Return the sha256 of the file, computed on the first call."""
        if not self._digest:
            with self.path.open("rb") as handle:
                self._digest.append(hashlib.file_digest(handle, "sha256").hexdigest())
        return self._digest[0]


def open_gguf(path: str | os.PathLike[str], *, partly: bool = False) -> GgufFile:
    """Open a GGUF file; raise `InputError` if it cannot be used.

    With `partly`, tensors of unsupported types are skipped and listed instead of refused.
    """
    path = Path(path)
    data = _read_or_map(path)
    try:
        cursor = Cursor(data)
        tensor_count, key_count = read_preamble(cursor)
        metadata = read_metadata(cursor, key_count)
        infos = read_tensor_infos(cursor, tensor_count)
        left_out = {info.name: _type_name(info.kind) for info in infos.values()
                    if partly and info.kind not in _TYPES_BY_NUMBER}
        start = _align_up(cursor.offset, _read_alignment(metadata))
        tensors = _locate_tensors(data, infos, left_out, start, metadata)
    except HeaderError as broken:
        raise InputError(f"{path} is not a usable GGUF file: {broken}") from None
    return GgufFile(path, len(data), metadata, tensors, left_out)


def _read_or_map(path: Path) -> mmap.mmap | bytes:
    """Return the bytes of a regular, non-empty file, mapped when there are many."""
    try:
        # Opening a pipe would wait for a writer, so the kind of file is checked first.
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{path} is not a file")
        if status.st_size == 0:
            raise InputError(f"{path} is empty")
        with path.open("rb") as handle:
            if status.st_size <= MAX_UNMAPPED_BYTES:
                return handle.read(status.st_size)
            return mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"cannot read {path}: {reason}") from None


def _read_alignment(metadata: dict[str, object]) -> int:
    value = metadata.get("general.alignment", ALIGNMENT)
    if type(value) is not int or not 0 < value <= 1 << 20 or value & (value - 1):
        raise HeaderError(f"general.alignment must be a power of two up to {1 << 20}, but is "
                          f"{abbreviate(value)}")
    return value


def _locate_tensors(data: mmap.mmap | bytes, infos: dict[str, TensorInfo], left_out: Container[str],
                    start: int, metadata: dict[str, object]) -> dict[str, TensorEntry]:
    """Return every tensor that is not left out, as a view of the data, in the header's order."""
    if not infos:
        raise HeaderError("it has no tensors")
    alignment = _read_alignment(metadata)
    file_bytes = np.frombuffer(data, np.uint8)
    tensors, spans = {}, []
    for info in (info for info in infos.values() if info.name not in left_out):
        rows, row_bytes = _extent(info, len(data))
        if info.offset % alignment:
            raise HeaderError(
                f"tensor {abbreviate(info.name)} starts at {info.offset}, which is not a "
                f"multiple of {alignment}"
            )
        first = start + info.offset
        last = first + rows * row_bytes
        if last > len(data):
            raise HeaderError(
                f"tensor {abbreviate(info.name)} ends at byte {last}, but the file has {len(data)}"
            )
        spans.append((first, last, info.name))
        tensors[info.name] = TensorEntry(info.name, _TYPES_BY_NUMBER[info.kind].name, info.shape,
                                         file_bytes[first:last].reshape(rows, row_bytes))
    spans.sort()
    for (_, end, before), (begin, _, after) in pairwise(spans):
        if begin < end:
            raise HeaderError(f"tensors {abbreviate(before)} and {abbreviate(after)} overlap")
    return tensors


def _extent(info: TensorInfo, size: int) -> tuple[int, int]:
    """Return a tensor's rows and bytes a row; raise `HeaderError` for its type or shape."""
    what = f"tensor {abbreviate(info.name)}"
    if info.kind not in _TYPES_BY_NUMBER:
        raise HeaderError(f"{what} has type {_type_name(info.kind)}, which is not supported "
                          f"(supported are {', '.join(sorted(TYPES))})")
    # A weight takes at least half a byte, which bounds the product before anything uses it.
    if min(info.shape) < 1 or math.prod(info.shape) > 2 * size:
        raise HeaderError(f"{what} has the shape {list(info.shape)}, which cannot be in a file of "
                          f"{size} bytes")
    kind = _TYPES_BY_NUMBER[info.kind]
    if info.shape[-1] % kind.weights:
        raise HeaderError(f"{what} has rows of {info.shape[-1]} weights, not a multiple of "
                          f"{kind.weights}, the weights of a {kind.name} block")
    return math.prod(info.shape[:-1]), kind.row_bytes(info.shape[-1])


def _type_name(number: int) -> str:
    """Return the name of a tensor type as the gguf package has it."""
    from gguf import GGMLQuantizationType

    try:
        return str(GGMLQuantizationType(number).name)
    except ValueError:
        return f"number {number}"


def _align_up(at: int, alignment: int) -> int:
    return (at + alignment - 1) // alignment * alignment
