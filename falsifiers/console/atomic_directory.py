"""Folders that are written whole or not at all."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from falsifiers.judging.errors import SuiteError


@contextmanager
def write_atomically(folder: Path, last: str) -> Iterator[Path]:
    """Yield a folder to write into, whose files take their place once all is written.

    Until then, and after an error, nothing of it is there, and nothing else is changed. `last` is
    the file that gets its name last. Raises `SuiteError` when something is there already, or
    cannot be written.
    """
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise SuiteError(f"{folder} is not empty, and nothing is overwritten")
    home = folder  # within one that is there, which may be a mount or where somebody stands
    while not home.is_dir():
        home = home.parent
    part = home / f".{folder.name}-{secrets.token_hex(6)}.part"
    try:
        part.mkdir()
        yield part
        if home == folder:
            for path in sorted(part.iterdir(), key=lambda path: path.name == last):
                path.rename(folder / path.name)
        else:
            folder.parent.mkdir(parents=True, exist_ok=True)
            part.rename(folder)
    except OSError as error:
        raise SuiteError(f"{folder} cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
