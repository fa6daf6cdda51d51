"""Falsifiers of P1: rows of a batch against the same sequences run by themselves."""

from __future__ import annotations

import random
from typing import Any

import torch

from contracts.schema import Case
from engine.candidate import Engine, engine_of
from engine.path import Rows, traced
from falsifiers.judging.batch_driver import (
    BatchDriver,
    SoloStream,
    bad_steps,
    make_prompt,
    run_solo,
)
from falsifiers.judging.errors import Declined
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from phases.p1_looped_step import increment

CAPACITY = 96


def test_streams_equal_solo(case: Case, subject: Subject, judge: Judge) -> None:
    engine, model = _build_engine(case, subject)
    lengths = [1 + (5 * i + 2) % 7 for i in range(case["m"])]
    batch = BatchDriver(engine, Rows, judge, slots=case["m"], capacity=CAPACITY)
    for slot, length in enumerate(lengths):
        batch.join(slot, _solo_stream(engine, model, slot, length, case["decode"]))
    batch.step(range(case["m"]), lengths)  # from here on no two rows have the same position
    for _ in range(case["decode"]):
        batch.step(range(case["m"]))
    judge.engaged(rows_a_step=batch.widest, steps=batch.step_number)


def test_slots_do_not_matter(case: Case, subject: Subject, judge: Judge) -> None:
    engine, model = _build_engine(case, subject)
    slots = case["slots"]
    batch = BatchDriver(engine, Rows, judge, slots=case["pool"], capacity=CAPACITY)
    for idle in set(range(case["pool"])) - set(slots):
        batch.join(idle, _solo_stream(engine, model, idle, 2, 0))
        batch.step([idle])
    for row, slot in enumerate(slots):
        batch.join(slot, _solo_stream(engine, model, 20 + row, 2 + row, 3))
    for _ in range(4):
        batch.step(slots)


def test_membership_may_change_every_step(case: Case, subject: Subject, judge: Judge) -> None:
    engine, model = _build_engine(case, subject)
    draw = random.Random(case["seed"])
    slots, waiting = 5, list(range(case["sequences"]))
    batch = BatchDriver(engine, Rows, judge, slots=slots, capacity=CAPACITY)
    while waiting or batch.live:
        free = [s for s in range(slots) if s not in batch.live]
        while waiting and free and (not batch.live or draw.random() < 0.7):
            number = waiting.pop()
            batch.join(free.pop(draw.randrange(len(free))),
                       _solo_stream(engine, model, 40 + number, 1 + number % 4, 3))
        order = draw.sample(sorted(batch.live), k=draw.randint(1, len(batch.live)))
        batch.step(order)
        for slot in [s for s in order if batch.fed[s] == len(batch.live[s].logits)]:
            batch.leave(slot)


def test_recycled_slot_is_fresh(case: Case, subject: Subject, judge: Judge) -> None:
    engine, model = _build_engine(case, subject)
    if not hasattr(engine, "write_state"):
        raise Declined("the candidate's engine has no write_state(), so no slot can be poisoned")
    batch = BatchDriver(engine, Rows, judge, slots=2, capacity=CAPACITY)
    batch.join(0, _solo_stream(engine, model, 60, 3, 8))
    batch.poison(1, case["tenant"])
    batch.join(1, _solo_stream(engine, model, 61, case["length"], 3))
    for _ in range(case["length"] + 3):
        batch.step([1, 0])


def test_chunks_equal_steps(case: Case, subject: Subject, judge: Judge) -> None:
    engine, model = _build_engine(case, subject)
    chunked = _solo_stream(engine, model, 70, sum(case["chunks"]), 1)
    decoding = _solo_stream(engine, model, 71, 2, len(case["chunks"]))
    batch = BatchDriver(engine, Rows, judge, slots=3, capacity=CAPACITY)
    batch.join(2, chunked)
    batch.join(0, decoding)
    for number, count in enumerate(case["chunks"]):
        order, counts = [2, 0], [count, 1]
        batch.step(order[::1 - 2 * (number % 2)], counts[::1 - 2 * (number % 2)])
    batch.step([0, 2])


