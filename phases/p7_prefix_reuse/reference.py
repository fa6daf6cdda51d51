"""The dull store: every checkpoint whole and for itself, in a list that is searched from its end.

It answers as the store must, with nothing shared, no tree and no counts to go wrong.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from engine.state import Checkpoint, State, checkpoint, restore

Entry = tuple[Hashable, tuple[int, ...]]


@dataclass
class DullStore:
    """Checkpoints by key and tokens, the most recently used last."""

    budget: int
    block: int
    entries: dict[Entry, Checkpoint] = field(default_factory=dict)

    def deepest(self, key: Hashable, tokens: Sequence[int]) -> int:
        """Return how many first tokens of a prompt need not be computed, its last never."""
        return max((length for length in range(1, len(tokens))
                    if (key, tuple(tokens[:length])) in self.entries), default=0)

    def restore(self, key: Hashable, tokens: Sequence[int], state: State) -> int:
        """Copy the deepest checkpoint into a slot; return its position, or 0."""
        length = self.deepest(key, tokens)
        if length:
            entry = key, tuple(tokens[:length])
            self.entries[entry] = self.entries.pop(entry)
            restore(self.entries[entry], state)
        return length

    def keep(self, key: Hashable, tokens: Sequence[int], state: State) -> bool:
        """Keep a state, evicting the least recently used until it fits; return whether it does."""
        entry = key, tuple(tokens)
        saved = self.entries.pop(entry, None) or checkpoint(state, len(tokens))
        if self.size([entry], saved) > self.budget:
            return False
        while self.size([*self.entries, entry], saved) > self.budget:
            del self.entries[next(iter(self.entries))]
        self.entries[entry] = saved
        return True

    @property
    def bytes(self) -> int:
        """What the entries take when equal blocks are held once."""
        return self.size(list(self.entries), next(iter(self.entries.values()), None))

    def blocks_of(self, entries: Sequence[Entry]) -> set[Entry]:
        """Return the distinct whole blocks of entries, each by the tokens up to its end."""
        return {(key, tokens[:end]) for key, tokens in entries
                for end in range(self.block, len(tokens) + 1, self.block)}

    def size(self, entries: Sequence[Entry], like: Checkpoint | None) -> int:
        """Return the bytes of entries; `like` is any checkpoint, which tells the bytes of parts."""
        if like is None:
            return 0
        rows = sum(x.nbytes for name, x in like.tensors.items() if name.endswith((".k", ".v")))
        recurrent = sum(x.nbytes for x in like.tensors.values()) - rows
        tails = sum(len(tokens) % self.block for _, tokens in entries)
        return (recurrent * len(entries)
                + rows // like.position * (self.block * len(self.blocks_of(entries)) + tails))
