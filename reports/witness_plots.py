"""Pictures of a witness, as SVG that stands inside the page and takes its colours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from reports.plots import Plot

WIDTH, LEFT_MARGIN, ROW_HEIGHT = 720, 64, 15
"""Units of the drawing: its width, the room for labels, the height of a row."""
RIGHT_MARGIN = 8


def stream_plot(band: Mapping[str, Any]) -> Plot | None:
    """Return when each slot's tokens came, or None for a band whose times may not be told."""
    rows = [slot["times_ms"] for slot in band["slots"] if slot.get("times_ms")]
    if not rows:
        return None
    longest = max(row[-1] for row in rows) or 1.0
    first, last = max(row[0] for row in rows), min(row[-1] for row in rows)
    parts = []
    for i, row in enumerate(rows):
        y = ROW_HEIGHT * i + 4
        marks = "".join(f"M{_x_position(t, longest):.1f} {y}v8" for t in row)
        parts.append(f'<path d="{marks}" stroke="var(--plot)" fill="none" stroke-width="1"/>'
                     + _label(f"slot {i}", y + 8))
    both = (
        ""
        if last <= first or len(rows) < 2
        else f'<rect x="{_x_position(first, longest):.1f}" y="0" height="{ROW_HEIGHT * len(rows)}" fill="var(--plot)" '
        f'opacity=".12" width="{_x_position(last, longest) - _x_position(first, longest):.1f}"/>'
    )
    caption = f"c={band['c']}: each mark is a token, at the time when it came"
    caption += "." if len(rows) < 2 else "; every slot is being served where the ground is tinted."
    return _svg(
        both + "".join(parts),
        ROW_HEIGHT * len(rows),
        longest,
        "time since the requests (ms)",
        caption,
    )


def agreement_plot(band: Mapping[str, Any]) -> Plot | None:
    """Return how far each slot agrees with m=1, against what must agree, or None without slots."""
    slots, least = band["slots"], band["declared_min"]
    if not slots:
        return None
    most = max([least, *(slot["completion_tokens"] for slot in slots)])
    parts = []
    for i, slot in enumerate(slots):
        y, agreed = ROW_HEIGHT * i + 3, slot["agree_to"]
        colour = "var(--good)" if agreed >= least else "var(--bad)"
        parts.append(_bar(0, agreed, y, most, colour) + _label(f"slot {i}", y + 9))
        if slot["completion_tokens"] > agreed:
            parts.append(_bar(agreed, slot["completion_tokens"], y, most, "var(--line)"))
    parts.append(
        f'<path d="M{_x_position(least, most):.1f} 0v{ROW_HEIGHT * len(slots)}" stroke="var(--warn)" '
        f'stroke-width="1.5" stroke-dasharray="4 3"/>'
    )
    low = min(slot["agree_to"] for slot in slots)
    return _svg("".join(parts), ROW_HEIGHT * len(slots), most, "tokens",
                f"c={band['c']}: the slot that agrees with m=1 for the shortest agrees for {low} "
                f"tokens; the dashed line is the {least} that must agree.")


def index_plot(bands: Sequence[Mapping[str, Any]]) -> Plot | None:
    """Return the serialization index of every width, taken apart, or None where none is known."""
    known = [band for band in bands if band.get("index")]
    if not known:
        return None
    most = max(max(band["c"], band["index"]["serialization_index"]) for band in known)
    parts = []
    for i, band in enumerate(known):
        y, found = 2 * ROW_HEIGHT * i + 4, band["index"]
        alone, whole = found["path_penalty"], found["serialization_index"]
        parts.append(
            _bar(0, min(alone, whole), y, most, "var(--near)", 20)
            + _bar(min(alone, whole), whole, y, most, "var(--plot)", 20)
            + f'<path d="M{_x_position(band["c"], most):.1f} {y - 3}v26" stroke="var(--bad)" '
            f'stroke-width="2"/>' + _label(f"c={band['c']}", y + 14)
        )
    parts.append(
        f'<path d="M{_x_position(1, most):.1f} 0v{2 * ROW_HEIGHT * len(known)}" stroke="var(--good)" '
        f'stroke-width="1.5" stroke-dasharray="4 3"/>'
    )
    return _svg(
        "".join(parts),
        2 * ROW_HEIGHT * len(known),
        most,
        "wall time against one request alone",
        "The dashed line at 1 is a server that batches perfectly, the red mark at c one "
        "that serves in turns. The first part of a bar is the path's own cost for one "
        "request, the rest what the other requests cost.",
    )


def _x_position(value: float, most: float) -> float:
    return LEFT_MARGIN + (WIDTH - LEFT_MARGIN - RIGHT_MARGIN) * value / most


def _bar(start: float, end: float, y: float, most: float, colour: str, height: int = 9) -> str:
    left, right = _x_position(start, most), _x_position(end, most)
    return (f'<rect x="{left:.1f}" y="{y}" width="{right - left:.1f}" height="{height}" '
            f'fill="{colour}"/>')


def _label(text: str, y: float) -> str:
    return (f'<text x="{LEFT_MARGIN - 8}" y="{y}" font-size="10" text-anchor="end" '
            f'fill="currentColor">{text}</text>')


def _svg(body: str, height: int, most: float, unit: str, caption: str) -> Plot:
    axis = f'<path d="M{LEFT_MARGIN} {height + 2}H{WIDTH - RIGHT_MARGIN}" stroke="currentColor" opacity=".5"/>'
    for value in ticks(most):
        axis += (f'<text x="{_x_position(value, most):.1f}" y="{height + 15}" font-size="10" '
                 f'text-anchor="middle" fill="currentColor">{value:g}</text>')
    axis += f'<text x="{LEFT_MARGIN}" y="{height + 30}" font-size="10" fill="currentColor">{unit}</text>'
    return Plot(f'<svg class="plot" viewBox="0 -3 {WIDTH} {height + 36}" role="img" '
                f'aria-label="{caption}">{body}{axis}</svg>', caption)


def ticks(most: float) -> list[float]:
    """Return about five round numbers from 0 to the most."""
    step = 10 ** math.floor(math.log10(most / 4)) if most > 0 else 1.0
    step *= next(factor for factor in (1, 2, 5, 10) if most / (step * factor) <= 6)
    return [step * i for i in range(int(most / step) + 1)]
