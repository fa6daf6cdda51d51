"""A separate process that renders a chat template, which comes with the model's file, untrusted.

It reads one JSON object a line and writes one for each. The template runs in a sandbox without
access to Python's attributes and without side effects. The process has a memory limit and cannot
write files. Its parent kills it when it takes too long.
"""

from __future__ import annotations

import json
import sys
from typing import Any, NoReturn

from jinja2 import DictLoader, TemplateSyntaxError
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY_LIMIT = 1 << 29


class RaisedError(Exception):
    """The template called `raise_exception`."""


def limit_resources() -> None:
    """Limit memory, file sizes and core dumps of this process."""
    try:
        import resource
    except ImportError:  # without limits, the sandbox and the deadline remain
        return
    for kind, most in ((resource.RLIMIT_AS, MEMORY_LIMIT), (resource.RLIMIT_FSIZE, 0),
                       (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(kind, (most, most))


def make_environment() -> ImmutableSandboxedEnvironment:
    """Return the sandbox, configured as chat templates expect it."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                         loader=DictLoader({}),  # no file can be included
                                         extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    return environment


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None,
            separators: tuple[str, str] | None = None, sort_keys: bool = False) -> str:
    """Return a value as JSON, with the options that `transformers` offers to chat templates."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def _raise_exception(message: object) -> NoReturn:
    raise RaisedError(str(message)[:500])


def render(source: str, values: dict[str, Any], most: int) -> dict[str, str]:
    """Return `{"text": ...}`, or `{"error": kind, "detail": sentence}`.

    The kind `broken` is an error of the template; every other kind depends on the values too.
    """
    try:
        template = make_environment().from_string(source)
    except (TemplateSyntaxError, SyntaxError, RecursionError) as error:
        return {"error": "broken", "detail": f"{type(error).__name__}: {error}"[:500]}
    except Exception as error:  # for example MemoryError, which may not recur
        return {"error": "hostile", "detail": f"{type(error).__name__}: {error}"[:500]}
    try:
        parts, length = [], 0
        for part in template.generate(**values):
            parts.append(part)
            length += len(part)
            if length > most:
                return {"error": "hostile", "detail": f"it wrote more than {most:,} characters"}
        return {"text": "".join(parts)}
    except RaisedError as error:
        return {"error": "raised", "detail": str(error)}
    except (SecurityError, MemoryError, OverflowError, RecursionError) as error:
        return {"error": "hostile", "detail": f"{type(error).__name__}: {error}"[:500]}
    except Exception as error:  # any other error of the template
        return {"error": "failed", "detail": f"{type(error).__name__}: {error}"[:500]}


def main() -> None:
    """Answer lines until the input ends."""
    limit_resources()
    for line in sys.stdin:
        query = json.loads(line)
        answer = render(query["source"], query["values"], query["most"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
