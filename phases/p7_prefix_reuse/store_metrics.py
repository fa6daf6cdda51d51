"""The store's meter as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from phases.p7_prefix_reuse.store import Store

GAUGES = {
    "budget": "Maximum bytes of stored states.",
    "bytes": "Bytes of stored states.",
    "blocks": "Stored blocks of KV rows.",
    "checkpoints": "Stored checkpoints.",
}
COUNTERS = {
    "hits": "Requests that started after a stored prefix.",
    "misses": "Requests without a stored prefix.",
    "reused": "Prompt tokens that hits did not compute.",
    "kept": "Checkpoints stored so far.",
    "evictions": "Checkpoints evicted so far.",
    "refused": "Checkpoints larger than the budget.",
    "failed": "Failed copies of states.",
}


class StoreMetrics(Collector):
    """Exports the meter of one store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def collect(self) -> Iterator[Metric]:
        """Yield the meter's current values."""
        meter = self.store.meter
        for name, what in GAUGES.items():
            yield GaugeMetricFamily(f"rowtwin_prefix_{name}", what, value=getattr(meter, name))
        for name, what in COUNTERS.items():
            yield CounterMetricFamily(f"rowtwin_prefix_{name}", what, value=getattr(meter, name))
