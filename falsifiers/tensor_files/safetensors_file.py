"""Safetensors files as others write them: read whole or refused in one sentence, never followed.

A file from outside may be a link, a pipe, endless, cut short or full of lies about its size; so it
is opened without following or waiting, weighed before it is read, and parsed by the library.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from falsifiers.judging.errors import shorten_name

if TYPE_CHECKING:
    from torch import Tensor

MAX_HEADER_BYTES = 1 << 16
"""Bytes beyond its tensors that a file of a few of them may have."""


class UnreadableError(Exception):
    """A file cannot be used; the message names it and says why."""


def read_bytes(path: Path, most: int) -> bytes:
    """Return a plain file's bytes, at most so many; raise `UnreadableError` for anything else."""
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
        raise UnreadableError(f"{path} is not a plain file")
    with os.fdopen(handle, "rb") as file:
        if status.st_size > most:
            raise UnreadableError(f"{path} holds {status.st_size:,} bytes, but at most {most:,} "
                                  f"can be meant")
        data = file.read(most + 1)
    if len(data) > most:
        raise UnreadableError(f"{path} grew while it was read")
    return data


def read_tensors(
    path: Path, most: int, header: int = MAX_HEADER_BYTES
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return a file's tensors and its metadata; `most` are the bytes that its tensors may take."""
    from safetensors.torch import load
    data = read_bytes(path, most + header)
    try:
        tensors = load(data)
        size = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8:8 + size]).get("__metadata__") or {}
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnreadableError(f"{path} is not a safetensors file: {shorten_name(told)}") from None
    return tensors, metadata


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a file of tensors."""
    from safetensors.torch import save
    path.write_bytes(save({name: x.contiguous() for name, x in tensors.items()}, dict(metadata)))
