"""Faulty stores: copies, sharing, lookups and evictions; each class has one fault."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from engine.state import State
from phases.p7_prefix_reuse.radix import Node, Tokens, Tree
from phases.p7_prefix_reuse.store import (
    Block,
    Store,
    StoredCheckpoint,
    Tensors,
    copy_rows,
    kv_row_views,
    recurrent_views,
)


def _blocks_as_views(saved: StoredCheckpoint, shared: int, rows: Tensors,
                     size: int) -> StoredCheckpoint:
    for number, block in enumerate(saved.blocks[shared:], shared):
        block.rows = {name: view[number * size:(number + 1) * size]
                      for name, view in rows.items()}
    return saved


class ReusesKvAlone(Store):
    """KV rows are reused without a recurrent state for their end."""

    def restore(self, key: Hashable, tokens: Sequence[int], state: State) -> int:
        depth, saved = self._trees.get(key, self.tree()).longest_match(tuple(tokens[:-1]))
        end = depth - depth % self.block
        if saved is None or not end:
            return super().restore(key, tokens, state)
        for number, block in enumerate(saved.blocks[:end // self.block]):
            start = number * self.block
            for name, view in kv_row_views(state, start + self.block).items():
                view[start:].copy_(block.rows[name])
        return end


class TrimsTheRecurrentState(Store):
    """A deeper checkpoint is used for the shared tokens, with only its length changed."""

    def restore(self, key: Hashable, tokens: Sequence[int], state: State) -> int:
        depth, saved = self._trees.get(key, self.tree()).longest_match(tuple(tokens[:-1]))
        if saved is not None and depth:
            self._copy_in(saved, state)
        return depth


class KeepsNoRecurrentState(Store):
    """A checkpoint is stored with a recurrent part of zeros."""

    def _copy_out(self, key: Hashable, position: int, shared: list[Block],
                  state: State) -> StoredCheckpoint:
        saved = super()._copy_out(key, position, shared, state)
        for tensor in saved.recurrent.values():
            tensor.zero_()
        return saved


class QueuesTheCopy(Store):
    """The copy into the slot is never done."""

    def _copy_in(self, saved: StoredCheckpoint, state: State) -> None:
        return


class RefusesShortPrefixes(Store):
    """A checkpoint of fewer than 64 tokens counts as none."""

    def _find_deepest(self, key: Hashable, tokens: Tokens) -> StoredCheckpoint | None:
        saved = super()._find_deepest(key, tokens)
        return saved if saved is not None and saved.position >= 64 else None


class FindsNothing(Store):
    """Checkpoints are listed but never found."""

    def _find_deepest(self, key: Hashable, tokens: Tokens) -> StoredCheckpoint | None:
        return None


class ForgetsTheWindow(Store):
    """The conv window is not part of a checkpoint."""

    kinds = ("conv",)

    def _copy_in(self, saved: StoredCheckpoint, state: State) -> None:
        super()._copy_in(saved, state)
        for name, view in recurrent_views(state).items():
            if name.endswith(self.kinds):
                view.zero_()


class ForgetsTheRecurrentState(ForgetsTheWindow):
    """The recurrent state is not part of a checkpoint."""

    kinds = ("delta",)


class LosesTheTail(Store):
    """KV rows after the last full block are not restored."""

    def _copy_in(self, saved: StoredCheckpoint, state: State) -> None:
        end = len(saved.blocks) * self.block
        before = copy_rows(kv_row_views(state, saved.position), end)
        super()._copy_in(saved, state)
        for name, view in kv_row_views(state, saved.position).items():
            view[end:].copy_(before[name])


class KeepsViews(Store):
    """Stored tensors are views of the slot."""

    def _copy_out(self, key: Hashable, position: int, shared: list[Block],
                  state: State) -> StoredCheckpoint:
        saved = super()._copy_out(key, position, shared, state)
        saved.recurrent = recurrent_views(state)
        return saved


class KeepsBlocksAsViews(Store):
    """The KV rows of a block are views of the slot."""

    def _copy_out(self, key: Hashable, position: int, shared: list[Block],
                  state: State) -> StoredCheckpoint:
        saved = super()._copy_out(key, position, shared, state)
        return _blocks_as_views(saved, len(shared), kv_row_views(state, position), self.block)


class GivesItselfAway(Store):
    """A checkpoint's tensors become views of the slot that was restored."""

    def _copy_in(self, saved: StoredCheckpoint, state: State) -> None:
        super()._copy_in(saved, state)
        saved.recurrent = recurrent_views(state)


