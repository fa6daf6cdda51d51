"""Read contracts from YAML into records; an error names the file, the line and the key."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from contracts.schema import Contract, InconsistentError

if TYPE_CHECKING:
    from yaml import SafeLoader
else:  # libyaml is faster, and every process of a run loads every contract
    SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

CONTRACTS_FOLDER = Path(__file__).parent


class ContractError(Exception):
    """A contract file is broken; the message names the file and the line."""


class UniqueKeyLoader(SafeLoader):
    """A safe YAML loader that refuses a duplicate key."""


def _construct_mapping(loader: UniqueKeyLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node)
        if key in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"duplicate key {key!r}", key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


UniqueKeyLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _construct_mapping)


def _find_line(node: yaml.Node | None, path: tuple[int | str, ...]) -> int:
    """Return the line number of the deepest node on `path` that exists."""
    line = node.start_mark.line + 1 if node is not None else 1
    for step in path:
        found: yaml.Node | None = None
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(step):
                    found, line = value, key.start_mark.line + 1
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) \
                and step < len(node.value):
            found = node.value[step]
            line = found.start_mark.line + 1
        if found is None:
            return line
        node = found
    return line


def load_contract(path: Path) -> Contract:
    """Load one contract file; raise `ContractError`, which names file and line, if it is broken."""
    try:
        return _parse_contract(path, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ContractError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ContractError(f"{path}: is not UTF-8 text") from None


@lru_cache(maxsize=64)
def _parse_contract(path: Path, text: str) -> Contract:
    """Parse and validate the text of a contract; results are cached."""
    try:
        data = yaml.load(text, Loader=UniqueKeyLoader)
    except (TypeError, ValueError, RecursionError) as error:  # a value that YAML cannot build
        raise ContractError(f"{path}:1: is not a contract: {str(error).splitlines()[0]}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        problem = getattr(error, "problem", None) or "is not YAML"
        raise ContractError(f"{path}:{line}: {problem}") from None
    try:
        contract = Contract.model_validate(data)
    except ValidationError as error:
        node = yaml.compose(text, Loader=UniqueKeyLoader)
        raise ContractError(_format_error(path, node, error)) from None
    if contract.phase != path.stem:
        line = _find_line(yaml.compose(text, Loader=UniqueKeyLoader), ("phase",))
        raise ContractError(f"{path}:{line}: phase: is {contract.phase!r}, but the file "
                            f"name says {path.stem!r}")
    return contract


def _format_error(path: Path, node: yaml.Node | None, error: ValidationError) -> str:
    """Return one line with the file, the line, the key and what is wrong."""
    first = max(error.errors(), key=lambda entry: len(entry["loc"]))  # the most specific
    cause = first.get("ctx", {}).get("error")
    loc = first["loc"] + (cause.loc if isinstance(cause, InconsistentError) else ())
    where = ".".join(str(part) for part in loc) or "contract"
    message = re.sub(r"^Value error, ", "", first["msg"])
    if first["type"] == "extra_forbidden":
        message = "unknown key"
    return f"{path}:{_find_line(node, loc)}: {where}: {message}"


def load_contracts(folder: Path = CONTRACTS_FOLDER) -> dict[str, Contract]:
    """Load every contract of a folder, by phase, `engine` first."""
    files = sorted(folder.glob("*.yaml"))
    return {contract.phase: contract for contract in map(load_contract, files)}
