"""The store of states after prefixes; prefixes share blocks of KV rows.

A recurrent state cannot be cut back, so a prefix can be reused only at a position where its conv
windows and recurrent states were copied: a checkpoint. The KV rows before it are stored in
immutable blocks with a count of the checkpoints that use them. No stored tensor is a view of a
slot: `keep` copies out, `restore` copies in. One thread calls both.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from engine.errors import InputError
from engine.state import RECURRENT, State
from phases.p7_prefix_reuse.radix import Node, Tokens, Tree

log = logging.getLogger("rowtwin.prefixes")
log.addHandler(logging.NullHandler())
BLOCK = 64
Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Meter:
    """The size and the counters of a store."""

    budget: int
    bytes: int
    """Bytes of all stored tensors; never above the budget."""
    blocks: int
    checkpoints: int
    hits: int
    """Admissions that restored a checkpoint."""
    misses: int
    reused: int
    """Prompt tokens that hits did not compute."""
    kept: int
    """Checkpoints stored so far."""
    evictions: int
    refused: int
    """Checkpoints larger than the budget."""
    failed: int
    """Copies that raised; the prompt was computed instead, or nothing was stored."""


@dataclass(eq=False, slots=True)
class Block:
    """The KV rows of `block` consecutive positions, of every attention layer."""

    rows: Tensors
    ref_count: int = 0
    """Checkpoints that use it."""


@dataclass(eq=False, slots=True)
class StoredCheckpoint:
    """A checkpoint: a sequence's complete state after `position` tokens."""

    key: Hashable
    position: int
    recurrent: Tensors
    blocks: list[Block]
    tail: Tensors
    """KV rows after the last full block."""
    node: Node[StoredCheckpoint] | None = None

    @property
    def unshared_bytes(self) -> int:
        """Bytes of the tensors that it does not share."""
        return _total_bytes(self.recurrent) + _total_bytes(self.tail)


