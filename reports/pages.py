"""Fills templates, and escapes their values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

TEMPLATES = Path(__file__).parent / "templates"


def fill_template(template: str, context: Mapping[str, Any]) -> str:
    """Return a filled template; raise for an undefined value."""
    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True,
                              undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"prose": prose, "breakable": breakable}
    text = environment.get_template(template).render(context)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")  # a name may hold any bytes


def prose(text: str) -> Markup:
    """Return a contract's text as HTML, with code for text in backticks."""
    parts = [escape(part) for part in text.split("`")]
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(Markup("<code>{}</code>").format(part) if i % 2 else part
                           for i, part in enumerate(parts))


def breakable(name: str) -> Markup:
    """Return a name that a browser may break after underscores."""
    return Markup("_<wbr>").join(name.split("_"))
