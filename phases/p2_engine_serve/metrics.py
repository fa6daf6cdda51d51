"""The server's Prometheus metrics, read from the scheduler's counters."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from phases.p0_scheduler.increment import Counts

BUCKETS = (*range(1, 17), 24, 32, 48, 64)
GAUGES = {
    "waiting": "Accepted requests without a slot.",
    "live": "Slots in use.",
    "batch": "Rows of the newest step.",
    "formed": "The largest batch so far.",
}
COUNTERS = {
    "steps": "Engine steps.",
    "prefilled": "Prompt tokens computed.",
    "reused": "Prompt tokens not computed because their state was reused.",
}


class Metrics(Collector):
    """Stores the counts after every step, on the engine thread, and exports the newest."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._counts: Counts | None = None
        self._registry = CollectorRegistry()
        self._batch_sizes = Histogram("rowtwin_batch_size", "Rows of a step.", buckets=BUCKETS,
                                      registry=self._registry)
        self._registry.register(self)

    def observe(self, counts: Counts) -> None:
        """Store the counts after a step; called on the engine thread."""
        before = self._counts.steps if self._counts is not None else 0
        if counts.steps > before:
            self._batch_sizes.observe(counts.batch)
        self._counts = counts

    def add(self, collector: Collector) -> None:
        """Export another collector's metrics too."""
        self._registry.register(collector)

    def text(self) -> bytes:
        """Return everything in the exposition format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the newest counts."""
        yield GaugeMetricFamily("rowtwin_slots", "Number of slots.", value=self.slots)
        counts = self._counts
        for name, what in GAUGES.items():
            yield GaugeMetricFamily(f"rowtwin_{name}", what,
                                    value=getattr(counts, name) if counts else 0)
        for name, what in COUNTERS.items():
            yield CounterMetricFamily(f"rowtwin_{name}", what,
                                      value=getattr(counts, name) if counts else 0)
        ended = CounterMetricFamily("rowtwin_ended", "Ended requests by reason.",
                                    labels=["reason"])
        for reason, number in sorted(counts.ended.items() if counts else ()):
            ended.add_metric([reason], number)
        yield ended
