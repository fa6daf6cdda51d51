"""Times stored with the receipts, as the page shows them; a red report shows none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from contracts.schema import Contract
from falsifiers.gate.benchmark_records import ProductTimes, StepTimes, load_products, load_steps
from falsifiers.gate.receipts import phase_digest
from reports import speed_plots
from reports.evidence import Evidence, StoredBenchmark
from reports.plots import Plot

HEADER = ("path", "context", "m", "ms", "least", "most", "floor, ms", "times floor", "tokens/s",
        "kernels", "launches")


@dataclass(frozen=True)
class SpeedView:
    """One benchmark on one device."""

    title: str
    conditions: str
    notes: tuple[str, ...]
    """Verdicts on the times, and what was left out."""
    plots: tuple[Plot, ...]
    rows: tuple[tuple[str, ...], ...] = ()
    """The times as a table with the columns `HEADER`."""


def load_benchmarks(root: Path, contracts: Mapping[str, Contract]) -> list[StoredBenchmark]:
    """Read the stored times, and whether they are of this checkout's kernels."""
    now: dict[str, str] = {}

    def fresh(digest: str, phase: str) -> bool:
        if phase in contracts and phase not in now:
            now[phase] = phase_digest(contracts[phase], root)
        return bool(digest) and now.get(phase) == digest

    return [*(StoredBenchmark(found, fresh(found.digest, found.figures[0].path))
              for found in load_steps(root) if found.figures),
            *(StoredBenchmark(found, fresh(found.digest, "p3")) for found in load_products(root)
              if found.figures)]


def speed_views(evidence: Evidence) -> list[SpeedView]:
    """Return every benchmark to show; none if anything is red."""
    if evidence.exit_code == 1 or evidence.kills.matrix.survivors:
        return []
    return [_step_view(stored.figures, stored.fresh) if isinstance(stored.figures, StepTimes)
            else _product_view(stored.figures, stored.fresh) for stored in evidence.speeds]


def _format_conditions(figures: StepTimes | ProductTimes, fresh: bool) -> str:
    day = f", {figures.measured}" if figures.measured else ""
    code = "of these very kernels" if fresh else \
        "not known to be of these very kernels: the code has changed since, or was not recorded"
    driver = f", driver {figures.versions['driver']}" if "driver" in figures.versions else ""
    return f"{figures.device}, torch {figures.torch}{driver}{day}; {code}."


def _step_view(steps: StepTimes, fresh: bool) -> SpeedView:
    rows = tuple((f.path, f"{f.context:,}", str(f.m), f"{f.milliseconds:.3f}", f"{f.fastest:.3f}",
                  f"{f.slowest:.3f}", f"{f.floor:.3f}", f"{f.milliseconds / f.floor:.1f}",
                  f"{f.tokens_a_second:,.0f}", f"{f.kernels:,}" if f.kernels else "-",
                  f"{f.launches:,}" if f.launches else "-") for f in steps.figures)
    prompts = tuple(f"{p.path}: a prompt of {p.tokens:,} tokens in {p.seconds:.3f} s, "
                    f"{p.tokens_a_second:,.0f} tokens/s" for p in steps.prefill)
    split = speed_plots.step_split_plot(steps)
    plots = (speed_plots.step_time_plot(steps), *([split] if split else []))
    return SpeedView(
        "Whole decode steps", f"{_format_conditions(steps, fresh)} {steps.model}. Before a step is "
        f"timed, its logits and state are compared with the looped path bit for bit.",
        (*steps.verdicts(), *prompts, *(f"left out: {why}" for why in steps.left_out)), plots, rows)


def _product_view(products: ProductTimes, fresh: bool) -> SpeedView:
    return SpeedView("Single products", _format_conditions(products, fresh), (
        f"Quantising eight rows takes {products.quantize_m8_us:.1f} us, shared by products that "
        f"read the same activations, and is not in these times.",),
        (speed_plots.product_time_plot(products),))
