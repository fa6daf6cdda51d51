"""Tables on stdout: drawn at a terminal, plain columns in a pipe or a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

ANSI = {"green": 32, "red": 31, "yellow": 33}
COLOURS = {"PASS": "green", "yes": "green", "fresh": "green", "FAIL": "red", "SURVIVED": "red",
           "no": "yellow", "stale": "yellow", "UNMEASURABLE": "yellow", "BLOCKED": "yellow"}
"""The colour of a cell by its first word."""


def color_status(text: str) -> str:
    """Return text in the colour of its first word at a terminal, otherwise unchanged."""
    colour = ANSI.get(COLOURS.get(text.strip().split(" ")[0], ""))
    if colour is None or not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{colour}m{text}\x1b[0m"


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> None:
    """Print a table; outside a terminal without colour, frame or line breaks."""
    if sys.stdout.isatty():
        _draw(head, rows, title)
        return
    if title:
        print(title)
    for line in align_columns([head, *rows]):
        print(line)


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines with aligned columns, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows]


def _draw(head: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text
    table = Table(title=title or None, title_justify="left", title_style="bold", box=SIMPLE_HEAD,
                  pad_edge=False, header_style="dim")
    for name in head:
        table.add_column(name)
    for row in rows:
        table.add_row(*(Text(cell, style=COLOURS.get(cell.split(",")[0].split(" ")[0], ""))
                        for cell in row))
    Console(highlight=False).print(table)
