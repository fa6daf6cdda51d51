"""What the server counts, as Prometheus reads it; every figure is the scheduler's own."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from phases.p0_scheduler.increment import Counts

BUCKETS = (*range(1, 17), 24, 32, 48, 64)
GAUGES = {
    "waiting": "Requests that were accepted and have no slot yet.",
    "live": "Slots taken.",
    "batch": "Rows of the newest step.",
    "formed": "The largest batch so far.",
}
COUNTERS = {
    "steps": "Engine steps.",
    "prefilled": "Prompt tokens really computed.",
    "reused": "Prompt tokens not computed because a slot held them.",
}


class Metrics(Collector):
    """Takes the counts of every step on the engine's thread and shows the newest."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._counts: Counts | None = None
        self._registry = CollectorRegistry()
        self._batch_sizes = Histogram("rowtwin_batch_size", "Rows of a step.", buckets=BUCKETS,
                                      registry=self._registry)
        self._registry.register(self)

    def observe(self, counts: Counts) -> None:
        """Take the counts after a turn of the engine's thread."""
        before = self._counts.steps if self._counts is not None else 0
        if counts.steps > before:
            self._batch_sizes.observe(counts.batch)
        self._counts = counts

    def add(self, figures: Collector) -> None:
        """Show another part's figures too."""
        self._registry.register(figures)

    def text(self) -> bytes:
        """Return everything in the exposition format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield what is read off the newest counts."""
        yield GaugeMetricFamily("rowtwin_slots", "Slots there are.", value=self.slots)
        counts = self._counts
        for name, what in GAUGES.items():
            yield GaugeMetricFamily(f"rowtwin_{name}", what,
                                    value=getattr(counts, name) if counts else 0)
        for name, what in COUNTERS.items():
            yield CounterMetricFamily(f"rowtwin_{name}", what,
                                      value=getattr(counts, name) if counts else 0)
        ended = CounterMetricFamily("rowtwin_ended", "Requests by how they ended: cancels too.",
                                    labels=["reason"])
        for reason, number in sorted(counts.ended.items() if counts else ()):
            ended.add_metric([reason], number)
        yield ended