class FreesSharedBlocks(Store):
    """An evicted checkpoint's blocks are overwritten, though others need them."""

    def _evict(self, saved: StoredCheckpoint) -> None:
        for block in saved.blocks:
            for rows in block.rows.values():
                rows.fill_(float("nan"))
        super()._evict(saved)


class LeaksUsers(Store):
    """Eviction does not decrement a block's reference count."""

    def _release_block(self, block: Block) -> None:
        return


class CountsOneUser(Store):
    """A block's reference count never exceeds 1."""

    def _acquire_block(self, block: Block) -> None:
        super()._acquire_block(block)
        block.ref_count = 1


class HitsTheWholePrompt(Store):
    """A checkpoint at the end of the prompt is used, and nothing is left to compute."""

    def _find_deepest(self, key: Hashable, tokens: Tokens) -> StoredCheckpoint | None:
        return super()._find_deepest(key, (*tokens, -1))


class HidesBehindTheWholePrompt(Store):
    """An unusable checkpoint at the end of the prompt ends the search."""

    def _find_deepest(self, key: Hashable, tokens: Tokens) -> StoredCheckpoint | None:
        found = super()._find_deepest(key, (*tokens, -1))
        return found if found is not None and found.position < len(tokens) else None


class SharesTheBlockThatParts(Store):
    """A block is shared although the tokens differ inside it."""

    def _shared_blocks(self, known: StoredCheckpoint, depth: int) -> list[Block]:
        return known.blocks[:-(-depth // self.block)]

    def _copy_out(self, key: Hashable, position: int, shared: list[Block],
                  state: State) -> StoredCheckpoint:
        return super()._copy_out(key, position, shared[:position // self.block], state)


class EvictsTheNewest(Store):
    """The most recently used checkpoint is evicted."""

    def _make_room(self, need: int) -> None:
        while self._bytes + need > self.budget:
            self._evict(next(reversed(self._by_last_use)))


class EvictsTheOldest(Store):
    """The checkpoint stored first is evicted, however recently it was used."""

    def _touch(self, saved: StoredCheckpoint) -> None:
        return


class IgnoresTheBudget(Store):
    """Nothing is ever evicted."""

    def _make_room(self, need: int) -> None:
        return


class KeepsWhatIsEvicted(Store):
    """An evicted checkpoint leaves the tree but stays in memory."""

    def __init__(self, budget: int, block: int = 64) -> None:
        super().__init__(budget, block)
        self.evicted: list[StoredCheckpoint] = []

    def _evict(self, saved: StoredCheckpoint) -> None:
        super()._evict(saved)
        self.evicted.append(saved)


class KeepsOneLargeCopy(Store):
    """Blocks are views of a copy of all KV rows of the slot."""

    def _copy_out(self, key: Hashable, position: int, shared: list[Block],
                  state: State) -> StoredCheckpoint:
        saved = super()._copy_out(key, position, shared, state)
        copy = copy_rows(kv_row_views(state, state.pool.capacity))
        return _blocks_as_views(saved, len(shared), copy, self.block)


class _ForgetfulTree(Tree[StoredCheckpoint]):
    def _split_edge(self, node: Node[StoredCheckpoint], at: int) -> Node[StoredCheckpoint]:
        middle = super()._split_edge(node, at)
        middle.children.clear()
        return middle


class LosesAChild(Store):
    """An edge that splits loses its subtree."""

    tree = _ForgetfulTree


class LeavesHalfACopy(Store):
    """A slot is not cleared after a copy that failed."""

    def _discard_partial(self, saved: StoredCheckpoint, state: State) -> None:
        self._evict(saved)


class LetsCopiesFail(Store):
    """A failed copy ends the request with an error."""

    def _report_failure(self, what: str, error: BaseException) -> None:
        raise error


class CountsPrompts(Store):
    """A hit is counted with all tokens of the prompt."""

    def restore(self, key: Hashable, tokens: Sequence[int], state: State) -> int:
        got = super().restore(key, tokens, state)
        self._counters["reused"] += len(tokens) - got if got else 0
        return got


class RoundsTheRecurrentState(Store):
    """The recurrent state is stored in bfloat16 to save memory."""

    def _copy_out(self, key: Hashable, position: int, shared: list[Block],
                  state: State) -> StoredCheckpoint:
        saved = super()._copy_out(key, position, shared, state)
        saved.recurrent = {name: x.to(torch.bfloat16).float()
                           for name, x in saved.recurrent.items()}
        return saved
