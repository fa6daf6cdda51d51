"""The test models by name, generated on first use.

A name is a shape, then `-f32` for float weights instead of a mix of all types, then `-tied`
for a head that is the embedding: `nano`, `tiny-f32`, `nano-f32-tied`.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import InputError

if TYPE_CHECKING:
    from engine.model import Model

NAMES = tuple(f"{shape}{quant}{tied}" for shape in ("nano", "tiny")
              for quant in ("", "-f32") for tied in ("", "-tied"))
_SOURCES = ("blocks.py", "draw.py", "encode.py", "make.py", "shapes.py", "vocabulary.py")
_CACHE = Path(__file__).parent.parent / ".cache" / "models"


def model_path(name: str) -> Path:
    """Return the file of a test model; write it if no file of these sources is cached."""
    if name not in NAMES:
        raise InputError(f"test model {name} is not known; known are {', '.join(NAMES)}")
    path = _CACHE / f"{name}-{_source_digest()}.gguf"
    if not path.exists():
        from engine.make import make_model

        _CACHE.mkdir(parents=True, exist_ok=True)
        # Two processes may both write it: the bytes are equal and the rename is atomic.
        make_model(path, name.split("-")[0], "f32" if "-f32" in name else "mixed", force=True,
                   tied=name.endswith("-tied"))
    return path


@cache
def load(name: str) -> Model:
    """Load a test model; the result is cached for the process."""
    from engine.model import Model

    return Model.load(model_path(name))


@cache
def _source_digest() -> str:
    """Return a digest of the sources that determine a file's bytes."""
    here, digest = Path(__file__).parent, hashlib.sha256()
    for name in _SOURCES:
        digest.update((here / name).read_bytes())
    return digest.hexdigest()[:12]
