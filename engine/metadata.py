"""A file's metadata: each value is checked, and an error names its key."""

from __future__ import annotations

from collections.abc import Mapping

from engine.errors import InputError

ARCHITECTURE = "qwen35"


class MetadataReader:
    """Reads the metadata of one architecture and checks each value's type."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        architecture = metadata.get("general.architecture")
        if architecture is None:
            raise InputError("the metadata key general.architecture is missing")
        if architecture != ARCHITECTURE:
            raise InputError(f"the architecture must be {ARCHITECTURE}, but is "
                             f"{abbreviate(architecture)}")
        self.metadata = metadata

    def get(self, key: str) -> object:
        """Return a required value; raise `InputError` if it is missing."""
        value = self.metadata.get(f"{ARCHITECTURE}.{key}")
        if value is None:
            raise InputError(f"the metadata key {ARCHITECTURE}.{key} is missing")
        return value

    def has(self, key: str) -> bool:
        """Return whether an optional key is present."""
        return self.metadata.get(f"{ARCHITECTURE}.{key}") is not None

    def read_int(self, key: str, most: int = 1 << 31, default: int | None = None) -> int:
        """Return an integer from 1 (0 if it has a default) to `most`."""
        if default is not None and not self.has(key):
            return default
        return check_int(f"{ARCHITECTURE}.{key}", self.get(key), most, 1 if default is None else 0)

    def check_equal(self, key: str, want: int, source: str) -> None:
        """Raise `InputError` if the number differs from `want`, which `source` implies."""
        value = self.read_int(key)
        if value != want:
            raise InputError(f"{ARCHITECTURE}.{key} is {value}, which contradicts {source}")

    def read_float(self, key: str) -> float:
        """Return a number."""
        value = self.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(f"{ARCHITECTURE}.{key} must be a number, but is {abbreviate(value)}")
        return float(value)

    def read_ints(self, key: str) -> tuple[int, ...]:
        """Return a list of integers from 0."""
        value = self.get(key)
        if not isinstance(value, list):
            raise InputError(f"{ARCHITECTURE}.{key} must be a list, but is {abbreviate(value)}")
        return tuple(check_int(f"each entry of {ARCHITECTURE}.{key}", v, 1 << 31, 0) for v in value)

    def read_per_layer(self, key: str, layers: range | list[int]) -> int:
        """Return a number that is a scalar, or a list with equal entries at `layers`."""
        if not isinstance(self.get(key), list):
            return self.read_int(key)
        values = self.read_ints(key)
        if len(values) <= max(layers, default=-1):
            raise InputError(f"{ARCHITECTURE}.{key} has {len(values)} entries, too few for the "
                             f"model's layers")
        seen = sorted({values[i] for i in layers}) or sorted({v for v in values if v})
        if len(seen) != 1:
            raise InputError(f"{ARCHITECTURE}.{key} differs between layers ({abbreviate(seen)}), "
                             f"which is not supported")
        return check_int(f"{ARCHITECTURE}.{key}", seen[0], 1 << 31)


def recurrent_layers(keys: MetadataReader, blocks: int, extra: int) -> tuple[bool, ...]:
    """Return which trunk layers are GDN, from the per-layer list or else from the interval."""
    key = f"{ARCHITECTURE}.attention.recurrent_layers"
    if not keys.has("attention.recurrent_layers"):
        every = keys.read_int("full_attention_interval", default=4)
        if not every:
            raise InputError(f"{ARCHITECTURE}.full_attention_interval must be at least 1, but is 0")
        return tuple((i + 1) % every != 0 for i in range(blocks - extra))
    flags = keys.get("attention.recurrent_layers")
    if not isinstance(flags, list) or any(f not in (0, 1) for f in flags):
        raise InputError(f"{key} must be a list of true and false, but is {abbreviate(flags)}")
    if len(flags) != blocks:
        raise InputError(f"{key} has {len(flags)} entries, but block_count is {blocks}")
    if any(flags[blocks - extra:]):
        raise InputError(f"{key} calls a prediction block recurrent, which it cannot be")
    return tuple(bool(f) for f in flags[:blocks - extra])


def check_int(name: str, value: object, most: int, least: int = 1) -> int:
    """Return an integer between two bounds; raise `InputError` with its name otherwise."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{name} must be an integer, but is {abbreviate(value)}")
    if not least <= value <= most:
        raise InputError(f"{name} must lie between {least} and {most}, but is {value}")
    return value


def abbreviate(value: object) -> str:
    """Return a value's repr, at most 60 characters long."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
