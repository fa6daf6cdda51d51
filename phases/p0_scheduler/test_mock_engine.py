"""The mock engine: which calls it must record as violations, and which not."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import Any

import pytest

from phases.p0_scheduler.harness import make_request
from phases.p0_scheduler.mock_engine import POISON, MockEngine
from phases.p0_scheduler.protocol import Emitted, Row

A, B = make_request("a", 5, 9), make_request("b", 3, 9)


def make_seated_engine(count: int = 2) -> tuple[MockEngine, int, int]:
    """Return an engine with slots for `count`, and the slots of a and b."""
    engine = MockEngine(count)
    first, second = engine.start_batch([A, B])
    return engine, first.slot, second.slot


def run_step(engine: MockEngine, *rows: tuple[int, int]) -> list[Emitted]:
    """Do a step and read it."""
    return list(engine.decode_step([Row(*row) for row in rows]))


MISUSES = {
    "was called without requests": "reset, start",
    "while slots were taken": "recycle a, start a",
    "every slot is taken": "add c",
    "got two slots": "recycle a, add b",
    "with no row": "step",
    "are not distinct": "step a1 a1",
    "which has no owner": "recycle a, step a1",
    "was planned with 6 tokens, but has 5": "step a6",
    "was planned with 0 tokens": "step a0",
    "was planned with 2 tokens, but has 1": "step a5, step a2",
    "was released, but has no owner": "recycle a, recycle a",
    "before the step that names it was read": "launch a1, recycle a",
    "before the step in flight was read": "launch a1, step b1",
    "called after cleanup": "reset, cleanup, add a",
    "cleanup was called while": "cleanup",
}


def play_moves(moves: str) -> MockEngine:
    """Make the calls in `moves`; a row of a step is a slot's first owner and a count."""
    engine, *slots = make_seated_engine()
    slot = dict(zip("ab", slots, strict=True))
    who = {"a": A, "b": B, "c": make_request("c", 1, 1)}
    for move in moves.split(", "):
        name, *words = move.split()
        rows = [Row(slot[word[0]], int(word[1:])) for word in words if word[1:]]
        match name:
            case "start":
                engine.start_batch([who[word] for word in words])
            case "add":
                with suppress(RuntimeError):  # no slot is free
                    engine.add_slot(who[words[0]])
            case "step":
                list(engine.decode_step(rows))
            case "launch":
                engine.decode_step(rows)
            case "recycle":
                engine.recycle_slot(slot[words[0]])
            case _:
                getattr(engine, name)()
    return engine


@pytest.mark.parametrize("sentence", MISUSES)
def test_misuse_is_recorded(sentence: str) -> None:
    assert sentence in play_moves(MISUSES[sentence]).violations[0]


def test_correct_use_records_no_violation() -> None:
    engine, a, b = make_seated_engine()
    assert run_step(engine, (a, 5), (b, 2))[0].slot == a
    assert {one.slot for one in run_step(engine, (b, 1), (a, 1))} == {a, b}
    engine.recycle_slot(a)
    again = engine.add_slot(A)
    run_step(engine, (again.slot, 4), (b, 1))
    engine.reset()
    engine.cleanup()
    assert engine.violations == []
    assert [tenant.released for tenant in engine.tenants] == [1, 1, 1]


def test_stream_does_not_depend_on_other_requests() -> None:
    engine, a, b = make_seated_engine()
    got = [one.token for one in run_step(engine, (b, 3), (a, 2)) if one.slot == b]
    run_step(engine, (a, 3))
    for _ in range(6):
        got += [one.token for one in run_step(engine, (a, 1), (b, 1)) if one.slot == b]
    assert got == [one.token for one in islice(MockEngine(1).run_single(B), 7)]


@pytest.mark.parametrize("other", [make_request("b", 4, 9), make_request("c", 3, 9),
                                   make_request("b", 3, 9, sampler=1)])
def test_stream_depends_on_every_input(other: Any) -> None:
    tokens, others = (list(islice(MockEngine(1).run_single(one), 3)) for one in (B, other))
    assert all(x.token != y.token for x, y in zip(tokens, others, strict=True))


def test_late_write_changes_the_slots_next_owner() -> None:
    engine, a, _ = make_seated_engine()
    late = engine.decode_step([Row(a, 5)])
    engine.recycle_slot(a)
    engine.add_slot(make_request("c", 2, 9))
    before = engine.state[a]
    list(late)
    assert engine.state[a] != before


def test_call_inside_a_call_and_from_another_thread_is_recorded() -> None:
    engine, a, b = make_seated_engine()
    engine.on_call = lambda call: None if call.name == "recycle_slot" else engine.recycle_slot(b)
    run_step(engine, (a, 1))
    assert "was called inside decode_step" in engine.violations[0]
    engine, a, _ = make_seated_engine()
    engine._thread = -1
    run_step(engine, (a, 1))
    assert "from a second thread" in engine.violations[0]


def test_after_a_failed_step_only_reset_is_allowed() -> None:
    engine, a, _ = make_seated_engine()
    engine.fail_call = lambda call: RuntimeError("no") if call.name == "decode_step" else None
    with pytest.raises(RuntimeError, match="no"):
        run_step(engine, (a, 1))
    assert engine.state == [POISON, POISON]
    assert engine.log[-1].failed
    engine.recycle_slot(a)
    assert "before reset" in engine.violations[0]
    engine.reset()
    assert sorted(engine.free_slots) == [0, 1]
