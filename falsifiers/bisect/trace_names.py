"""Names of another engine's ops as this one has them, from a small YAML file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from contracts.load import UniqueKeyLoader
from falsifiers.bisect.trace_files import PrintableText
from falsifiers.judging.errors import SuiteError, shorten_name
from falsifiers.tensor_files.safetensors_file import UnreadableError, read_bytes

MAX_FILE_BYTES = 1 << 20
LAYER_FIELD = "{layer}"


class NamesFile(BaseModel):
    """The file: what stands on the left is called what stands on the right."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ops: dict[str, PrintableText | None] = {}
    """Ops by their id; `{layer}` stands for a number, and null leaves an op out."""
    tensors: dict[str, PrintableText | None] = {}
    """Names of tensors; null leaves them out."""


@dataclass(frozen=True)
class NameMap:
    """How names are turned into others; one that no rule matches stays."""

    ops: tuple[tuple[re.Pattern[str], str | None], ...] = ()
    tensors: tuple[tuple[re.Pattern[str], str | None], ...] = ()

    def op(self, name: str) -> str | None:
        """Return an op's id under its other name, or None for one that is left out."""
        return _map_name(self.ops, name)

    def tensor(self, name: str) -> str | None:
        """Return a tensor's other name, or None for one that is left out."""
        return _map_name(self.tensors, name)


def _map_name(rules: Iterable[tuple[re.Pattern[str], str | None]], name: str) -> str | None:
    for pattern, other in rules:
        found = pattern.fullmatch(name)
        if found:
            layer = found.groupdict().get("layer") or ""
            return None if other is None else other.replace(LAYER_FIELD, layer)
    return name


def _compile_rules(given: dict[str, str | None]) -> tuple[tuple[re.Pattern[str], str | None], ...]:
    made = []
    for name, other in given.items():
        if name.count(LAYER_FIELD) > 1 or (
            other is not None and other.count(LAYER_FIELD) > name.count(LAYER_FIELD)
        ):
            raise SuiteError(
                f"{name!r}: {LAYER_FIELD} may stand once, and on the right only when it "
                f"stands on the left"
            )
        number = r"(?P<layer>[0-9]{1,6})"
        made.append((re.compile(number.join(map(re.escape, name.split(LAYER_FIELD)))), other))
    return tuple(made)


def load_names(path: Path) -> NameMap:
    """Read a file of names; raise `SuiteError` naming it when it is none."""
    try:
        read = yaml.load(read_bytes(path, MAX_FILE_BYTES), Loader=UniqueKeyLoader)
        given = NamesFile.model_validate(read or {})
        return NameMap(_compile_rules(given.ops), _compile_rules(given.tensors))
    except UnreadableError as error:
        raise SuiteError(str(error)) from None
    except ValidationError as error:
        told = error.errors()[0]
        where = ".".join(str(part) for part in told["loc"]) or "the whole"
        raise SuiteError(f"{path}: {shorten_name(where)}: {told['msg']}") from None
    except SuiteError as error:
        raise SuiteError(f"{path}: {error}") from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        told_of = " ".join(str(error).split())
        raise SuiteError(f"{path} is not YAML: {told_of}") from None
