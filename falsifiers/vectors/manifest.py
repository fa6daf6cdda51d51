"""The manifest of a directory of vectors: which calls it holds, and the rules they are held to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from falsifiers.judging.errors import SuiteError, shorten_name
from falsifiers.tensor_files.safetensors_file import UnreadableError, read_bytes

MANIFEST_NAME, INPUTS, EXPECTED, OUTPUTS = "manifest.json", "inputs", "expected", "outputs"
MAX_MANIFEST_BYTES = 1 << 24
CALL_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.=+-]*$"
OP_NAME = r"^[a-z][a-z0-9_]*$"


class ManifestModel(BaseModel):
    """A frozen record that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TensorForm(ManifestModel):
    """What a tensor of a file is."""

    dtype: Literal["U8", "I32", "F32"]
    """As safetensors names it."""
    shape: tuple[int, ...]


class CallEntry(ManifestModel):
    """One call: `inputs/NAME.safetensors` is answered by `outputs/NAME.safetensors`."""

    name: str = Field(pattern=CALL_NAME, max_length=200)
    op: str = Field(pattern=OP_NAME, max_length=200)
    """The op that is called, as in the phase's contract."""
    facts: dict[str, str]
    """What the op needs to know beside tensors; it stands in the inputs' metadata too."""
    inputs: dict[str, TensorForm]
    """Tensors of `inputs/NAME.safetensors`."""
    outputs: dict[str, TensorForm]
    """Tensors that `outputs/NAME.safetensors` must have."""
    cases: tuple[str, ...]
    """The cases that ask for it."""


class Bounds(ManifestModel):
    """How far each vector of an output may be from the engine's."""

    cosine: float
    """The least cosine."""
    norm: float
    """The most by which the ratio of the norms may leave 1."""


class Rules(ManifestModel):
    """What answers are held to."""

    twin: Literal["bitwise"]
    """Each row of a call of several rows against the same row in a call of its own."""
    truth: Literal["bitwise"] | Bounds
    """Against the engine, for answers that declare one of its arithmetics."""
    own: Bounds | None
    """Against the engine, for answers in an arithmetic of their own; null where none is taken."""


class Manifest(ManifestModel):
    """What `rowtwin vectors export` wrote."""

    format: Literal["rowtwin-vectors"] = "rowtwin-vectors"
    version: Literal[1] = 1
    phase: str
    """The phase whose falsifiers judge the answers, `p3`."""
    claim: str
    rules: Rules
    arithmetic: str
    """The arithmetic of `expected/`."""
    calls: tuple[CallEntry, ...] = Field(min_length=1)


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a manifest."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema",
            **Manifest.model_json_schema()}


def load_manifest(folder: Path) -> Manifest:
    """Load a directory's manifest; raise `SuiteError` in one sentence when it is none."""
    if folder.is_symlink():
        raise SuiteError(f"{folder} is a symbolic link, which is not followed")
    if not folder.is_dir():
        raise SuiteError(f"{folder} is not a directory of vectors")
    path = folder / MANIFEST_NAME
    try:
        data = json.loads(read_bytes(path, MAX_MANIFEST_BYTES))
        return Manifest.model_validate(data)
    except UnreadableError as error:
        raise SuiteError(str(error)) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise SuiteError(
            f"{path} is not a manifest: {shorten_name(where)}: {first['msg']}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise SuiteError(f"{path} is not JSON: {type(error).__name__}: {error}") from None
