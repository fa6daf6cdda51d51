"""Unit tests of the radix tree, the store and the policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import testmodels
from engine.errors import InputError
from engine.path import reference
from phases.p2_engine_serve.increment import Limits, Request, Row
from phases.p7_prefix_reuse.increment import BUDGET, PrefixEngine, stack
from phases.p7_prefix_reuse.radix import Node, Tokens, Tree
from phases.p7_prefix_reuse.reuse_policy import ReusePolicy
from phases.p7_prefix_reuse.store import Meter, Store, recurrent_views


def test_tree_splits_runs_and_joins_them_again() -> None:
    tree: Tree[str] = Tree()
    long, short, other = (1, 2, 3, 4, 5), (1, 2, 3), (1, 2, 9)
    nodes = {tokens: tree.insert(tokens, str(tokens)) for tokens in (long, short, other)}
    assert [tree.longest_match(tokens) for tokens in (long, short, other)] == [
        (5, str(long)), (3, str(short)), (3, str(other))]
    assert list(tree.values_along((1, 2, 3, 4, 5, 6))) == [str(short), str(long)]
    assert all(node.tokens == tokens for tokens, node in nodes.items())
    tree.remove(nodes[short])
    tree.remove(nodes[other])
    assert [child.label for child in tree.root.children.values()] == [long]
    tree.remove(nodes[long])
    assert tree.empty


def test_tree_matches_to_the_middle_of_a_run() -> None:
    tree: Tree[str] = Tree()
    tree.insert((1, 2, 3, 4), "a")
    assert tree.longest_match((1, 2, 9)) == (2, "a")
    assert tree.longest_match((1, 2)) == (2, "a")
    assert tree.longest_match((7,)) == (0, "a")
    assert list(tree.values_along((1, 2, 3))) == []


TOKEN_RUNS = st.lists(st.integers(0, 1), max_size=5).map(tuple)


@given(st.lists(st.tuples(st.booleans(), TOKEN_RUNS), max_size=12), TOKEN_RUNS)
def test_tree_equals_a_dictionary(history: list[tuple[bool, Tokens]], query: Tokens) -> None:
    tree: Tree[str] = Tree()
    stored: dict[Tokens, Node[str]] = {}
    for puts, tokens in history:
        if puts:
            stored[tokens] = tree.insert(tokens, f"value of {tokens}")
        elif tokens in stored:
            tree.remove(stored.pop(tokens))
        assert [node.tokens for node in stored.values()] == list(stored)
        assert all(node.value is not None or len(node.children) > 1
                   for node in descendants(tree.root))
        assert tree.empty == (not stored)
    starts = [query[:end] for end in range(len(query) + 1)]
    assert list(tree.values_along(query)) == [f"value of {start}" for start in starts
                                              if start in stored]
    depth, found = tree.longest_match(query)
    assert depth == max((common_length(query, tokens) for tokens in stored), default=0)
    sharing = {f"value of {tokens}" for tokens in stored if common_length(query, tokens) == depth}
    assert found in sharing if stored else found is None


def common_length(a: Tokens, b: Tokens) -> int:
    return max(n for n in range(min(len(a), len(b)) + 1) if a[:n] == b[:n])


def descendants(node: Node[str]) -> Iterator[Node[str]]:
    for first, child in node.children.items():
        assert (child.parent, child.label[0]) == (node, first)
        yield child
        yield from descendants(child)


@pytest.mark.parametrize(("budget", "block", "value"), [(-1, 64, "-1"), (1, 0, "0")])
def test_store_refuses_numbers_out_of_range(budget: int, block: int, value: str) -> None:
    with pytest.raises(InputError, match=value):
        Store(budget, block)


def test_meter_reports_size_and_counters() -> None:
    pool = testmodels.load("nano").new_pool(2, 16)
    slot, other = pool.slot(0), pool.slot(1)
    size = sum(x.nbytes for x in slot.named(4).values())
    store = Store(2 * size, block=2)
    assert store.meter == Meter(2 * size, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    assert store.restore("m", (1, 2, 3, 4, 5), slot) == 0
    assert store.keep("m", (1, 2, 3, 4), slot)
    assert store.restore("m", (1, 2, 3, 4, 5), other) == 4
    assert store.restore("m", (1, 2, 3, 4), other) == 0
    assert store.keep("m", (1, 2, 3, 4), slot)
    assert store.keep("m", (5, 6, 7, 8), slot)
    assert store.meter == Meter(2 * size, 2 * size, blocks=4, checkpoints=2, hits=1, misses=2,
                                reused=4, kept=2, evictions=0, refused=0, failed=0)
    assert store.keep("m", (9, 9, 9, 9), slot)
    assert list(store.contents()) == [("m", (5, 6, 7, 8)), ("m", (9, 9, 9, 9))]
    assert store.meter == Meter(2 * size, 2 * size, blocks=4, checkpoints=2, hits=1, misses=2,
                                reused=4, kept=3, evictions=1, refused=0, failed=0)
    store.clear()
    assert store.meter == Meter(2 * size, 0, blocks=0, checkpoints=0, hits=1, misses=2, reused=4,
                                kept=3, evictions=3, refused=0, failed=0)
    assert not store._trees, "an empty tree is left for every model"


def test_store_accepts_a_checkpoint_of_its_budget_and_refuses_a_byte_more() -> None:
    slot = testmodels.load("nano").new_pool(1, 16).slot(0)
    size = sum(x.nbytes for x in slot.named(4).values())
    for budget, is_stored in ((size, True), (size - 1, False)):
        store = Store(budget, block=1)
        assert store.keep("m", (1, 2, 3, 4), slot) is is_stored
        assert (store.meter.kept, store.meter.refused) == (is_stored, not is_stored)
    with pytest.raises(InputError, match="at least one token"):
        store.keep("m", (), slot)


def test_failed_copy_is_counted_and_leaves_no_state(
        monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no room")

    slot = testmodels.load("nano").new_pool(1, 16).slot(0)
    store = Store(1 << 30, block=1)
    assert store.keep("m", (1, 2), slot)
    before = store.meter
    with monkeypatch.context() as broken:
        broken.setattr(Store, "_copy_out", fail)
        assert store.keep("m", (1, 2, 3), slot) is False  # it shares two blocks
    assert store.meter == replace(before, failed=1)
    for view in slot.named(2).values():
        view.fill_(7.0)
    with monkeypatch.context() as broken:
        broken.setattr(Store, "_copy_in", fail)
        assert store.restore("m", (1, 2, 3), slot) == 0
    assert store.meter == replace(before, failed=2, bytes=0, blocks=0, checkpoints=0, evictions=1)
    assert not any(view.any() for view in recurrent_views(slot).values())
    assert caplog.messages == ["a checkpoint of 3 tokens was not stored: MemoryError: no room",
                               "a checkpoint of 2 tokens was not restored: MemoryError: no room"]


@pytest.mark.parametrize("stride", [0, -64, 63, 100])
def test_stride_must_be_a_multiple_of_the_block(stride: int) -> None:
    model, path = testmodels.load("nano"), reference()
    with pytest.raises(InputError, match=f"stride of {stride} tokens"):
        ReusePolicy(Store(0), model, path, stride)


@pytest.mark.parametrize("budget", [0, 1 << 30])
def test_turn_is_continued_with_and_without_a_store(budget: int) -> None:
    model, path = testmodels.load("nano"), reference()
    engine = PrefixEngine(model, path, Limits(2, 32), ReusePolicy(Store(budget), model, path))
    first = engine.add_slot(Request("a", (5, 6, 7), 1))
    engine.decode_step([Row(first.slot, 3)])
    engine.recycle_slot(first.slot)
    assert engine.add_slot(Request("b", (5, 6, 7, 8), 1)).reused == 3


@pytest.mark.parametrize("kv", ["f16", "bf16"])
def test_narrow_keys_and_values_are_stored_and_restored_unchanged(kv: str) -> None:
    model, path, tokens = testmodels.load("nano").with_kv(kv), reference(), (5, 6, 7, 8, 9)
    reuse = ReusePolicy(Store(1 << 30, 2), model, path, 4)
    states = [model.new_state(8) for _ in range(2)]
    model.prefill(tokens, states[0])
    reuse.on_release(tokens, states[0])
    assert reuse.admit((*tokens, 1), states[1]) == 5
    assert states[1].digest(5) == states[0].digest(5)
    wide = ReusePolicy(reuse.store, testmodels.load("nano"), path, 4)
    assert wide.admit((*tokens, 1), testmodels.load("nano").new_state(8)) == 0


def test_default_store_of_an_engine_has_a_budget() -> None:
    model = testmodels.load("nano")
    engine = stack().engine(model, reference(), Limits(1, 8))
    assert isinstance(engine, PrefixEngine)
    assert engine.prefixes.store.budget == BUDGET
