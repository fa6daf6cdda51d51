"""Steps of a small model, by the path or a candidate's engine, compared with each row by itself."""

from __future__ import annotations

import random
from typing import Any

from contracts.schema import Case
from engine.candidate import Engine
from engine.path import Rows
from falsifiers.judging.batch_driver import BatchDriver, SoloStream, make_prompt, run_solo
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from phases.case_setup import build_engine, load_cpu_model
from phases.p6_batched_attention import increment
from phases.p6_batched_attention.harness import cache_dtype


def check_steps_solo(case: Case, subject: Subject, judge: Judge) -> SoloStream:
    """Compare ragged chunks and shuffled decode rows with each row by itself; return one stream."""
    cache_dtype(case, subject)  # a candidate may decline
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
    stream = batch.live[order[-1]]
    if subject.candidate is None:
        oracle = load_cpu_model(case, subject)
        state = oracle.new_state(capacity)
        for position, logits in enumerate(stream.logits):
            want = oracle.forward_single(stream.tokens[position], state, position)
            judge.equal("logits", logits, want, rule="truth", step=position)
    judge.engaged(rows_a_step=batch.widest, steps=batch.step_number)
    return stream


def solo_stream(engine: Engine, model: Any, seed: int, length: int, decode: int,
                capacity: int) -> SoloStream:
    """Return the stream of a drawn prompt and its greedy tokens by itself."""
    return run_solo(engine, Rows, make_prompt(seed, length, model.config.vocab), decode, capacity,
                    right=increment.path())
