"""Map one engine's names of ops and tensors to another's, by a YAML file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict

from contracts.load import UniqueKeyLoader
from falsifiers.bisect.trace_files import PrintableText
from falsifiers.judging.errors import SuiteError
from falsifiers.tensor_files.documents import reading
from falsifiers.tensor_files.safetensors_file import read_bytes

MAX_FILE_BYTES = 1 << 20
LAYER_FIELD = "{layer}"


class NamesFile(BaseModel):
    """The file: each key is a name, each value the name that replaces it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ops: dict[str, PrintableText | None] = {}
    """Op ids; `{layer}` matches a number, and null drops an op."""
    tensors: dict[str, PrintableText | None] = {}
    """Tensor names; null drops a tensor."""


@dataclass(frozen=True)
class NameMap:
    """Rules that replace names; a name that no rule matches is unchanged."""

    ops: tuple[tuple[re.Pattern[str], str | None], ...] = ()
    tensors: tuple[tuple[re.Pattern[str], str | None], ...] = ()

    def op(self, name: str) -> str | None:
        """Return the mapped id of an op, or None if the op is dropped."""
        return _map_name(self.ops, name)

    def tensor(self, name: str) -> str | None:
        """Return the mapped name of a tensor, or None if the tensor is dropped."""
        return _map_name(self.tensors, name)


def _map_name(rules: Iterable[tuple[re.Pattern[str], str | None]], name: str) -> str | None:
    for pattern, other in rules:
        found = pattern.fullmatch(name)
        if found:
            layer = found.groupdict().get("layer") or ""
            return None if other is None else other.replace(LAYER_FIELD, layer)
    return name


def _compile_rules(names: dict[str, str | None]) -> tuple[tuple[re.Pattern[str], str | None], ...]:
    rules = []
    for name, other in names.items():
        fields = name.count(LAYER_FIELD)
        if fields > 1 or (other is not None and other.count(LAYER_FIELD) > fields):
            raise SuiteError(f"{name!r}: {LAYER_FIELD} may occur once, and on the right only when "
                             f"it occurs on the left")
        number = r"(?P<layer>[0-9]{1,6})"
        rules.append((re.compile(number.join(map(re.escape, name.split(LAYER_FIELD)))), other))
    return tuple(rules)


def load_names(path: Path) -> NameMap:
    """Read a file of names; raise `SuiteError` with its path when it is invalid."""
    with reading(str(path), "YAML"):
        data = yaml.load(read_bytes(path, MAX_FILE_BYTES), Loader=UniqueKeyLoader)
        names = NamesFile.model_validate(data or {})
    try:
        return NameMap(_compile_rules(names.ops), _compile_rules(names.tensors))
    except SuiteError as error:
        raise SuiteError(f"{path}: {error}") from None
