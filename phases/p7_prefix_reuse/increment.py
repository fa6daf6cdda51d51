"""P7's increment: the engine admits a request behind the longest prefix whose state was kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.model import Model
from engine.path import Path
from engine.tokenizer import Tokenizer
from phases.p2_engine_serve import increment as before
from phases.p2_engine_serve.increment import (
    Emitted,
    HybridEngine,
    Limits,
    Request,
    Row,
    Service,
    Terms,
)
from phases.p7_prefix_reuse.reuse_policy import ReusePolicy
from phases.p7_prefix_reuse.store import Store
from phases.p7_prefix_reuse.store_metrics import StoreMetrics

BUDGET = 256 << 20


class PrefixEngine(HybridEngine):
    """The hybrid engine whose steps stop where a state is to be kept."""

    prefixes: ReusePolicy

    def __init__(self, model: Model, path: Path, limits: Limits,
                 prefixes: ReusePolicy | None = None) -> None:
        super().__init__(model, path, limits, prefixes or ReusePolicy(Store(BUDGET), model, path))

    def decode_step(self, plan: Sequence[Row]) -> list[Emitted]:
        """Compute every row; one that passes a place to keep is computed in parts."""
        emitted: list[Emitted] = []
        left = list(plan)
        while left:
            now = [
                Row(
                    row.slot,
                    min(row.count, self.prefixes.tokens_until_keep(self.tenants[row.slot].fed)),
                )
                for row in left
            ]
            emitted += super().decode_step(now)
            left = [Row(row.slot, row.count - part.count)
                    for row, part in zip(left, now, strict=True) if row.count > part.count]
        return emitted

    def _find_extended_slot(self, request: Request) -> tuple[int, int]:
        """Leave every turn to the store, which knows them all, unless it may hold none."""
        return (-1, 0) if self.prefixes.store.budget else super()._find_extended_slot(request)


class PrefixService(Service):
    """The service that shows the store's meter among its metrics."""

    def __init__(self, stack: Stack, engine: PrefixEngine, tokenizer: Tokenizer,
                 terms: Terms) -> None:
        super().__init__(stack, engine, tokenizer, terms)
        self.metrics.add(StoreMetrics(engine.prefixes.store))


def prefixes(model: Model, path: Path, budget: int) -> ReusePolicy:
    """Return what an engine of a model and a path keeps in a store of its own."""
    return ReusePolicy(Store(budget), model, path)


@dataclass(frozen=True)
class Stack(before.Stack):
    """P2's parts, and those that keep and find prefixes."""

    store: type[Store]
    """Called with a budget in bytes and the rows of a block."""
    reuse: type[ReusePolicy]
    """Called with a store, a model, a path and a stride."""


def stack() -> Stack:
    """Return the stack of this phase."""
    parts = vars(before.stack())
    mine = {"engine": PrefixEngine, "service": PrefixService, "prefixes": prefixes}
    return Stack(**{**parts, **mine}, store=Store, reuse=ReusePolicy)
