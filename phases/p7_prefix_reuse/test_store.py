"""The radix tree and the store by themselves, where a case is shorter than an attack."""

from __future__ import annotations

import pytest

from engine.errors import InputError
from phases.p7_prefix_reuse.radix import Tree
from phases.p7_prefix_reuse.store import Store


def test_tree_parts_runs_and_joins_them_again() -> None:
    tree: Tree[str] = Tree()
    long, short, other = (1, 2, 3, 4, 5), (1, 2, 3), (1, 2, 9)
    nodes = {tokens: tree.put(tokens, str(tokens)) for tokens in (long, short, other)}
    assert [tree.meet(tokens) for tokens in (long, short, other)] == [
        (5, str(long)), (3, str(short)), (3, str(other))]
    assert list(tree.along((1, 2, 3, 4, 5, 6))) == [str(short), str(long)]
    assert all(node.tokens == tokens for tokens, node in nodes.items())
    tree.drop(nodes[short])
    tree.drop(nodes[other])
    assert [child.label for child in tree.root.children.values()] == [long]
    tree.drop(nodes[long])
    assert tree.empty


def test_tree_meets_in_the_middle_of_a_run() -> None:
    tree: Tree[str] = Tree()
    tree.put((1, 2, 3, 4), "a")
    assert tree.meet((1, 2, 9)) == (2, "a")
    assert tree.meet((1, 2)) == (2, "a")
    assert tree.meet((7,)) == (0, "a")
    assert list(tree.along((1, 2, 3))) == []


@pytest.mark.parametrize(("budget", "block", "value"), [(-1, 64, "-1"), (1, 0, "0")])
def test_store_refuses_numbers_that_cannot_work(budget: int, block: int, value: str) -> None:
    with pytest.raises(InputError, match=value):
        Store(budget, block)
