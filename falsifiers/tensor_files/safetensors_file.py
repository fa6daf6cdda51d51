"""Read and write safetensors files; a file that may come from anyone is read safely.

A hostile file may be a link, a pipe, endless, truncated, or state a false size. It is opened
without following links or blocking, its size is checked before it is read, and the safetensors
library parses it.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from falsifiers.judging.errors import shorten_name

if TYPE_CHECKING:
    from torch import Tensor

MAX_HEADER_BYTES = 1 << 16
"""Bytes that a file of a few tensors may have in addition to the tensors."""
DTYPE_NAMES = {
    "torch.float64": "F64", "torch.float32": "F32", "torch.float16": "F16",
    "torch.bfloat16": "BF16", "torch.int64": "I64", "torch.int32": "I32", "torch.int16": "I16",
    "torch.int8": "I8", "torch.uint8": "U8"}
"""The safetensors name of each torch type."""


class UnreadableError(Exception):
    """A file cannot be used; the message says which file and why."""


def dtype_name(x: Tensor) -> str:
    """Return the safetensors name of a tensor's type, or torch's name if it has none."""
    return DTYPE_NAMES.get(str(x.dtype), str(x.dtype))


def byte_count(dtype: str, shape: Sequence[int]) -> int:
    """Return the bytes of a tensor with a safetensors type; a negative size counts as 0."""
    return int(dtype.lstrip("BFIU")) // 8 * prod(max(0, n) for n in shape)


def read_bytes(path: Path, most: int) -> bytes:
    """Return the bytes of a regular file of at most `most` bytes; raise `UnreadableError` else."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise UnreadableError(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        if path.is_symlink():
            raise UnreadableError(f"{path} is a symbolic link, which is not followed") from None
        raise UnreadableError(f"{path} cannot be read: "
                              f"{getattr(error, 'strerror', None) or error}") from None
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        raise UnreadableError(f"{path} is not a regular file")
    with os.fdopen(handle, "rb") as file:
        if status.st_size > most:
            raise UnreadableError(f"{path} has {status.st_size:,} bytes, but at most {most:,} are "
                                  f"expected")
        data = file.read(most + 1)
    if len(data) > most:
        raise UnreadableError(f"{path} grew while it was read")
    return data


def read_tensors(
    path: Path, most: int, header: int = MAX_HEADER_BYTES
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return a file's tensors and metadata; raise `UnreadableError` if it cannot be used.

    The tensors may take `most` bytes, all else in the file `header` bytes.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load
    data = read_bytes(path, most + header)
    try:
        tensors = load(data)
        size = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8:8 + size]).get("__metadata__") or {}
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnreadableError(f"{path} is not a safetensors file: {shorten_name(reason)}") from None
    return tensors, metadata


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors and metadata into a safetensors file."""
    from safetensors.torch import save
    path.write_bytes(save({name: x.contiguous() for name, x in tensors.items()}, dict(metadata)))
