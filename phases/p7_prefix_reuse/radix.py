"""A radix tree over token ids: an edge is a run of tokens; at a node runs split or end.

Every node but the root has a value or at least two children, so a tree of n values has at most 2 n
nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Generic, TypeVar

T = TypeVar("T")
Tokens = tuple[int, ...]


@dataclass(eq=False, slots=True)
class Node(Generic[T]):
    """One node of the tree."""

    label: Tokens = ()
    """The tokens from the parent to here."""
    parent: Node[T] | None = None
    children: dict[int, Node[T]] = field(default_factory=dict)
    """By the first token of their labels."""
    value: T | None = None

    @property
    def tokens(self) -> Tokens:
        """Every token from the root to here."""
        labels, node = [self.label], self.parent
        while node is not None:
            labels.append(node.label)
            node = node.parent
        return tuple(chain.from_iterable(reversed(labels)))


class Tree(Generic[T]):
    """Maps token sequences to values."""

    def __init__(self) -> None:
        self.root: Node[T] = Node()

    @property
    def empty(self) -> bool:
        """Whether the tree has no values."""
        return not self.root.children and self.root.value is None

    def values_along(self, tokens: Tokens) -> Iterator[T]:
        """Yield the values of prefixes of `tokens`, shortest first."""
        for _, node in self._walk(tokens):
            if node.value is not None:
                yield node.value

    def longest_match(self, tokens: Tokens) -> tuple[int, T | None]:
        """Return the longest common prefix with any sequence, and the value of such a sequence."""
        *_, (depth, node) = self._walk(tokens)
        below = node.children.get(tokens[depth]) if depth < len(tokens) else None
        if below is not None:
            depth, node = depth + _common_length(below.label, tokens[depth:]), below
        while node.value is None and node.children:
            node = next(iter(node.children.values()))
        return depth, node.value

    def insert(self, tokens: Tokens, value: T) -> Node[T]:
        """Set the value for `tokens`; return its node, which is valid until it is removed."""
        *_, (depth, node) = self._walk(tokens)
        if depth < len(tokens):
            below, rest = node.children.get(tokens[depth]), tokens[depth:]
            if below is not None:
                shared = _common_length(below.label, rest)
                node, rest = self._split_edge(below, shared), rest[shared:]
            if rest:
                node = _attach(node, Node(rest))
        node.value = value
        return node

    def remove(self, node: Node[T]) -> None:
        """Remove a node's value, and the nodes that are no longer needed."""
        node.value = None
        while node.parent is not None and node.value is None and not node.children:
            del node.parent.children[node.label[0]]
            node = node.parent
        if node.parent is not None and node.value is None and len(node.children) == 1:
            (child,) = node.children.values()
            child.label = node.label + child.label
            _attach(node.parent, child)

    def _walk(self, tokens: Tokens) -> Iterator[tuple[int, Node[T]]]:
        """Yield (depth, node) for every node whose tokens are a prefix of `tokens`, root first."""
        depth, node = 0, self.root
        while True:
            yield depth, node
            below = node.children.get(tokens[depth]) if depth < len(tokens) else None
            if below is None or tokens[depth:depth + len(below.label)] != below.label:
                return
            depth, node = depth + len(below.label), below

    def _split_edge(self, node: Node[T], at: int) -> Node[T]:
        """Insert a node on the edge above `node`, after its first `at` tokens; return it."""
        assert node.parent is not None
        middle = _attach(node.parent, Node(node.label[:at]))
        node.label = node.label[at:]
        _attach(middle, node)
        return middle


def _common_length(a: Tokens, b: Tokens) -> int:
    """Return the length of the longest common prefix."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y),
                min(len(a), len(b)))


def _attach(parent: Node[T], child: Node[T]) -> Node[T]:
    """Make a node its parent's child for its first token, replacing another one."""
    child.parent = parent
    parent.children[child.label[0]] = child
    return child
