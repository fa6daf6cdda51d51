"""Plots of a witness as inline SVG in the page's colours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from reports.plots import Plot

WIDTH, LEFT_MARGIN, ROW_HEIGHT = 720, 64, 15
"""Sizes in SVG units: width, label column, height of a row."""
RIGHT_MARGIN = 8


def stream_plot(band: Mapping[str, Any]) -> Plot | None:
    """Plot the times of each slot's tokens; return None for a band without times."""
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
    if first < last and len(rows) > 1:
        left, right = _x_position(first, longest), _x_position(last, longest)
        parts.insert(0, f'<rect x="{left:.1f}" y="0" height="{ROW_HEIGHT * len(rows)}" '
                        f'fill="var(--plot)" opacity=".12" width="{right - left:.1f}"/>')
    caption = f"c={band['c']}: each mark is a token, at its arrival time"
    caption += "." if len(rows) < 2 else "; in the tinted range every slot is being served."
    return _svg("".join(parts), ROW_HEIGHT * len(rows), longest, "time since the requests (ms)",
                caption)


def agreement_plot(band: Mapping[str, Any]) -> Plot | None:
    """Plot each slot's agreement with m=1 and the required minimum; return None without slots."""
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
    parts.append(_dashed_line(_x_position(least, most), ROW_HEIGHT * len(slots), "var(--warn)"))
    low = min(slot["agree_to"] for slot in slots)
    return _svg("".join(parts), ROW_HEIGHT * len(slots), most, "tokens",
                f"c={band['c']}: every slot agrees with m=1 for {low} tokens or more; the dashed "
                f"line is the required {least}.")


def index_plot(bands: Sequence[Mapping[str, Any]]) -> Plot | None:
    """Plot the serialization index of every width in two parts; return None without any."""
    known = [band for band in bands if band.get("index")]
    if not known:
        return None
    most = max(max(band["c"], band["index"]["serialization_index"]) for band in known)
    parts = []
    for i, band in enumerate(known):
        y, found = 2 * ROW_HEIGHT * i + 4, band["index"]
        path_cost, index = found["path_penalty"], found["serialization_index"]
        parts += [_bar(0, min(path_cost, index), y, most, "var(--near)", 20),
                  _bar(min(path_cost, index), index, y, most, "var(--plot)", 20),
                  f'<path d="M{_x_position(band["c"], most):.1f} {y - 3}v26" stroke="var(--bad)" '
                  f'stroke-width="2"/>', _label(f"c={band['c']}", y + 14)]
    parts.append(_dashed_line(_x_position(1, most), 2 * ROW_HEIGHT * len(known), "var(--good)"))
    return _svg("".join(parts), 2 * ROW_HEIGHT * len(known), most,
                "wall time relative to one request by itself",
                "The dashed line at 1 is a server that batches perfectly, the red mark at c one "
                "that serves in turns. The first part of a bar is the cost of the batched path for "
                "one request, the rest the cost of the other requests.")


def _dashed_line(x: float, height: int, colour: str) -> str:
    return (f'<path d="M{x:.1f} 0v{height}" stroke="{colour}" stroke-width="1.5" '
            f'stroke-dasharray="4 3"/>')


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
    axis = (f'<path d="M{LEFT_MARGIN} {height + 2}H{WIDTH - RIGHT_MARGIN}" '
            f'stroke="currentColor" opacity=".5"/>')
    for value in ticks(most):
        axis += (f'<text x="{_x_position(value, most):.1f}" y="{height + 15}" font-size="10" '
                 f'text-anchor="middle" fill="currentColor">{value:g}</text>')
    axis += (f'<text x="{LEFT_MARGIN}" y="{height + 30}" font-size="10" '
             f'fill="currentColor">{unit}</text>')
    return Plot(f'<svg class="plot" viewBox="0 -3 {WIDTH} {height + 36}" role="img" '
                f'aria-label="{caption}">{body}{axis}</svg>', caption)


def ticks(most: float) -> list[float]:
    """Return about five round numbers from 0 to `most`."""
    step = 10 ** math.floor(math.log10(most / 4)) if most > 0 else 1.0
    step *= next(factor for factor in (1, 2, 5, 10) if most / (step * factor) <= 6)
    return [step * i for i in range(int(most / step) + 1)]
