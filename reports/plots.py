"""Plots as inline SVG in the page's colours."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contracts.schema import Budget
    from falsifiers.judging.verdict import Verdict

INK, ACCENT, LIMIT = "#010203", "#010204", "#010205"
"""Placeholders that are replaced by the page's colours."""
KIND_COLOURS = tuple(f"#01021{number}" for number in range(7))
"""Placeholders for series of one plot."""
COLOURS = {INK: "currentColor", ACCENT: "var(--plot)", LIMIT: "var(--bad)",
           **{stand_in: f"var(--kind-{number})" for number, stand_in in enumerate(KIND_COLOURS)}}
ZERO_POSITION = 1e-17
"""The position of an exact 0 on a logarithmic axis."""


@dataclass(frozen=True)
class Plot:
    """One plot and its caption."""

    svg: str
    """Markup; names in it are escaped."""
    caption: str


def distance_plot(phase: str, verdicts: Sequence[Verdict], budget: Budget) -> Plot | None:
    """Plot each case's worst 1 - cosine against the budget; return None without any."""
    points = [(v.case.partition("/")[2], 1 - w.cosine) for v in verdicts for w in v.worst
              if w.cosine is not None and v.phase == phase]
    if not points:
        return None
    figure, axes = make_axes(len(points), f"{phase}: how far from the independent implementation")
    rows = range(len(points))
    axes.set_xscale("log")
    axes.plot([max(gap, ZERO_POSITION) for _, gap in points], rows, "o", color=ACCENT, markersize=6)
    axes.axvline(1 - budget.cosine, color=LIMIT, linewidth=1.5, linestyle="--")
    label_rows(axes, [name for name, _ in points])
    axes.set_ylim(len(points) - 0.5, -1.1)
    axes.annotate("budget", (1 - budget.cosine, -0.7), color=LIMIT, fontsize=9, ha="right",
                  va="center", xytext=(-5, 0), textcoords="offset points")
    axes.set_xlabel("1 - cosine of the worst row (no unit, logarithmic)")
    worst = max(gap for _, gap in points)
    return render_plot(figure, f"{phase}-distance", f"The largest 1 - cosine of any row is "
                    f"{worst:.1e} over {len(points)} cases; the budget is "
                    f"{1 - budget.cosine:.1e}.")


def time_plot(verdicts: Sequence[Verdict], most: int = 12) -> Plot | None:
    """Plot the gate's time by falsifier; return None if nothing ran."""
    spent: dict[str, float] = {}
    for v in verdicts:
        name = f"{v.phase} {v.falsifier}"
        spent[name] = spent.get(name, 0.0) + v.seconds
    top = sorted(spent.items(), key=lambda item: -item[1])[:most]
    if not top or not sum(spent.values()):
        return None
    figure, axes = make_axes(len(top), "Where the time went")
    axes.barh(range(len(top)), [value for _, value in top], color=ACCENT, height=0.6)
    label_rows(axes, [name for name, _ in top])
    axes.set_xlabel("time in all cases (s)")
    share = sum(value for _, value in top) / sum(spent.values())
    return render_plot(figure, "seconds", f"The {len(top)} longest falsifiers take {share:.0%} of "
                    f"{sum(spent.values()):.0f} s; the longest is {top[0][0]} at "
                    f"{top[0][1]:.1f} s.")


def make_axes(rows: int, title: str) -> tuple[Any, Any]:
    """Return a figure for a number of labelled rows; it needs no window system."""
    from matplotlib.figure import Figure
    figure = Figure(figsize=(7.2, 1.25 + 0.27 * rows), layout="constrained")
    axes = figure.add_subplot()
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)
    style_axes(axes, "x")
    return figure, axes


def style_axes(axes: Any, grid: str, size: int = 9) -> Any:
    """Style axes as the page, with grid lines on one axis; return them."""
    axes.tick_params(colors=INK, labelsize=size, length=3)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(which="minor", length=0)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=INK, fontsize=size)
    for side, spine in axes.spines.items():
        spine.set(color=INK, linewidth=0.8, visible=side == "bottom")
    axes.patch.set_visible(False)
    axes.grid(axis=grid, color=INK, alpha=0.15, linewidth=0.8)
    axes.set_axisbelow(True)
    return axes


def label_rows(axes: Any, names: Sequence[str]) -> None:
    """Label the rows of a plot from the top."""
    axes.set_yticks(range(len(names)), [escape_label(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)


def escape_label(name: str, most: int = 60) -> str:
    """Return a name without matplotlib's formula syntax, cut to one line."""
    name = "".join(c if c.isprintable() else "?" for c in name.replace("$", "\\$"))
    return name if len(name) <= most else f"{name[:most - 3]}…"


def render_plot(figure: Any, name: str, caption: str) -> Plot:
    """Return a figure as SVG in the page's colours; its ids begin with `name`."""
    import matplotlib as mpl
    out = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(out, format="svg", transparent=True, metadata={
            "Date": None, "Creator": None, "Format": None, "Type": None})
    svg = out.getvalue()
    svg = svg[svg.index("<svg"):]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'font: ([\d.]+)px [^;"]*', r"font-size: \1px", svg)  # older releases' shorthand
    svg = re.sub(r'font-family: [^;"]*;? ?', "", svg)
    svg = re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', lambda found: (
        f'<svg class="plot" viewBox="{found[1]}" role="img" aria-label="{html.escape(caption)}" '
        f'xmlns:xlink="http://www.w3.org/1999/xlink">'), svg, count=1)
    svg = re.sub(r'\b(id="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    for stand_in, colour in COLOURS.items():
        svg = svg.replace(stand_in, colour)
    return Plot(svg.strip(), caption)
