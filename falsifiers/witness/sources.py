"""Where a server reports the width of its batches; it is never inferred from the requests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from falsifiers.judging.errors import SuiteError
from falsifiers.witness.client import Client, parse_url
from falsifiers.witness.exposition import MAX_WIDTH, Labels, parse_samples, widest_batch
from falsifiers.witness.rules import quote_text
from falsifiers.witness.stream import BadResponse, Stream

PRESETS = {"rowtwin_batch_size": "rowtwin", "vllm:num_requests_running": "vLLM",
           "llamacpp:requests_processing": "llama-server"}
"""Metrics with the width of a batch, by name, and their servers; the first found is used."""
DEFAULT_PATTERN = r"Batch m=(\d+)"
POLL_SECONDS = 0.02
"""Seconds between two reads of a gauge."""
MAX_LOG_BYTES = 64 << 20
MAX_LINE_CHARS = 4096


class Source(Protocol):
    """Evidence of a server's batches, read around each arm."""

    name: str
    """A description of the evidence, for the witness."""

    async def begin(self) -> None:
        """Start to observe; earlier batches do not count."""

    async def end(self, streams: Sequence[Stream]) -> int | None:
        """Return the widest batch since `begin`, or None without a batch.

        Raises `BadResponse` if the evidence cannot be read.
        """


@dataclass
class NoSource:
    """The source of a server that reports no batches."""

    why: str
    name: str = "none"

    async def begin(self) -> None:
        """Do nothing."""

    async def end(self, streams: Sequence[Stream]) -> int | None:
        """Raise `BadResponse` with the reason."""
        raise BadResponse(self.why)


@dataclass
class FieldSource:
    """A field of the responses."""

    name: str

    async def begin(self) -> None:
        """Do nothing: each response belongs to its own arm."""

    async def end(self, streams: Sequence[Stream]) -> int | None:
        """Return the largest value in the arm's responses."""
        return max((s.batch for s in streams if s.batch is not None), default=None)


@dataclass
class LogSource:
    """A log file that grows, and a pattern whose group is the width."""

    path: Path
    pattern: re.Pattern[str]
    name: str = ""
    _offset: int = 0
    _inode: int = 0
    """The inode of the file at `begin`."""

    def __post_init__(self) -> None:
        self.name = f"log lines with {self.pattern.pattern}"

    async def begin(self) -> None:
        """Store the end of the log."""
        self._inode, self._offset = self._stat()

    async def end(self, streams: Sequence[Stream]) -> int | None:
        """Return the largest width logged since `begin`."""
        file, size = self._stat()  # a rotated log starts at 0
        start = self._offset if file == self._inode and size >= self._offset else 0
        try:
            with self.path.open("rb") as log:
                log.seek(start)
                raw = log.read(MAX_LOG_BYTES + 1)
        except OSError as error:
            raise BadResponse(f"the log cannot be read: {error.strerror}") from None
        if len(raw) > MAX_LOG_BYTES:
            raise BadResponse(f"the log grew by more than {MAX_LOG_BYTES >> 20} MiB")
        found = [match[1] for line in raw.decode("utf-8", "replace").splitlines()
                 for match in self.pattern.finditer(line[:MAX_LINE_CHARS])]
        return max((int(m) for m in found if m and re.fullmatch(r"[0-9]{1,6}", m)), default=None)

    def _stat(self) -> tuple[int, int]:
        """Return the log's inode and size in bytes."""
        try:
            found = os.stat(self.path)
            return found.st_ino, found.st_size
        except OSError as error:
            raise BadResponse(f"the log cannot be read: {error.strerror}") from None


@dataclass
class GaugeSource:
    """A Prometheus gauge, polled while the arm runs."""

    client: Client
    url: str
    metric: str
    name: str = ""
    _values: list[float] = field(default_factory=list)
    _task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.name = f"gauge {self.metric}"

    async def begin(self) -> None:
        """Start polling."""
        self._values.clear()
        self._task = asyncio.create_task(self._poll())

    async def _poll(self) -> None:
        while True:
            page = await self.client.fetch_text(self.url)
            self._values += [value for _, value in parse_samples(page, self.metric).items()]
            await asyncio.sleep(POLL_SECONDS)

    async def end(self, streams: Sequence[Stream]) -> int | None:
        """Stop polling, and return the largest value."""
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        most = max(self._values, default=None)
        if most is not None and (most != int(most) or not 0 <= most <= MAX_WIDTH):
            raise BadResponse(f"the gauge {self.metric} reports {most:g}, which is no width")
        return None if most is None else int(most)


