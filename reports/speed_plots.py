"""Plots of stored times: steps and products against m, with their floors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from falsifiers.gate.benchmark_records import ProductTime, ProductTimes, StepTime, StepTimes
from reports import llama_cpp_baseline
from reports.plots import (
    ACCENT,
    INK,
    KIND_COLOURS,
    LIMIT,
    Plot,
    escape_label,
    label_rows,
    make_axes,
    render_plot,
    style_axes,
)

OP_FAMILIES: dict[str, Callable[[str], bool]] = {
    "projections": lambda op: op.startswith("project."), "head": lambda op: op == "head",
    "recurrence": lambda op: op in ("conv_step", "gates", "delta_step", "gated_norm"),
    "attention": lambda op: op == "attend" or op.startswith("rotate"),
    "norms": lambda op: "norm" in op, "SiLU": lambda op: op == "silu_mul",
    "others": lambda op: True}
"""Families of ops in a plot; an op belongs to the first that fits."""
MARKERS, BASELINE_COLOUR = "os^Dv", 6


def step_time_plot(steps: StepTimes) -> Plot:
    """Plot the time of a step against m, by path and context, with its floor."""
    figure, axes = _make_log_axes(f"Time of a decode step, {escape_label(steps.device)}",
                                  "rows in the step, m", "time (ms)")
    groups = _group_steps(steps.figures)
    _set_width_ticks(axes, {f.m for f in steps.figures})
    for number, ((path, context), mine) in enumerate(groups.items()):
        ms, colour = [f.m for f in mine], KIND_COLOURS[number % BASELINE_COLOUR]
        axes.plot(ms, [f.milliseconds for f in mine], f"{MARKERS[number % len(MARKERS)]}-",
                  color=colour, linewidth=1.6, markersize=5,
                  label=f"{escape_label(path, 24)}, context {context:,}")
        axes.vlines(ms, [f.fastest for f in mine], [f.slowest for f in mine], color=colour,
                    linewidth=1)
        axes.plot(ms, [f.floor for f in mine], "--", color=colour, linewidth=1.2,
                  label=f"floor, context {context:,}")
    crosses = ""
    if llama_cpp_baseline.is_comparable(steps):
        crosses = f" The crosses are {llama_cpp_baseline.CONDITIONS}."
        axes.plot(*zip(*llama_cpp_baseline.MILLISECONDS.items(), strict=True), "x-",
                  color=KIND_COLOURS[BASELINE_COLOUR], linewidth=1.3, markersize=6,
                  label=llama_cpp_baseline.LABEL)
    _add_legend(axes)
    best = min(steps.figures, key=lambda f: f.milliseconds / f.floor)
    return render_plot(figure, "step-times", (
        f"{steps.model}. Medians, with the fastest and the slowest; the floor is every weight and "
        f"cached value once and the recurrent state twice at {steps.bandwidth_tb_s:.2f} TB/s. "
        f"Nearest to it is {best.path} at m = {best.m}, context {best.context:,}: "
        f"{best.milliseconds:.2f} ms over {best.floor:.2f} ms.{crosses}"))


def step_split_plot(steps: StepTimes) -> Plot | None:
    """Plot a step's time by op, width and context; return None if it was not split."""
    figures = [f for f in steps.figures if f.split]
    if not figures:
        return None
    figure, axes = make_axes(len(figures) + 2,
                             f"Where a step's time goes, {escape_label(steps.device)}")
    shares = [time_by_family(f) for f in figures]
    left = [0.0] * len(figures)
    for number, name in enumerate(OP_FAMILIES):
        width = [share[name] for share in shares]
        axes.barh(range(len(figures)), width, left=left, height=0.66, color=KIND_COLOURS[number],
                  label=name)
        left = [a + b for a, b in zip(left, width, strict=True)]
    label_rows(axes, [f"{f.path}, context {f.context:,}, m = {f.m}" for f in figures])
    axes.set_xlabel(f"time by op (ms), on the {figures[0].clock}")
    _add_legend(axes, columns=4)
    last = shares[-1]
    top = max(last, key=lambda name: last[name])
    return render_plot(figure, "step-split", (
        f"Kernels' own time, without the gaps between them. A kernel that starts early includes "
        f"its waiting, so a bar may be longer than its step. At m = {figures[-1].m}, context "
        f"{figures[-1].context:,}, the largest share of {sum(last.values()):.2f} ms is {top}: "
        f"{last[top] / sum(last.values()):.0%}."))


def time_by_family(step: StepTime) -> dict[str, float]:
    """Return a step's split by family of ops."""
    totals = dict.fromkeys(OP_FAMILIES, 0.0)
    for op, ms in step.split.items():
        totals[next(name for name, fits in OP_FAMILIES.items() if fits(op))] += ms
    return totals


def product_time_plot(products: ProductTimes) -> Plot:
    """Plot the time of each matrix's product against m, with its floor, one panel each."""
    from matplotlib.figure import Figure
    groups: dict[str, list[ProductTime]] = {}
    for f in products.figures:
        groups.setdefault(f"{f.name} {f.kind}, {f.rows:,} x {f.columns:,}", []).append(f)
    rows = -(-len(groups) // 3)
    figure = Figure(figsize=(7.2, 0.6 + 1.75 * rows), layout="constrained")
    figure.suptitle(f"Time of one product (us) against m, {escape_label(products.device)}", x=0.01,
                    ha="left", fontsize=11, color=INK)
    for number, (name, mine) in enumerate(groups.items()):
        axes = style_axes(figure.add_subplot(rows, 3, number + 1), "y", size=8)
        axes.set_title(escape_label(name, 40), fontsize=8, color=INK, loc="left")
        _set_width_ticks(axes, {f.m for f in mine})
        ms = [f.m for f in mine]
        axes.plot(ms, [f.microseconds for f in mine], "o-", color=ACCENT, linewidth=1.5,
                  markersize=3.5)
        axes.plot(ms, [f.floor for f in mine], "--", color=LIMIT, linewidth=1.2)
        axes.set_ylim(0, 1.1 * max(f.microseconds for f in mine))
        if number == 0:
            axes.annotate("floor", (ms[-1], mine[-1].floor), color=LIMIT, fontsize=8, ha="right",
                          va="bottom")
    best = min(products.figures, key=lambda f: f.microseconds / f.floor)
    return render_plot(figure, "products", f"Medians of graph replays over weights that do not fit "
                    f"the cache, activations already quantised; the dashed line is the file's "
                    f"bytes once at {products.bandwidth_tb_s:.2f} TB/s. Nearest to it is "
                    f"{best.name} ({best.kind}) at m = {best.m}, "
                    f"{best.microseconds / best.floor:.2f} times the floor.")


def _make_log_axes(title: str, across: str, up: str) -> tuple[Any, Any]:
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)
    axes = style_axes(figure.add_subplot(), "y")
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    return figure, axes


def _set_width_ticks(axes: Any, ms: set[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(ms), [str(m) for m in sorted(ms)])


def _group_steps(figures: Sequence[StepTime]) -> dict[tuple[str, int], list[StepTime]]:
    groups: dict[tuple[str, int], list[StepTime]] = {}
    for f in sorted(figures, key=lambda f: f.m):
        groups.setdefault((f.path, f.context), []).append(f)
    return dict(sorted(groups.items()))


def _add_legend(axes: Any, columns: int = 3) -> None:
    """Put the legend under the title, in the text colour."""
    legend = axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, frameon=False,
                         fontsize=8, handlelength=1.8, columnspacing=1.2, borderaxespad=0.2)
    for text in legend.get_texts():
        text.set_color(INK)
