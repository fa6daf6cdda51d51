"""A process of its own for a chat template, which comes with the model's file and is not trusted.

It reads one JSON object a line and answers each with one. The template runs in a sandbox that
gives it no attribute of Python's own and lets it change nothing; the process may hold little
memory and open no file, and whoever started it ends it when it takes too long.
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
    """The template itself refused the messages."""


def limit_resources() -> None:
    """Give up what a template has no use for."""
    try:
        import resource
    except ImportError:  # a system without limits still has the sandbox and the deadline
        return
    for kind, most in ((resource.RLIMIT_AS, MEMORY_LIMIT), (resource.RLIMIT_FSIZE, 0),
                       (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(kind, (most, most))


def make_environment() -> ImmutableSandboxedEnvironment:
    """Return the sandbox, set up as chat templates expect it."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                         loader=DictLoader({}),  # there is nothing to include
                                         extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    return environment


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None,
            separators: tuple[str, str] | None = None, sort_keys: bool = False) -> str:
    """Return a value as JSON, with the options that `transformers` gives chat templates."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def _raise_exception(message: object) -> NoReturn:
    raise RaisedError(str(message)[:500])


def render(source: str, values: dict[str, Any], most: int) -> dict[str, str]:
    """Return `{"text": ...}`, or `{"error": kind, "detail": sentence}`.

    `broken` is a fault of the template, every other kind one of the template with these values.
    """
    try:
        template = make_environment().from_string(source)
    except (TemplateSyntaxError, SyntaxError, RecursionError) as error:
        return {"error": "broken", "detail": f"{type(error).__name__}: {error}"[:500]}
    except Exception as error:  # such as memory, which the next try may have
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
    except Exception as error:  # whatever a template does wrong is the template's
        return {"error": "failed", "detail": f"{type(error).__name__}: {error}"[:500]}


def main() -> None:
    """Answer lines until there are none."""
    limit_resources()
    for line in sys.stdin:
        query = json.loads(line)
        answer = render(query["source"], query["values"], query["most"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
