"""The store's meter as Prometheus reads it."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from phases.p7_prefix_reuse.store import Store

GAUGES = {
    "budget": "Bytes that kept states may take.",
    "bytes": "Bytes of kept states.",
    "blocks": "Blocks of KV rows that are kept.",
    "checkpoints": "Recurrent states that are kept.",
}
COUNTERS = {
    "hits": "Requests that began behind a kept state.",
    "misses": "Requests that began from nothing.",
    "reused": "Prompt tokens that kept states stood for.",
    "kept": "States that were kept.",
    "evictions": "Kept states that were dropped.",
    "refused": "States that were not kept, for they alone exceed the budget.",
    "failed": "Copies of states that failed.",
}


class StoreMetrics(Collector):
    """Shows the meter of one store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def collect(self) -> Iterator[Metric]:
        """Yield what the meter says now."""
        meter = self.store.meter
        for name, what in GAUGES.items():
            yield GaugeMetricFamily(f"rowtwin_prefix_{name}", what, value=getattr(meter, name))
        for name, what in COUNTERS.items():
            yield CounterMetricFamily(f"rowtwin_prefix_{name}", what, value=getattr(meter, name))
