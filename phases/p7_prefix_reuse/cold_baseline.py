"""What a cold start gives: P2's engine, which knows no prefixes, serving one request at a time."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from engine.path import Path
from phases.p2_engine_serve import increment as before
from phases.p2_engine_serve.increment import Emitted, Limits, Request


@dataclass(frozen=True)
class Cold:
    """What a request gets alone and from nothing."""

    emitted: tuple[Emitted, ...]
    digest: str
    """Of the state that its turn ends in."""


@dataclass
class Peer:
    """A cold engine of one slot over a model and a path; what it found once is kept."""

    model: Any
    path: Path
    capacity: int
    known: dict[Request, Cold] = field(default_factory=dict)
    digests: dict[tuple[int, ...], str] = field(default_factory=dict)

    def serve(self, request: Request) -> Cold:
        """Return what the request gets when it runs to its limit."""
        nameless = replace(request, id="peer")
        if nameless not in self.known:
            engine = before.stack().engine(self.model, self.path, Limits(1, self.capacity))
            with closing(engine.run_single(nameless)) as run:  # type: ignore[type-var]
                emitted = tuple(next(run) for _ in range(request.limit))
                digest = engine.pool.slot(0).digest(engine.tenants[0].fed)
            self.known[nameless] = Cold(emitted, digest)
        return self.known[nameless]

    def digest(self, tokens: tuple[int, ...]) -> str:
        """Return the digest of the state after tokens, all in one chunk."""
        if tokens not in self.digests:
            pool = self.model.new_pool(1, self.capacity)
            self.path.prefill(self.model, pool, tokens, 0)
            self.digests[tokens] = pool.slot(0).digest(len(tokens))
        return self.digests[tokens]


_PEERS: list[Peer] = []


def peer_of(model: Any, path: Path, capacity: int) -> Peer:
    """Return the peer of exactly this model and path; mutants share it, for they change neither."""
    for peer in _PEERS:
        if peer.model is model and peer.path is path and peer.capacity == capacity:
            return peer
    _PEERS.append(Peer(model, path, capacity))
    return _PEERS[-1]
