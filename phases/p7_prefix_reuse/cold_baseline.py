"""The cold baseline: P2's engine, which reuses no prefixes, serving one request at a time."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from engine.path import Path
from phases.p2_engine_serve import increment as before
from phases.p2_engine_serve.increment import Emitted, Limits, Request


@dataclass(frozen=True)
class ColdResult:
    """A request's tokens and final state from a solo cold start."""

    emitted: tuple[Emitted, ...]
    digest: str
    """The digest of the state at the end of its turn."""


@dataclass
class ColdBaseline:
    """A cold engine of one slot over a model and a path, with a cache of its results."""

    model: Any
    path: Path
    capacity: int
    results: dict[Request, ColdResult] = field(default_factory=dict)
    digests: dict[tuple[int, ...], str] = field(default_factory=dict)

    def serve(self, request: Request) -> ColdResult:
        """Return the request's result when it runs to its limit."""
        nameless = replace(request, id="baseline")
        if nameless not in self.results:
            engine = before.stack().engine(self.model, self.path, Limits(1, self.capacity))
            with closing(engine.run_single(nameless)) as run:  # type: ignore[type-var]
                emitted = tuple(next(run) for _ in range(request.limit))
                digest = engine.pool.slot(0).digest(engine.tenants[0].fed)
            self.results[nameless] = ColdResult(emitted, digest)
        return self.results[nameless]

    def digest(self, tokens: tuple[int, ...]) -> str:
        """Return the digest of the state after tokens, prefilled in one chunk."""
        if tokens not in self.digests:
            pool = self.model.new_pool(1, self.capacity)
            self.path.prefill(self.model, pool, tokens, 0)
            self.digests[tokens] = pool.slot(0).digest(len(tokens))
        return self.digests[tokens]


_BASELINES: list[ColdBaseline] = []


def get_baseline(model: Any, path: Path, capacity: int) -> ColdBaseline:
    """Return the baseline of this model and path; mutants share it, as they change neither."""
    for baseline in _BASELINES:
        if baseline.model is model and baseline.path is path and baseline.capacity == capacity:
            return baseline
    _BASELINES.append(ColdBaseline(model, path, capacity))
    return _BASELINES[-1]
