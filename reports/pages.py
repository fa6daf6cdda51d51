"""What every page is made with: templates that escape what they are given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

TEMPLATES = Path(__file__).parent / "templates"


def fill_template(template: str, context: Mapping[str, Any]) -> str:
    """Return a template filled in; nothing in it is left undefined."""
    environment = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True,
                              undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"prose": prose, "breakable": breakable}
    text = environment.get_template(template).render(context)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")  # a name may hold any bytes


def prose(text: str) -> Markup:
    """Return a contract's text with what stands between backticks set as code."""
    parts = [escape(part) for part in text.split("`")]
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(Markup("<code>{}</code>").format(part) if i % 2 else part
                           for i, part in enumerate(parts))


def breakable(name: str) -> Markup:
    """Return a long name that may be broken after its underscores."""
    return Markup("_<wbr>").join(name.split("_"))
