"""P7's increment: the engine admits a request behind the longest prefix whose state was kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.model import Model
from engine.path import Path
from phases.p2_engine_serve import increment as before
from phases.p2_engine_serve.increment import Emitted, HybridEngine, Limits, Request, Row
from phases.p7_prefix_reuse.reuse import Reuse
from phases.p7_prefix_reuse.store import Store

BUDGET = 256 << 20


class PrefixEngine(HybridEngine):
    """The hybrid engine whose steps stop where a state is to be kept."""

    prefixes: Reuse

    def __init__(self, model: Model, path: Path, limits: Limits,
                 prefixes: Reuse | None = None) -> None:
        reuse = prefixes if prefixes is not None else Reuse(Store(BUDGET), model, path)
        super().__init__(model, path, limits, reuse)

    def decode_step(self, plan: Sequence[Row]) -> list[Emitted]:
        """Compute every row; one that passes a place to keep is computed in parts."""
        emitted: list[Emitted] = []
        left = list(plan)
        while left:
            now = [Row(row.slot, min(row.count, self.prefixes.room(self.tenants[row.slot].fed)))
                   for row in left]
            emitted += super().decode_step(now)
            left = [Row(row.slot, row.count - part.count)
                    for row, part in zip(left, now, strict=True) if row.count > part.count]
        return emitted

    def _turn(self, request: Request) -> tuple[int, int]:
        """Leave every turn to the store, which knows them all."""
        return -1, 0


@dataclass(frozen=True)
class Stack(before.Stack):
    """P2's parts, and those that keep and find prefixes."""

    store: type[Store]
    """Called with a budget in bytes."""
    prefixes: type[Reuse]
    """Called with a store, a model, a path and a stride."""


def stack() -> Stack:
    """Return the stack of this phase."""
    parts = vars(before.stack())
    return Stack(**{**parts, "engine": PrefixEngine}, store=Store, prefixes=Reuse)
