"""Reads a witness of any tool; a malformed file is refused."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

MAX_BYTES = 64 << 20
"""A longer file is not read."""
MAX_BANDS = 4096
"""More bands than there are widths."""

INTEGER, NUMBER, TEXT, BOOLEAN = "a whole number", "a number", "a string", "true or false"
Shape = str | list[Any] | dict[str, Any]

SLOT: dict[str, Shape] = {
    "i": INTEGER, "agree_to": INTEGER, "intra_agree_to": INTEGER, "constant_run": INTEGER,
    "completion_tokens": INTEGER, "finish_reason": TEXT}
BAND: dict[str, Shape] = {
    "c": INTEGER, "m_formed": INTEGER, "result": TEXT, "declared_min": INTEGER,
    "divergence_at": INTEGER, "intra_agree_to": INTEGER, "max_constant_run": INTEGER,
    "top2_margin_at_divergence": NUMBER, "decode_tok_s": NUMBER, "reason": TEXT, "slots": [SLOT]}
WITNESS: dict[str, Shape] = {
    "witness_version": INTEGER, "probe": TEXT, "host": TEXT, "commit": TEXT,
    "binary_sha256": TEXT, "prompt_sha256": TEXT, "model": {"path": TEXT, "sha256": TEXT},
    "sampler": {"temperature": NUMBER, "seed": INTEGER, "n_predict": INTEGER,
                "ignore_eos": BOOLEAN},
    "reference": {"tokens": INTEGER, "stable": BOOLEAN, "self_divergence_at": INTEGER},
    "bands": [BAND]}
"""The type of each known key; other keys may have any value."""


class MalformedWitness(Exception):
    """A file that is no witness; the message is one sentence."""


def read_witness(path: Path) -> dict[str, Any]:
    """Return the witness in a file; raise `MalformedWitness` if there is none."""
    value = parse_json(_read_bytes(path))
    if not isinstance(value, dict):
        raise MalformedWitness(f"the file holds {_describe_kind(value)}, not an object")
    bands = value.get("bands")
    if isinstance(bands, list) and len(bands) > MAX_BANDS:
        raise MalformedWitness(f"the witness has {len(bands):,} bands, more than {MAX_BANDS:,}")
    _check_shape(value, WITNESS, "")
    if not bands:
        raise MalformedWitness("the witness has no bands")
    return value


def _read_bytes(path: Path) -> bytes:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe without a writer would block
            raise MalformedWitness("this is not a regular file")
        with open(path, "rb") as source:
            raw = source.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise MalformedWitness(f"the file cannot be read: {_os_reason(error)}") from None
    if len(raw) > MAX_BYTES:
        raise MalformedWitness(f"the file is longer than {MAX_BYTES >> 20} MiB")
    return raw


def _os_reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error).lower()


def parse_json(raw: bytes) -> Any:
    """Return the JSON value in `raw`; raise `MalformedWitness` if it is not JSON."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MalformedWitness(f"byte {error.start} is not UTF-8") from None
    if not text.strip():
        raise MalformedWitness("the file is empty")
    try:
        return json.loads(
            text, parse_constant=_refuse_constant, object_pairs_hook=_reject_duplicates
        )
    except json.JSONDecodeError as error:
        raise MalformedWitness(f"line {error.lineno} is not JSON: {error.msg.lower()}") from None
    except RecursionError:
        raise MalformedWitness("the JSON is nested too deeply") from None
    except ValueError:  # Python refuses an int of thousands of digits
        raise MalformedWitness("the JSON holds a number that is too long") from None


def _refuse_constant(name: str) -> NoReturn:
    raise MalformedWitness(f"{name} is not JSON")


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; refuse repeated keys, which JSON readers resolve differently."""
    result = dict(pairs)
    if len(result) != len(pairs):
        raise MalformedWitness("an object holds the same key twice")
    return result


def _check_shape(value: Any, shape: Shape, place: str) -> None:
    """Refuse a value of the wrong type; null means that a value was not measured."""
    if isinstance(shape, str):
        if value is not None and not _has_type(value, shape):
            raise MalformedWitness(f"{place} must be {shape}, not {_describe_kind(value)}")
    elif isinstance(shape, dict):
        if not isinstance(value, Mapping):
            raise MalformedWitness(f"{place} must be an object, not {_describe_kind(value)}")
        for key, inner in shape.items():
            if value.get(key) is not None:
                _check_shape(value[key], inner, f"{place}.{key}" if place else key)
    elif not isinstance(value, list):
        raise MalformedWitness(f"{place} must be a list, not {_describe_kind(value)}")
    else:
        for i, item in enumerate(value):
            _check_shape(item, shape[0], f"{place}[{i}]")


def _has_type(value: Any, wanted: str) -> bool:
    if wanted in (TEXT, BOOLEAN):
        return isinstance(value, str if wanted == TEXT else bool)
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        return False
    return wanted == NUMBER or value == int(value)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int that exceeds every float
        return False


def _describe_kind(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, int | float):
        return "a fraction" if _is_finite(value) and value != int(value) else \
            "a number" if _is_finite(value) else "a number beyond all bounds"
    return "a string" if isinstance(value, str) else \
        "a list" if isinstance(value, list) else "an object"