class Store:
    """Checkpoints by key and token ids; the least recently used is evicted first.

    budget: maximum bytes of stored tensors.
    block: KV rows of a block.
    """

    tree = Tree[StoredCheckpoint]

    def __init__(self, budget: int, block: int = BLOCK) -> None:
        if budget < 0:
            raise InputError(
                f"the budget of a prefix store is {budget} bytes, but must be 0 or more")
        if block < 1:
            raise InputError(f"a block has {block} KV rows, but must have 1 or more")
        self.budget, self.block = budget, block
        self._trees: dict[Hashable, Tree[StoredCheckpoint]] = {}
        self._by_last_use: OrderedDict[StoredCheckpoint, None] = OrderedDict()  # oldest use first
        self._bytes = self._blocks = 0
        self._counters: Counter[str] = Counter()

    @property
    def meter(self) -> Meter:
        """The current size and counters; any thread may read it."""
        names = ("hits", "misses", "reused", "kept", "evictions", "refused", "failed")
        return Meter(budget=self.budget, bytes=self._bytes, blocks=self._blocks,
                     checkpoints=len(self._by_last_use),
                     **{name: self._counters[name] for name in names})

    def contents(self) -> Iterator[tuple[Hashable, Tokens]]:
        """Yield key and tokens of every checkpoint, the least recently used first."""
        for saved in self._by_last_use:
            assert saved.node is not None
            yield saved.key, saved.node.tokens

    def restore(self, key: Hashable, tokens: Sequence[int], state: State) -> int:
        """Copy the longest usable checkpoint of a prompt into a slot; return its position, or 0.

        The last token is never restored, since its logits are needed. With 0 the slot is unchanged,
        or cleared after a copy that failed.
        """
        saved = self._find_deepest(key, tuple(tokens))
        if saved is None:
            self._counters["misses"] += 1
            return 0
        try:
            self._copy_in(saved, state)
        except (RuntimeError, MemoryError) as error:  # torch raises RuntimeError for both
            self._report_failure(f"a checkpoint of {saved.position} tokens was not restored", error)
            self._discard_partial(saved, state)
            return 0
        self._touch(saved)
        self._counters["hits"] += 1
        self._counters["reused"] += saved.position
        return saved.position

    def keep(self, key: Hashable, tokens: Sequence[int], state: State) -> bool:
        """Store a copy of a slot's state after exactly `tokens`; return whether it is stored."""
        tokens = tuple(tokens)
        if not tokens:
            raise InputError("a checkpoint needs at least one token")
        depth, known = self._trees.get(key, self.tree()).longest_match(tokens)
        if known is not None and depth == known.position == len(tokens):
            self._touch(known)
            return True
        shared = self._shared_blocks(known, depth) if known is not None else []
        try:
            return self._store_checkpoint(key, tokens, shared, state)
        except (RuntimeError, MemoryError) as error:
            self._report_failure(f"a checkpoint of {len(tokens)} tokens was not stored", error)
            return False

    def clear(self) -> None:
        """Evict every checkpoint; the counters stay."""
        while self._by_last_use:
            self._evict(next(iter(self._by_last_use)))

    def _find_deepest(self, key: Hashable, tokens: Tokens) -> StoredCheckpoint | None:
        found = list(self._trees.get(key, self.tree()).values_along(tokens[:-1]))
        return found[-1] if found else None

    def _shared_blocks(self, known: StoredCheckpoint, depth: int) -> list[Block]:
        """Return the blocks of a checkpoint that are completely within the shared tokens."""
        return known.blocks[:depth // self.block]

    def _store_checkpoint(self, key: Hashable, tokens: Tokens, shared: list[Block],
                          state: State) -> bool:
        size = _checkpoint_bytes(state, len(tokens))
        if size > self.budget:
            self._counters["refused"] += 1
            return False
        for block in shared:  # before evictions, which may release them
            self._acquire_block(block)
        try:
            self._make_room(size - sum(_total_bytes(block.rows) for block in shared))
            self._add_checkpoint(tokens, self._copy_out(key, len(tokens), shared, state))
        except BaseException:
            for block in shared:
                self._release_block(block)
            raise
        return True

    def _make_room(self, need: int) -> None:
        while self._bytes + need > self.budget:
            self._evict(next(iter(self._by_last_use)))

    def _add_checkpoint(self, tokens: Tokens, saved: StoredCheckpoint) -> None:
        for block in saved.blocks:
            if not block.ref_count:  # a new block; shared ones are counted already
                self._acquire_block(block)
        self._bytes += saved.unshared_bytes
        self._by_last_use[saved] = None
        saved.node = self._trees.setdefault(saved.key, self.tree()).insert(tokens, saved)
        self._counters["kept"] += 1

    def _evict(self, saved: StoredCheckpoint) -> None:
        self._counters["evictions"] += 1
        del self._by_last_use[saved]
        self._bytes -= saved.unshared_bytes
        for block in saved.blocks:
            self._release_block(block)
        assert saved.node is not None
        tree = self._trees[saved.key]
        tree.remove(saved.node)
        if tree.empty:
            del self._trees[saved.key]

    def _report_failure(self, what: str, error: BaseException) -> None:
        self._counters["failed"] += 1
        log.warning("%s: %s: %s", what, type(error).__name__, error)

    def _discard_partial(self, saved: StoredCheckpoint, state: State) -> None:
        """Clear a partly restored slot, and evict its checkpoint."""
        self._evict(saved)
        state.clear()

    def _touch(self, saved: StoredCheckpoint) -> None:
        self._by_last_use.move_to_end(saved)

    def _acquire_block(self, block: Block) -> None:
        if not block.ref_count:
            self._blocks += 1
            self._bytes += _total_bytes(block.rows)
        block.ref_count += 1

    def _release_block(self, block: Block) -> None:
        block.ref_count -= 1
        if not block.ref_count:
            self._blocks -= 1
            self._bytes -= _total_bytes(block.rows)

    def _copy_out(self, key: Hashable, position: int, shared: list[Block],
                  state: State) -> StoredCheckpoint:
        """Return a checkpoint of the shared blocks and copies of the rest of the state."""
        rows, size = kv_row_views(state, position), self.block
        blocks_end = position - position % size
        blocks = [Block(copy_rows(rows, start, start + size))
                  for start in range(size * len(shared), blocks_end, size)]
        return StoredCheckpoint(key, position, copy_rows(recurrent_views(state)), shared + blocks,
                                copy_rows(rows, blocks_end, position))

    def _copy_in(self, saved: StoredCheckpoint, state: State) -> None:
        """Copy a checkpoint into a slot; KV rows past its position stay as they are."""
        for name, view in recurrent_views(state).items():
            view.copy_(saved.recurrent[name])
        views = kv_row_views(state, saved.position)
        for number, rows in enumerate([*(block.rows for block in saved.blocks), saved.tail]):
            start = number * self.block
            for name, view in views.items():
                view[start:start + self.block].copy_(rows[name])


def _total_bytes(tensors: Tensors) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def _checkpoint_bytes(state: State, position: int) -> int:
    """Return the bytes of a complete checkpoint after `position` tokens."""
    return _total_bytes(state.named(position))


def recurrent_views(state: State) -> Tensors:
    """Return views of a slot's conv windows and recurrent states."""
    return {name: view for name, view in state.named().items() if name.endswith(RECURRENT)}


def kv_row_views(state: State, position: int) -> Tensors:
    """Return views of a slot's first `position` KV rows."""
    return {name: view for name, view in state.named(position).items()
            if not name.endswith(RECURRENT)}


def copy_rows(views: Tensors, start: int = 0, end: int | None = None) -> Tensors:
    """Return copies of the rows from `start` to `end`, exclusive."""
    return {name: view[start:end].clone() for name, view in views.items()}
