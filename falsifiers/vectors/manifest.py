"""The manifest of a directory of vectors: its calls, and the rules for their answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from falsifiers.judging.errors import SuiteError
from falsifiers.tensor_files.documents import parse_json, reading
from falsifiers.tensor_files.safetensors_file import read_bytes

MANIFEST_NAME, INPUTS, EXPECTED, OUTPUTS = "manifest.json", "inputs", "expected", "outputs"
MAX_MANIFEST_BYTES = 1 << 24
CALL_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.=+-]*$"
OP_NAME = r"^[a-z][a-z0-9_]*$"


class ManifestModel(BaseModel):
    """A frozen record that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TensorForm(ManifestModel):
    """The type and shape of a tensor in a file."""

    dtype: Literal["U8", "I32", "F32"]
    """The safetensors name."""
    shape: tuple[int, ...]


class CallEntry(ManifestModel):
    """One call: `inputs/NAME.safetensors` is answered by `outputs/NAME.safetensors`."""

    name: str = Field(pattern=CALL_NAME, max_length=200)
    op: str = Field(pattern=OP_NAME, max_length=200)
    """The op that is called, as in the phase's contract."""
    facts: dict[str, str]
    """What the op needs besides tensors; the metadata of the inputs has it too."""
    inputs: dict[str, TensorForm]
    """Tensors of `inputs/NAME.safetensors`."""
    outputs: dict[str, TensorForm]
    """Tensors that `outputs/NAME.safetensors` must have."""
    cases: tuple[str, ...]
    """The cases that make the call."""


class Bounds(ManifestModel):
    """How far each vector of an output may be from the engine's."""

    cosine: float
    """The smallest cosine."""
    norm: float
    """The largest distance of the ratio of norms from 1."""


class Rules(ManifestModel):
    """How answers are compared."""

    twin: Literal["bitwise"]
    """Each row of a call of several rows with the same row in a call of one row."""
    truth: Literal["bitwise"] | Bounds
    """With the engine, for answers that declare one of its arithmetics."""
    own: Bounds | None
    """With the engine, for answers in their own arithmetic; null where none is accepted."""


class Manifest(ManifestModel):
    """A directory of `rowtwin vectors export`."""

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
    """Return a directory's manifest; raise `SuiteError` when it is missing or invalid."""
    if folder.is_symlink():
        raise SuiteError(f"{folder} is a symbolic link, which is not followed")
    if not folder.is_dir():
        raise SuiteError(f"{folder} is not a directory of vectors")
    path = folder / MANIFEST_NAME
    with reading(str(path)):
        return Manifest.model_validate(parse_json(read_bytes(path, MAX_MANIFEST_BYTES)))
