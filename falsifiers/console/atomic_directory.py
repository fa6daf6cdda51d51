"""Writes a folder completely or not at all."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from falsifiers.judging.errors import SuiteError


@contextmanager
def write_atomically(folder: Path, last: str) -> Iterator[Path]:
    """Yield a temporary folder, whose files are moved to `folder` at the end of the block.

    After an error no file is moved. The file named `last` is moved last. Raises `SuiteError` if
    `folder` is not empty or cannot be written.
    """
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise SuiteError(f"{folder} is not empty: give a new or an empty folder")
    parent = folder  # an existing folder may be a mount point, so it is not replaced
    while not parent.is_dir():
        parent = parent.parent
    temporary = parent / f".{folder.name}-{secrets.token_hex(6)}.part"
    try:
        temporary.mkdir()
        yield temporary
        if parent == folder:
            for path in sorted(temporary.iterdir(), key=lambda path: path.name == last):
                path.rename(folder / path.name)
        else:
            folder.parent.mkdir(parents=True, exist_ok=True)
            temporary.rename(folder)
    except OSError as error:
        raise SuiteError(f"{folder} cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
