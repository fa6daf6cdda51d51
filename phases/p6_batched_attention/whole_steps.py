"""Whole steps of a small model, by the path or by a candidate's engine, held to each row alone."""

from __future__ import annotations

import random
from typing import Any

from contracts.schema import Case
from engine.candidate import Engine, engine_of, is_whole
from engine.path import Rows
from falsifiers.judging.batch_driver import BatchDriver, SoloStream, make_prompt, run_solo
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from phases.p6_batched_attention import increment
from phases.p6_batched_attention.harness import cache_dtype


def check_steps_solo(case: Case, subject: Subject, judge: Judge) -> SoloStream:
    """Hold ragged chunks and then shuffled decode rows to solo; return one row's stream."""
    engine, model = build_engine(case, subject)
    draw, m, capacity = random.Random(case["m"]), case["m"], case["longest"] + case["decode"] + 2
    batch = BatchDriver(engine, Rows, judge, slots=m + 1, capacity=capacity)
    order = draw.sample(range(m + 1), m)
    lengths = [case["longest"] - (11 * i + 3 * i * i) % case["longest"] for i in range(m)]
    for slot, length in zip(order, lengths, strict=True):
        batch.join(slot, solo_stream(engine, model, slot, length, case["decode"], capacity))
    batch.step(order, lengths)
    for _ in range(case["decode"]):
        batch.step(draw.sample(order, m))
    if subject.candidate is None:
        oracle, stream = load_model(case, subject), batch.live[order[-1]]
        state = oracle.new_state(capacity)
        for position, logits in enumerate(stream.logits):
            judge.equal("logits", logits, oracle.forward_single(
                stream.tokens[position], state, position), rule="truth", step=position)
    judge.engaged(rows_a_step=batch.widest, steps=batch.step_number)
    return batch.live[order[-1]]


def load_model(case: Case, subject: Subject) -> Any:
    """Return a case's model on the CPU, over caches of the case's type."""
    return subject.models(case["model"]).with_kv(case.given.get("kv", "f32"))


def build_engine(case: Case, subject: Subject) -> tuple[Engine, Any]:
    """Return the engine that a case judges, and its model, both on the case's device."""
    cache_dtype(case, subject)  # a candidate may decline
    model = load_model(case, subject)
    model = model if subject.device == "cpu" else model.to(subject.device)
    candidate = subject.candidate
    return engine_of(subject.path, candidate if is_whole(candidate) else None, model), model


def solo_stream(engine: Engine, model: Any, seed: int, length: int, decode: int,
         capacity: int) -> SoloStream:
    """Return what a drawn prompt and its greedy tokens get alone."""
    return run_solo(engine, Rows, make_prompt(seed, length, model.config.vocab), decode, capacity,
                 right=increment.path())
