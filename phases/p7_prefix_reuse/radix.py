"""A radix tree over token ids: an edge is a run of tokens, a node a place where runs part or end.

Every node but the root holds something or parts into at least two, so the tree is never larger
than twice what it holds.
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
    """One place of the tree."""

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
    """Holds one value for each of some token sequences."""

    def __init__(self) -> None:
        self.root: Node[T] = Node()

    @property
    def empty(self) -> bool:
        """Whether nothing is held."""
        return not self.root.children and self.root.value is None

    def values_along(self, tokens: Tokens) -> Iterator[T]:
        """Yield what is held for prefixes of `tokens`, shortest first."""
        for _, node in self._walk(tokens):
            if node.value is not None:
                yield node.value

    def longest_match(self, tokens: Tokens) -> tuple[int, T | None]:
        """Return how many first tokens a held sequence shares, and one that shares as many."""
        *_, (depth, node) = self._walk(tokens)
        below = node.children.get(tokens[depth]) if depth < len(tokens) else None
        if below is not None:
            depth, node = depth + _common_length(below.label, tokens[depth:]), below
        while node.value is None and node.children:
            node = next(iter(node.children.values()))
        return depth, node.value

    def insert(self, tokens: Tokens, value: T) -> Node[T]:
        """Hold a value for `tokens`; return its node, which stays valid until it is dropped."""
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
        """Hold nothing at a node any more, and take away what stood there for it alone."""
        node.value = None
        while node.parent is not None and node.value is None and not node.children:
            del node.parent.children[node.label[0]]
            node = node.parent
        if node.parent is not None and node.value is None and len(node.children) == 1:
            (child,) = node.children.values()
            child.label = node.label + child.label
            _attach(node.parent, child)

    def _walk(self, tokens: Tokens) -> Iterator[tuple[int, Node[T]]]:
        """Yield the nodes that lie whole on `tokens` with their depths, the root first."""
        depth, node = 0, self.root
        while True:
            yield depth, node
            below = node.children.get(tokens[depth]) if depth < len(tokens) else None
            if below is None or tokens[depth:depth + len(below.label)] != below.label:
                return
            depth, node = depth + len(below.label), below

    def _split_edge(self, node: Node[T], at: int) -> Node[T]:
        """Put a new node on the edge above `node`, `at` tokens down, and return it."""
        assert node.parent is not None
        middle = _attach(node.parent, Node(node.label[:at]))
        node.label = node.label[at:]
        _attach(middle, node)
        return middle


def _common_length(a: Tokens, b: Tokens) -> int:
    """Return how many first tokens two sequences have in common."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y),
                min(len(a), len(b)))


def _attach(parent: Node[T], child: Node[T]) -> Node[T]:
    """Make a node the child that its label says, in place of one with the same first token."""
    child.parent = parent
    parent.children[child.label[0]] = child
    return child
