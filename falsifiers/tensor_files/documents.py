"""Read manifests, indexes and name files that may come from anyone; every fault is one sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml
from pydantic import ValidationError

from falsifiers.judging.errors import SuiteError, shorten_name
from falsifiers.tensor_files.safetensors_file import UnreadableError


@contextmanager
def reading(where: str, form: str = "JSON") -> Iterator[None]:
    """Raise `SuiteError` with one sentence for a file that cannot be read, parsed or validated.

    `where` names the file, and the line if there is one; `form` is the syntax that is parsed.
    """
    try:
        yield
    except UnreadableError as error:
        raise SuiteError(str(error)) from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "top level"
        raise SuiteError(f"{where}: {shorten_name(field)}: {first['msg']}") from None
    except UnicodeDecodeError:
        raise SuiteError(f"{where} is not UTF-8 text") from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise SuiteError(f"{where} is not {form}: {' '.join(str(error).split())}") from None


def parse_json(text: str | bytes) -> Any:
    """Return a JSON document; raise `ValueError` for an object with a repeated key."""
    return json.loads(text, object_pairs_hook=_unique_keys)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("an object repeats a key")
    return found
