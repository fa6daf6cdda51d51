"""Reads Prometheus text: the samples of a metric, and the width that a histogram proves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from prometheus_client.parser import text_string_to_metric_families

from falsifiers.witness.rules import quote_text
from falsifiers.witness.stream import BadResponse

MAX_SAMPLES = 10_000
"""Largest number of samples of one metric; servers have some dozens."""
MAX_WIDTH = 1 << 20
Labels = tuple[tuple[str, str], ...]


def widest_batch(grown: Mapping[Labels, float], sums: Mapping[Labels, float]) -> int | None:
    """Return the largest width that any series of a histogram proves, or None without steps.

    `grown` is the growth of each cumulative bucket, `sums` the growth of each series' sum. Raises
    `BadResponse` if the highest bucket that grew need not hold a step as wide as its edge.
    """
    series: dict[Labels, list[tuple[float, float]]] = {}
    for labels, value in grown.items():
        rest = tuple(pair for pair in labels if pair[0] != "le")
        series.setdefault(rest, []).append((_parse_edge(dict(labels).get("le", "")), value))
    found = [_widest_in_series(sorted(buckets), sums.get(rest)) for rest, buckets in series.items()]
    return max((width for width in found if width is not None), default=None)


def _widest_in_series(buckets: Sequence[tuple[float, float]], total: float | None) -> int | None:
    steps, below, count = list[tuple[float, float, float]](), 0.0, 0.0
    for edge, value in buckets:
        if value < count:
            raise BadResponse("the histogram shrank, as after a restart of the server")
        if value > count:
            if edge < 0 or MAX_WIDTH < edge < math.inf:
                raise BadResponse(f"a bucket of steps {edge:g} wide grew, which is no width")
            steps.append((math.floor(edge) if math.isfinite(edge) else edge, below, value - count))
        below, count = max(edge, 0.0), value
    if not steps:
        return None
    *lower, (edge, below, count) = steps
    exact = math.isfinite(edge) and edge - math.floor(below) == 1
    # the highest bucket's share of the sum, which narrower steps could not reach
    least = -math.inf if total is None else total - sum(n * most for most, _, n in lower)
    if not math.isfinite(edge) or not (exact or least > count * (edge - 1)):
        raise BadResponse(f"the histogram does not show whether a step was {edge:g} wide")
    return int(edge)


def _parse_edge(text: str) -> float:
    try:
        edge = float(text)
    except ValueError:
        raise BadResponse(f"a bucket ends at {quote_text(text)}") from None
    if math.isnan(edge):
        raise BadResponse("a bucket ends at NaN")
    return edge


def parse_samples(page: str, metric: str) -> dict[Labels, float]:
    """Return a metric's samples by their labels; raise `BadResponse` if the page is malformed."""
    lines = [line for line in page.split("\n")
             if line.startswith((f"{metric} ", f"{metric}{{"))]
    if len(lines) > MAX_SAMPLES:
        raise BadResponse(f"{quote_text(metric)} has more than {MAX_SAMPLES:,} samples")
    wanted = "\n".join(lines)
    try:
        found = {tuple(sorted(sample.labels.items())): float(sample.value)
                 for family in text_string_to_metric_families(wanted + "\n")
                 for sample in family.samples}
    except Exception:  # the parser raises many types for malformed text
        raise BadResponse(f"the samples of {quote_text(metric)} are malformed") from None
    if not all(math.isfinite(value) for value in found.values()):
        raise BadResponse(f"a sample of {quote_text(metric)} is not finite")
    return found
