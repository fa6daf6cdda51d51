"""Faulty engines and policies: states stored under a wrong key, or restored wrongly."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from engine.gguf_file import open_gguf
from engine.model import Model
from engine.path import Path
from engine.state import State
from engine.tokenizer import Tokenizer
from falsifiers.judging.subject import Subject
from phases.p2_engine_serve.increment import Emitted, HybridEngine, Request, Row, Seat, Service
from phases.p7_prefix_reuse.increment import PrefixEngine, PrefixService
from phases.p7_prefix_reuse.reuse_policy import STRIDE, ReusePolicy
from phases.p7_prefix_reuse.store import Store, StoredCheckpoint
from phases.p7_prefix_reuse.store_metrics import StoreMetrics


class FloorsTheKey(ReusePolicy):
    """The end of a turn is stored under its last full block, though the state is further."""

    def on_release(self, tokens: Sequence[int], state: State) -> None:
        super().on_release(tokens[:len(tokens) - len(tokens) % self.store.block], state)


class FilesATokenShort(ReusePolicy):
    """The end of a turn is stored under one token fewer than the state was fed."""

    def on_release(self, tokens: Sequence[int], state: State) -> None:
        super().on_release(tokens[:-1], state)


class FilesTheTokenToCome(PrefixEngine):
    """The end of a turn is stored with the last sampled token, which was never fed."""

    def recycle_slot(self, slot: int) -> None:
        self.tenants[slot].fed = len(self.tenants[slot].tokens)
        super().recycle_slot(slot)


class FilesTheWholePrompt(PrefixEngine):
    """A request cancelled between its chunks is stored under its complete prompt."""

    def recycle_slot(self, slot: int) -> None:
        tenant = self.tenants[slot]
        tenant.fed = max(tenant.fed, len(tenant.request.tokens))
        super().recycle_slot(slot)


class FilesChunksUnderTheStride(ReusePolicy):
    """A chunk runs past the stride, and its state is stored under the stride's position."""

    def tokens_until_keep(self, length: int) -> int:
        return 1 << 30

    def on_advance(self, tokens: Sequence[int], state: State) -> None:
        end = len(tokens) - len(tokens) % self.stride
        if end:
            self.store.keep(self.source, tokens[:end], state)


class RunsPastTheStride(PrefixEngine):
    """A chunk that passes the stride is not split, so nothing is stored there."""

    def decode_step(self, plan: Sequence[Row]) -> list[Emitted]:
        return HybridEngine.decode_step(self, plan)


class NeverKeepsTurns(ReusePolicy):
    """The end of a turn is not stored."""

    def on_release(self, tokens: Sequence[int], state: State) -> None:
        return


class KeepsFailedStates(PrefixEngine):
    """After a failed step, the slots' states are stored as if it had succeeded."""

    def reset(self) -> None:
        for slot in list(self.tenants):
            self.recycle_slot(slot)
        super().reset()


class WritesShortChunksBack(PrefixEngine):
    """A first chunk shorter than the convolution writes its window into the checkpoint."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.source: dict[int, StoredCheckpoint | None] = {}

    def _assign_slot(self, request: Request, *, alone: bool) -> Seat:
        found = self.prefixes.store._find_deepest(self.prefixes.source, request.tokens)
        seat = super()._assign_slot(request, alone=alone)
        self.source[seat.slot] = found
        return seat

    def decode_step(self, plan: Sequence[Row]) -> list[Emitted]:
        emitted = super().decode_step(plan)
        for row in plan:
            saved = self.source.pop(row.slot, None)
            if saved is not None and row.count < 3:
                for name, view in self.pool.slot(row.slot).named().items():
                    if name.endswith("conv"):
                        saved.recurrent[name].copy_(view)
        return emitted


class ComputesWhatItReuses(ReusePolicy):
    """The prefix that is reported as reused is computed again."""

    def admit(self, tokens: Sequence[int], state: State) -> int:
        reused = super().admit(tokens, state)
        if reused:
            state.clear()
            self.source.path.prefill(self.source.model, state.pool, tokens[:reused], state.index)
        return reused


class TellsNoReuse(PrefixEngine):
    """A prefix is skipped but not reported."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.skip_left: dict[int, int] = {}

    def _assign_slot(self, request: Request, *, alone: bool) -> Seat:
        seat = super()._assign_slot(request, alone=alone)
        self.skip_left[seat.slot] = seat.reused
        return replace(seat, reused=0)

    def decode_step(self, plan: Sequence[Row]) -> list[Emitted]:
        left = []
        for row in plan:
            skipped = min(self.skip_left[row.slot], row.count)
            self.skip_left[row.slot] -= skipped
            if row.count > skipped:
                left.append(Row(row.slot, row.count - skipped))
        return super().decode_step(left) if left else []


