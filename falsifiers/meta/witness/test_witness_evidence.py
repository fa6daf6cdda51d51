"""A server's evidence of batches: histograms, logs, and the source that the user names."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falsifiers.judging.errors import SuiteError
from falsifiers.witness.exposition import parse_samples, widest_batch
from falsifiers.witness.sources import HistogramSource, LogSource, SourceOptions, check_options
from falsifiers.witness.stream import BadResponse


def grown(**edges: float) -> dict[Any, float]:
    """Return how much each bucket grew; `le1_0` means an edge of 1.0."""
    return {(("le", edge.removeprefix("le").replace("_", ".")),): n for edge, n in edges.items()}


@pytest.mark.parametrize(("edges", "total", "m"), [
    ({"le1": 0, "le2": 0, "leinf": 0}, 0, None), ({"le1": 5, "le2": 5, "leinf": 5}, None, 1),
    ({"le1": 5, "le2": 6, "leinf": 6}, None, 2), ({"le1_0": 0, "le2_0": 9, "leinf": 9}, 18, 2),
    ({"le2": 0, "le4": 9}, 36, 4), ({"le2": 0, "le4": 9}, 28, 4),
    ({"le-inf": 0, "le1": 3}, None, 1),
    ({"le1": 2, "le2": 3, "le4": 13}, 4 + 39, 4), ({"le4": 2, "le8": 4}, 8 + 15, 8)])
def test_width_is_what_the_highest_bucket_proves(edges: dict[str, float], total: float | None,
                                                 m: int | None) -> None:
    assert widest_batch(grown(**edges), {} if total is None else {(): total}) == m


@pytest.mark.parametrize(("edges", "total"), [
    ({"le1": 0, "le4": 3}, None), ({"le1": 0, "le4": 3}, 9), ({"le8": 3}, 21),
    ({"le1": 1, "leinf": 2}, 99), ({"le1": 1, "leinf": 2, "le+inf": 3}, 99),
    ({"le4": 2, "le8": 4}, 8 + 14)])
def test_width_that_a_bucket_only_allows_is_not_proved(edges: dict[str, float],
                                                     total: float | None) -> None:
    with pytest.raises(BadResponse, match="does not show whether a step was"):
        widest_batch(grown(**edges), {} if total is None else {(): total})


@given(sizes=st.lists(st.integers(1, 20), min_size=1, max_size=12))
def test_proved_width_is_the_widest_batch(sizes: list[int]) -> None:
    edges = {f"le{edge}": sum(m <= edge for m in sizes) for edge in (1, 2, 4, 8, 16, 32)}
    try:
        width = widest_batch(grown(**edges), {(): sum(sizes)})
    except BadResponse:
        assert max(sizes) > 2
    else:
        assert width == max(sizes)


@pytest.mark.parametrize("edge", ["-4", "2e6", "1e7", "-inf"])
def test_width_that_no_batch_has_is_refused(edge: str) -> None:
    for more in (0, 1):  # a step of less than no row would prove those above it wider
        with pytest.raises(BadResponse, match="wide grew, which is no width"):
            widest_batch({(("le", edge),): 1.0, (("le", "1e8"),): 1.0 + more}, {(): 9.0})


def histogram(*pages: str) -> int | None:
    """Return the width that a histogram shows between two pages."""
    class Pages:
        left = iter(pages)

        async def fetch_text(self, url: str) -> str:
            return next(self.left)

    async def arm() -> int | None:
        pages: Any = Pages()
        source = HistogramSource(pages, "http://h/metrics", "m")
        await source.begin()
        return await source.end([])

    return asyncio.run(arm())


def test_histogram_of_another_process_is_no_evidence() -> None:
    page = 'm_bucket{{le="1"}} {}\nm_bucket{{le="2"}} {}\nm_created {}\n'
    more = "process_start_time_seconds {}\n"
    assert histogram(page.format(1, 1, 7.5), page.format(1, 2, 7.5)) == 2
    assert histogram(page.format(1, 1, 7.5) + more.format(3), page.format(1, 2, 7.5)) == 2
    for after in (page.format(1, 2, 8.5), page.format(1, 2, 7.5) + more.format(4)):
        with pytest.raises(BadResponse, match="a restarted server, or of another"):
            histogram(page.format(1, 1, 7.5) + more.format(3), after)
    with pytest.raises(BadResponse, match='the histogram "m" has disappeared'):
        histogram("# nothing\n", page.format(1, 2, 7.5))


@pytest.mark.parametrize("edges", [{"le1": -1}, {"le1": 3, "le2": 2}])
def test_histogram_that_shrank_is_no_evidence(edges: dict[str, float]) -> None:
    with pytest.raises(BadResponse, match="after a restart"):
        widest_batch(grown(**edges), {})


def test_series_are_read_apart() -> None:
    page = 'm_bucket{engine="0",le="1"} 7\nm_bucket{engine="0",le="2"} 7\n' \
           'm_bucket{engine="1",le="1"} 0\nm_bucket{engine="1",le="2"} 3\n' \
           "m_bucketed 8\n# m_bucket 9\n"
    assert widest_batch(parse_samples(page, "m_bucket"), {}) == 2
    assert len(parse_samples(page, "m_bucket")) == 4


def test_log_is_read_from_where_the_arm_began(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("Batch m=16\n")
    log = LogSource(path, re.compile(r"Batch m=(\d+)"))

    def arm(write: str, *, anew: bool = False, rotated: bool = False) -> int | None:
        async def run() -> int | None:
            await log.begin()
            if rotated:
                path.rename(path.with_suffix(".1"))
            with path.open("w" if anew else "a") as out:
                out.write(write)
            return await log.end([])

        return asyncio.run(run())

    assert arm("12:00 INFO Batch m=1\n12:00 INFO Batch m=4\nnoise m=9\n") == 4
    assert arm("nothing of a batch\n") is None
    assert arm("Batch m=2\n", anew=True) == 2
    assert arm("Batch m=5\n" + "nothing\n" * 99, rotated=True) == 5
    assert arm("Batch m=99999999999999999999\nBatch m=3\n") == 3
    path.unlink()
    with pytest.raises(BadResponse, match="the log cannot be read: No such file"):
        arm("")


@pytest.mark.parametrize(
    ("named", "sentence"),
    [
        (SourceOptions(log_file=Path(__file__), field="m"), "give one source"),
        (SourceOptions(metric="m", field="m"), "give one source"),
        (SourceOptions(pattern="x"), "--pattern needs --log-file"),
        (SourceOptions(field="a..b"), "is not a path such as"),
        (SourceOptions(field=""), "is not a path such as"),
        (SourceOptions(log_file=Path("/nowhere/at/all")), "is not a file"),
        (SourceOptions(log_file=Path(__file__), pattern="("), "is not a pattern"),
        (SourceOptions(log_file=Path(__file__), pattern="Batch"), "must have one group"),
        (SourceOptions(log_file=Path(__file__), pattern="(a)(b)"), "must have one group"),
    ],
)
def test_evidence_named_badly_is_refused(named: SourceOptions, sentence: str) -> None:
    with pytest.raises(SuiteError, match=sentence):
        check_options(named)
