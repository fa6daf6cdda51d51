"""When states are stored (at a stride, at the end of a turn) and restored (at admission)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import InputError
from engine.model import Model
from engine.path import Path
from engine.state import State
from phases.p7_prefix_reuse.store import Store

STRIDE = 512


@dataclass(frozen=True, eq=False, slots=True)
class Source:
    """The model and path that computed a state, compared by identity."""

    model: Model
    path: Path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Source) and self.model is other.model and self.path is other.path

    def __hash__(self) -> int:
        return hash((id(self.model), id(self.path)))


class ReusePolicy:
    """One engine's use of a store, which engines may share; implements P2's `Prefixes`."""

    def __init__(self, store: Store, model: Model, path: Path, stride: int = STRIDE) -> None:
        if stride < 1 or stride % store.block:
            raise InputError(f"a stride of {stride} tokens is not a positive multiple of the "
                             f"{store.block} rows of a block")
        self.store, self.source, self.stride = store, Source(model, path), stride

    def tokens_until_keep(self, length: int) -> int:
        """Return how many tokens may follow `length` tokens until the next stride position."""
        return self.stride - length % self.stride

    def admit(self, tokens: Sequence[int], state: State) -> int:
        """Write the longest stored prefix of a prompt into a fresh slot; return its length."""
        return self.store.restore(self.source, tokens, state)

    def on_advance(self, tokens: Sequence[int], state: State) -> None:
        """Store a state whose position is on the stride."""
        if len(tokens) % self.stride == 0:
            self.store.keep(self.source, tokens, state)

    def on_release(self, tokens: Sequence[int], state: State) -> None:
        """Store the state at the end of a turn, at any position."""
        if tokens:
            self.store.keep(self.source, tokens, state)