class BeginsAtPositionZero(PrefixEngine):
    """The tokens after a reused prefix get positions from 0 on."""

    def _assign_slot(self, request: Request, *, alone: bool) -> Seat:
        seat = super()._assign_slot(request, alone=alone)
        tenant = self.tenants[seat.slot]
        tenant.tokens, tenant.fed = tenant.tokens[seat.reused:], 0
        return seat


class CountsDrawsFromReuse(PrefixEngine):
    """A sampler's count starts at the number of reused tokens."""

    def _assign_slot(self, request: Request, *, alone: bool) -> Seat:
        seat = super()._assign_slot(request, alone=alone)
        self.tenants[seat.slot].drawn_count = seat.reused
        return seat


class RestoresIntoTheNeighbour(ReusePolicy):
    """The prefix is copied into the next slot."""

    def admit(self, tokens: Sequence[int], state: State) -> int:
        pool = state.pool
        return super().admit(tokens, pool.slot((state.index + 1) % pool.slots))


class SharesAmongModels(ReusePolicy):
    """The key is only the tokens."""

    def __init__(self, store: Store, model: Model, path: Path, stride: int = STRIDE) -> None:
        super().__init__(store, model, path, stride)
        self.source: Any = "every model"


class SharesAmongPaths(ReusePolicy):
    """The key is the model and the tokens, but not the path."""

    def __init__(self, store: Store, model: Model, path: Path, stride: int = STRIDE) -> None:
        super().__init__(store, model, path, stride)
        self.source: Any = id(model)


class _NotedMatches(ReusePolicy):
    noted: dict[tuple[int, ...], int]

    def admit(self, tokens: Sequence[int], state: State) -> int:
        found = super().admit(tokens, state)
        return self.noted.get(tuple(tokens), found)


def matches_at_enqueue(subject: Subject) -> Subject:
    """Look up a prompt's match when the request is enqueued, and use it at admission."""
    base: Any = subject.stack.scheduler

    class Early(base):  # type: ignore[misc]
        def submit(self, request: Request) -> None:
            super().submit(request)
            reuse = self.engine.prefixes
            noted = vars(reuse).setdefault("noted", {})
            found = reuse.store._find_deepest(reuse.source, request.tokens)
            noted[request.tokens] = found.position if found is not None else 0

    return replace(subject, stack=replace(subject.stack, scheduler=Early, reuse=_NotedMatches))


class KeyedByText(Store):
    """A prompt is looked up by the text of its tokens."""

    def restore(self, key: Hashable, tokens: Sequence[int], state: State) -> int:
        texts = {_token_bytes(key, saved.node.tokens): saved for saved in self._by_last_use
                 if saved.node is not None and saved.key == key}
        for length in range(len(tokens) - 1, 0, -1):
            saved = texts.get(_token_bytes(key, tokens[:length]))
            if saved is not None:
                self._copy_in(saved, state)
                return length
        return super().restore(key, tokens, state)


_TOKENIZERS: dict[int, Tokenizer] = {}


def _token_bytes(key: Hashable, tokens: Sequence[int]) -> bytes:
    model = key.model  # type: ignore[attr-defined]
    if id(model) not in _TOKENIZERS:
        metadata = open_gguf(model.path).metadata
        _TOKENIZERS[id(model)] = Tokenizer.from_metadata(metadata, model.config.vocab)
    return b"".join(map(_TOKENIZERS[id(model)].piece, tokens))


def serves_without_a_store(subject: Subject) -> Subject:
    """Drop the budget on the way from the option to the store."""
    def prefixes(model: Model, path: Path, budget: int) -> ReusePolicy:
        return ReusePolicy(Store(0), model, path)

    return replace(subject, stack=replace(subject.stack, prefixes=prefixes))


class ShowsAnotherMeter(PrefixService):
    """The metrics are those of an unused store."""

    def __init__(self, stack: Any, engine: PrefixEngine, tokenizer: Any, terms: Any) -> None:
        Service.__init__(self, stack, engine, tokenizer, terms)
        self.metrics.add(StoreMetrics(Store(engine.prefixes.store.budget)))