def test_neighbours_cannot_reach_a_row(case: Case, subject: Subject, judge: Judge) -> None:
    engine, model = _build_engine(case, subject)
    victim = _solo_stream(engine, model, 80, 3, 3)
    for neighbours in case["neighbours"]:
        batch = BatchDriver(engine, Rows, judge, slots=4, capacity=CAPACITY)
        batch.join(1, victim)
        for slot, (seed, length) in zip((2, 0, 3), neighbours, strict=False):
            batch.join(slot, _solo_stream(engine, model, seed, length, 3))
        order = sorted(batch.live, reverse=True)
        batch.step(order, [len(batch.live[s].logits) - 3 for s in order])
        for _ in range(3):
            batch.step(order)


def test_refusals_change_nothing(case: Case, subject: Subject, judge: Judge) -> None:
    engine, model = _build_engine(case, subject)
    batch = BatchDriver(engine, Rows, judge, slots=3, capacity=8)
    for slot in range(2):
        batch.join(slot, _solo_stream(engine, model, 90 + slot, 2, 2, 8))
    batch.step([0, 1])
    for name, value, tokens, rows in bad_steps(Rows, model.config.vocab):
        batch.refuse(name, value, tokens, rows)
    batch.step([1, 0])


def test_repeats_are_equal(case: Case, subject: Subject, judge: Judge) -> None:
    engine, model = _build_engine(case, subject)
    streams = [_solo_stream(engine, model, 100 + i, 2 + i, 2) for i in range(3)]
    logits: list[list[torch.Tensor]] = []
    for _ in range(2):
        pool = engine.new_pool(3, CAPACITY)
        logits.append([engine.step([s.tokens[step] for s in streams],
                                   Rows.decode(range(3), (step,) * 3), pool) for step in range(3)])
    for step, (first, second) in enumerate(zip(*logits, strict=True)):
        judge.law(first.data_ptr() != second.data_ptr(), "two steps returned the same buffer")
        judge.equal("logits", second, first, step=step)


def test_alone_equals_oracle(case: Case, subject: Subject, judge: Judge) -> None:
    engine, model = _build_engine(case, subject)
    stream = _solo_stream(engine, model, case["seed"], case["length"], case["decode"])
    state = model.new_state(CAPACITY)
    for position, token in enumerate(stream.tokens[:len(stream.logits)]):
        want = model.forward_single(token, state, position)
        judge.equal("logits", stream.logits[position], want, rule="truth", step=position)
    if subject.candidate is None:
        judge.law(state.digest(len(stream.logits)) != "", "the oracle's state has no digest")


def test_each_row_is_worked_once(case: Case, subject: Subject, judge: Judge) -> None:
    if subject.candidate is not None:
        raise Declined("the ops of a candidate's engine cannot be traced")
    model = subject.models(case["model"])
    seen: list[tuple[int, str]] = []
    path = traced(subject.path, lambda op, slot, inputs, output: seen.append((slot, op)))
    pool = model.new_pool(4, CAPACITY)
    counts, slots = (1, 3, 2), (3, 0, 2)
    path.step(model, pool, [1, 2, 3, 4, 5, 6], Rows(slots, (0, 0, 0), counts))
    projections = sum(1 for _ in model.weights.matrices()) - (not model.config.tied)
    for slot, count in zip(slots, counts, strict=True):
        worked = [op for s, op in seen if s == slot and (".project." in op or op == "head")]
        judge.law(len(worked) == count * projections, f"slot {slot} ran {len(worked)} projections "
                  f"for {count} tokens, but should run {projections} a token")
    judge.law({s for s, _ in seen} == set(slots), f"slots {sorted({s for s, _ in seen})} ran "
              f"in a step that names {sorted(slots)}")
    judge.engaged(projections_a_token=projections, rows_a_step=len(slots))


def _build_engine(case: Case, subject: Subject) -> tuple[Engine, Any]:
    model = subject.models(case["model"])
    return engine_of(subject.path, subject.candidate, model), model


def _solo_stream(engine: Engine, model: Any, seed: int, length: int, decode: int,
                 capacity: int = CAPACITY) -> SoloStream:
    return run_solo(engine, Rows, make_prompt(seed, length, model.config.vocab), decode, capacity,
                 right=increment.path())
