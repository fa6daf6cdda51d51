"""One request after another, alone: the peer for tokens, endings and finish times."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import cast

from phases.p0_scheduler.protocol import BatchEngine, Emitted, Ending, Request


@dataclass(frozen=True, slots=True)
class Served:
    """What a request gets when nobody else is there."""

    request: Request
    emitted: tuple[Emitted, ...]
    reason: Ending

    def steps(self, chunk: int) -> int:
        """Return how many steps it takes from seat to end, with prefill chunks of `chunk`."""
        return -(-len(self.request.tokens) // chunk) + len(self.emitted) - 1


def serve(engine: BatchEngine, requests: Iterable[Request],
          eos: frozenset[int] = frozenset()) -> list[Served]:
    """Serve the requests in order, each to its end before the next begins."""
    return [serve_one(engine, request, eos) for request in requests]


def serve_one(engine: BatchEngine, request: Request, eos: frozenset[int]) -> Served:
    """Take tokens until one is a stop token, which is kept, or the limit is reached."""
    emitted: list[Emitted] = []
    run = cast("Generator[Emitted, None, None]", engine.run_single(request))
    with closing(run):
        for one in run:
            emitted.append(one)
            if one.token in request.stop_ids:
                reason: Ending = "eos" if one.token in eos else "stop"
                return Served(request, tuple(emitted), reason)
            if len(emitted) == request.limit:
                return Served(request, tuple(emitted), "length")
    return Served(request, tuple(emitted), "error")  # an engine must not run dry