@dataclass
class HistogramSource:
    """A Prometheus histogram of batch sizes, read before and after the arm."""

    client: Client
    url: str
    metric: str
    name: str = ""
    _before: Sequence[Mapping[Labels, float]] = ()

    def __post_init__(self) -> None:
        self.name = f"histogram {self.metric}"

    async def begin(self) -> None:
        """Read the counts before the arm."""
        self._before = await self._read()
        if not self._before[0]:  # later counts might include earlier batches
            raise BadResponse(f"the histogram {quote_text(self.metric)} has disappeared")

    async def _read(self) -> list[dict[Labels, float]]:
        """Return buckets, sums, and the start times of histogram and process, if reported."""
        page = await self.client.fetch_text(self.url)
        return [parse_samples(page, name) for name in (
            f"{self.metric}_bucket", f"{self.metric}_sum", f"{self.metric}_created",
            "process_start_time_seconds")]

    async def end(self, streams: Sequence[Stream]) -> int | None:
        """Return the largest width that the steps since `begin` prove."""
        pairs = list(zip(self._before, await self._read(), strict=True))
        if any(before.get(key, value) != value for before, after in pairs[2:]
               for key, value in after.items()):
            raise BadResponse("the metrics are of a restarted server, or of another server")
        buckets, sums = ({key: value - before.get(key, 0.0) for key, value in after.items()}
                         for before, after in pairs[:2])
        return widest_batch(buckets, sums)


@dataclass(frozen=True)
class SourceOptions:
    """The source of evidence that the user names; without one, `find_source` looks for it."""

    metrics_url: str | None = None
    metric: str | None = None
    log_file: Path | None = None
    pattern: str | None = None
    field: str | None = None


def check_options(named: SourceOptions) -> None:
    """Raise `SuiteError` if the options are invalid or contradict each other."""
    kinds = [named.log_file, named.field, named.metric or named.metrics_url]
    if sum(kind is not None for kind in kinds) > 1:
        raise SuiteError("give one source of evidence: --log-file, --field or --metrics-url")
    if named.pattern is not None and named.log_file is None:
        raise SuiteError("--pattern needs --log-file")
    if named.field is not None and not all(named.field.split(".")):
        raise SuiteError(f"--field {quote_text(named.field)} is not a path such as usage.batch")
    if named.metrics_url is not None:
        parse_url(named.metrics_url)
    if named.log_file is not None and not named.log_file.is_file():
        raise SuiteError(f"--log-file {named.log_file} is not a file")
    if named.log_file is not None:
        _compile_pattern(named.pattern or DEFAULT_PATTERN)


def _compile_pattern(text: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise SuiteError(f"--pattern {quote_text(text)} is not a pattern: {error}") from None
    if pattern.groups != 1:
        raise SuiteError(f"--pattern {quote_text(text)} must have one group, the width of a batch")
    return pattern


async def find_source(named: SourceOptions, client: Client) -> Source:
    """Return the named source or, without one, a metric of a known server."""
    check_options(named)
    if named.log_file is not None:
        return LogSource(named.log_file, _compile_pattern(named.pattern or DEFAULT_PATTERN))
    if named.field is not None:
        return FieldSource(f"response field {named.field}")
    url = named.metrics_url or f"{client.url}/metrics"
    metrics = [named.metric] if named.metric else list(PRESETS)
    try:
        page = await client.fetch_text(url)
        for metric in metrics:
            if parse_samples(page, f"{metric}_bucket"):
                return HistogramSource(client, url, metric)
            if parse_samples(page, metric):
                return GaugeSource(client, url, metric)
    except BadResponse as why:
        return NoSource(f"the server shows no evidence of its batches: {why}")
    return NoSource(f"the server shows no evidence of its batches: {url} holds none of "
                   f"{', '.join(metrics)}")
