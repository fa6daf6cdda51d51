"""Falsifiers of P8: graphs against one sequence at a time, across events that move memory."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace

import torch

from contracts.schema import Case
from engine.candidate import PathEngine, is_whole
from engine.errors import InputError
from engine.path import Rows, traced
from falsifiers.judging.batch_driver import BatchDriver, make_prompt, state_digest
from falsifiers.judging.judge import Judge, as_bits
from falsifiers.judging.subject import Subject
from phases.case_setup import build_engine, load_cpu_model, load_model
from phases.p8_decode_graph import attacks
from phases.p8_decode_graph.attacks import CAPACITY, graphs_of, oracle_stream, with_graphs
from phases.p8_decode_graph.harness import (
    check_one_step,
    distinct_models,
    halved_silu_mul,
    require_graphs,
    rng_state,
    use_short_buckets,
)


def test_graph_equals_single(case: Case, subject: Subject, judge: Judge) -> None:
    engine, model = build_engine(case, subject)
    if "counts" in case.given:
        check_one_step(case, subject, judge, engine, model)
        return
    m, draw = case["m"], random.Random(case["m"])
    batch = BatchDriver(engine, Rows, judge, slots=m + 2, capacity=CAPACITY)
    order = draw.sample(range(m + 2), m)
    single = load_cpu_model(case, subject)
    for slot in order:
        batch.join(slot, oracle_stream(single, 10 + slot % 9, 1 + slot % 2, 3))
    attacks.run_steps(batch, draw, 4)
    judge.engaged(rows_a_step=batch.widest, steps=batch.step_number)
    if not is_whole(subject.candidate):
        meter = graphs_of(subject.path).meter
        judge.law(meter.replays >= batch.step_number, f"{batch.step_number} decode steps replayed "
                  f"{meter.replays} graphs {meter.failure}")
        judge.engaged(replays=meter.replays, captures=meter.captures)


def test_events_change_nothing(case: Case, subject: Subject, judge: Judge) -> None:
    engine, _ = build_engine(case, subject)
    draw = random.Random(len(case["event"]))
    batch = BatchDriver(engine, Rows, judge, slots=6, capacity=CAPACITY)
    for slot in (5, 0, 3, 2):
        batch.join(slot, oracle_stream(load_cpu_model(case, subject), 30 + slot, 1 + slot % 3, 12))
    attacks.run_steps(batch, draw)
    attacks.find_event(case["event"], load_cpu_model(case, subject))(batch, draw)
    judge.engaged(rows_a_step=batch.widest, steps=batch.step_number)


def test_growth_past_a_bucket(case: Case, subject: Subject, judge: Judge) -> None:
    engine, model = build_engine(case, subject)
    single = load_cpu_model(case, subject)
    lengths, capacity = case["lengths"], max(case["lengths"]) + 8
    prompts = [make_prompt(40 + i, n, model.config.vocab) for i, n in enumerate(lengths)]
    pool = engine.new_pool(len(lengths) + 1, capacity)
    solo = single.new_pool(len(lengths), capacity)
    for i, prompt in enumerate(prompts):  # one chunk, which no graph runs
        engine.step(prompt, Rows((i + 1,), (0,), (len(prompt),)), pool)
        single.prefill(prompt, solo.slot(i))
    tokens = [prompt[-1] for prompt in prompts]
    for step in range(case["steps"]):
        turn = 1 - 2 * (step % 2)  # the longest row is first in some steps, last in others
        rows = Rows.decode(range(1, len(lengths) + 1)[::turn],
                           [n + step for n in lengths][::turn])
        logits = engine.step(tokens[::turn], rows, pool)
        logits = logits if turn > 0 else logits.flip(0)
        for row, (token, n) in enumerate(zip(tokens, lengths, strict=True)):
            want = single.forward_single(token, solo.slot(row), n + step)
            judge.equal("logits", logits[row], want, rule="truth", row=row, step=step)
            got = state_digest(engine.read_state(pool, row + 1), n + step + 1)
            right = state_digest(solo.slot(row).named(), n + step + 1)
            judge.law(got == right, f"state[row {row}, step {step}] after {n + step + 1} tokens "
                      f"is not the single sequence's", rung="bits", row=row, step=step)
        tokens = [int(x) for x in logits.argmax(-1)]
    judge.engaged(rows_a_step=len(lengths), steps=case["steps"], longest=max(lengths))


def test_padding_has_no_effect(case: Case, subject: Subject, judge: Judge) -> None:
    engine, _ = build_engine(case, subject)
    single, width = load_cpu_model(case, subject), case["width"]
    capacity = width + 4
    batch = BatchDriver(engine, Rows, judge, slots=width + 1, capacity=capacity)
    streams = [oracle_stream(single, 50 + i, 1, width + 1, capacity) for i in range(3)]
    for slot in range(width + 1):
        batch.join(slot, streams[slot % 3])
    batch.step(range(width))  # now every row of the graph has pointed at a slot
    for m in range(width - 1, width // 2, -1):  # as many live rows as this width may have
        order = list(range(width, width - m, -1))
        batch.step(order)  # the driver checks every byte of idle slots, such as slot 0
    if hasattr(engine, "write_state"):
        batch.leave(0)
        batch.poison(0)
        batch.step(range(1, width))
    judge.engaged(rows_a_step=batch.widest, steps=batch.step_number)


def test_capture_is_pure(case: Case, subject: Subject, judge: Judge) -> None:
    path, graphs = with_graphs(require_graphs(subject).path)
    model = load_model(case, subject)
    engine = PathEngine(path, model)
    batch = BatchDriver(engine, Rows, judge, slots=5, capacity=CAPACITY)
    for slot in range(5):
        batch.join(slot, oracle_stream(load_cpu_model(case, subject), 60 + slot, 2, 4))
    torch.manual_seed(11)
    before = rng_state(subject)
    for m in (2, 1, 3, 5):  # each is a new width, captured while all slots are live
        captured = graphs.meter.captures
        batch.step(range(m))
        judge.law(graphs.meter.captures == captured + 1, f"a step of {m} rows after other widths "
                  f"captured {graphs.meter.captures - captured} graphs, but should capture one")
    judge.law(torch.equal(before, rng_state(subject)),
              "captures changed the state of the random generator")
    judge.engaged(captures=graphs.meter.captures, replays=graphs.meter.replays)


def test_replays_are_repeatable(case: Case, subject: Subject, judge: Judge) -> None:
    engine, model = build_engine(case, subject)
    m, replays = case["m"], case["replays"]
    pools = [engine.new_pool(m, replays + 1) for _ in range(2)]
    tokens = make_prompt(70, m, model.config.vocab)
    recent: deque[tuple[int, torch.Tensor, torch.Tensor]] = deque(maxlen=8)
    for step in range(replays):
        rows = Rows.decode(range(m), (step,) * m)
        first, second = (engine.step(tokens, rows, pool) for pool in pools)
        judge.law(first.data_ptr() != second.data_ptr(), "two steps returned one buffer")
        judge.equal("logits", second, first, step=step)
        for earlier, returned, copy in recent:  # later steps must not overwrite returned logits
            judge.equal("logits of an earlier step", returned, copy, step=earlier, after=step)
        recent.append((step, first, first.clone()))
        tokens = [int(x) for x in first.argmax(-1)]
    for slot in range(m):
        judge.unchanged("state of the second run", state_digest(engine.read_state(pools[0], slot)),
                        state_digest(engine.read_state(pools[1], slot)), slot=slot)
    judge.engaged(replays=2 * replays, rows_a_step=m)


def test_drift_over_many_replays(case: Case, subject: Subject, judge: Judge) -> None:
    engine, model = build_engine(case, subject)
    m, steps, single = case["m"], case["steps"], load_cpu_model(case, subject)
    pools = engine.new_pool(m, steps + 1), single.new_pool(m, steps + 1)
    tokens = make_prompt(71, m, model.config.vocab)
    for step in range(steps):
        logits = engine.step(tokens, Rows.decode(range(m), (step,) * m), pools[0])
        for row, token in enumerate(tokens):
            want = single.forward_single(token, pools[1].slot(row), step)
            judge.equal("logits", logits[row], want, rule="truth", row=row, step=step)
        tokens = [int(x) for x in logits.argmax(-1)]
    for row in range(m):
        got = state_digest(engine.read_state(pools[0], row))
        judge.law(got == state_digest(pools[1].slot(row).named()),
                  f"state[row {row}] after {steps} steps is not the single sequence's",
                  rung="bits", row=row)
    judge.engaged(replays=steps, rows_a_step=m)


def test_key_holds_what_changes_launches(case: Case, subject: Subject, judge: Judge) -> None:
    path, graphs = with_graphs(require_graphs(subject).path)
    single, models = distinct_models(case, subject)
    streams = [oracle_stream(m, 80, 1, 4) for m in single]
    batches = []
    for model, stream in zip(models, streams, strict=True):
        batches.append(BatchDriver(PathEngine(path, model), Rows, judge, slots=3,
                                   capacity=CAPACITY))
        batches[-1].join(2, stream)
        batches[-1].join(0, stream)
    for _ in range(3):
        for batch in batches:
            batch.step([2, 0])
    halved = replace(path, silu_mul=halved_silu_mul(path))  # another path over the same graphs
    logits = [p.step(models[0], models[0].new_pool(2, CAPACITY), [7, 9],
                     Rows.decode((0, 1), (0, 0))) for p in (path, halved, path)]
    judge.law(not torch.equal(as_bits(logits[0]), as_bits(logits[1])),
              "a path with another op replayed a graph of the first path")
    judge.equal("logits", logits[2], logits[0])
    judge.engaged(captures=graphs.meter.captures, models=len(models))


def test_failed_capture_is_survived(case: Case, subject: Subject, judge: Judge) -> None:
    path, graphs = with_graphs(require_graphs(subject).path,
                               capture=attacks.failing_capture(case["at"]))
    model = load_model(case, subject)
    batch = BatchDriver(PathEngine(path, model), Rows, judge, slots=4, capacity=CAPACITY)
    for slot in range(4):
        batch.join(slot, oracle_stream(load_cpu_model(case, subject), 90 + slot, 2, 3))
    before = rng_state(subject)
    for order in ([3, 1], [0, 2, 3], [1, 0]):
        batch.step(order)
    judge.law(torch.equal(before, rng_state(subject)),
              "a failed capture changed the state of the random generator")
    judge.law((graphs.meter.failed_captures, graphs.meter.eager_steps) == (2, 3), f"two widths "
              f"whose capture fails were captured {graphs.meter.failed_captures} times, with "
              f"{graphs.meter.eager_steps} eager steps, but should be 2 times, with 3")
    tokens = path.decode_greedy(model, model.new_pool(1, 8), [5], Rows.decode((0,), (0,)), 3)
    right = graphs.eager.decode_greedy(model, model.new_pool(1, 8), [5], Rows.decode((0,), (0,)),
                                       3)
    judge.law(tokens == right, f"greedy steps after a failed capture chose {tokens}, not {right}")


def test_greedy_runs_equal_steps(case: Case, subject: Subject, judge: Judge) -> None:
    (path, graphs), m = with_graphs(require_graphs(subject).path), case["m"]
    model, single = load_model(case, subject), load_cpu_model(case, subject)
    pool, solo = model.new_pool(m + 2, CAPACITY), single.new_pool(m + 2, CAPACITY)
    slots = tuple(range(m + 1, 1, -1))
    tokens = make_prompt(95, m, model.config.vocab)
    with use_short_buckets():  # a step's graph, in the bucket of the first run
        path.step(model, model.new_pool(m, 4), tokens, Rows.decode(range(m), (2,) * m))
    at, idle = 0, pool.slot(0).digest()
    for steps in case["runs"]:
        rows = Rows.decode(slots, (at,) * m)
        with use_short_buckets():
            got = path.decode_greedy(model, pool, tokens, rows, steps)
        for row, slot in enumerate(slots):
            want, token = [], tokens[row]
            for step in range(steps):
                token = int(single.forward_single(token, solo.slot(slot), at + step).argmax())
                want.append(token)
            judge.law(got[row] == want, f"row {row} of {m} chose {got[row]} in {steps} steps, but "
                      f"its sequence by itself chooses {want}", row=row, slot=slot)
            digest = pool.slot(slot).digest(at + steps)
            judge.law(digest == solo.slot(slot).digest(at + steps), f"state[slot {slot}] after "
                      f"{steps} greedy steps is not the single sequence's", rung="bits", slot=slot)
        tokens, at = [run[-1] for run in got], at + steps
        judge.unchanged("state", idle, pool.slot(0).digest(), slot=0)
    for graph in graphs.kept():
        moved = [] if graph is None else graph.inputs.lengths[m:].tolist()
        judge.law(not any(moved), f"padding advanced by {moved} tokens in its slot")
    replays = graphs.meter.replays - 1
    judge.law(replays == at, f"{at} greedy steps replayed {replays} graphs")
    judge.engaged(replays=replays, rows_a_step=m)


def test_greedy_runs_refuse(case: Case, subject: Subject, judge: Judge) -> None:
    path, model = require_graphs(subject).path, load_model(case, subject)
    pool = model.new_pool(3, 8)
    state = pool.slot(2).named()
    for name, bad, steps, value in (("a run past the state", 6, 3, "9"), ("no steps", 0, 0, "0")):
        before = [pool.slot(i).digest() for i in range(3)]
        try:
            path.decode_greedy(model, pool, [1, 2], Rows.decode((0, 2), (0, bad)), steps)
        except InputError as error:
            judge.law(value in str(error), f"the error for {name} is {str(error)!r}, which does "
                      f"not name {value}")
        else:
            judge.law(False, f"{name} raised no InputError")
        judge.law(before == [pool.slot(i).digest() for i in range(3)], f"{name} changed a state")
    for view in state.values():
        view.fill_(float("nan"))
    try:
        path.decode_greedy(model, pool, [1, 2], Rows.decode((0, 2), (1, 1)), 2)
    except InputError as error:
        judge.law("row 1" in str(error), f"NaN in row 1 raised {str(error)!r}")
    else:
        judge.law(False, "greedy steps returned tokens for row 1, whose logits are NaN")
    path.decode_greedy(model, pool, [3], Rows.decode((1,), (0,)), 2)  # no NaN remains


def test_memory_is_bounded(case: Case, subject: Subject, judge: Judge) -> None:
    path, graphs = with_graphs(require_graphs(subject).path, most=2)
    model = load_model(case, subject)
    batch = BatchDriver(PathEngine(path, model), Rows, judge, slots=5, capacity=CAPACITY)
    for slot in range(5):
        batch.join(slot, oracle_stream(load_cpu_model(case, subject), 110 + slot, 1, 7))
    for m in (1, 2, 1, 4, 1, 4, 2):  # width 2 is dropped for 4, then 1 for 2
        batch.step(range(m))
    count = len(graphs.kept())
    judge.law(count <= 2, f"{count} graphs are stored, but should be 2 at most")
    judge.law((graphs.meter.captures, graphs.meter.evictions) == (4, 2), f"seven steps of three "
              f"widths with room for two captured {graphs.meter.captures} graphs and dropped "
              f"{graphs.meter.evictions}, but should capture 4 and drop 2")
    judge.law(graphs.nbytes > 0, "`nbytes` of stored graphs is 0")
    judge.engaged(captures=graphs.meter.captures, evictions=graphs.meter.evictions,
                  bytes_held=graphs.nbytes)


def test_traced_steps_report(case: Case, subject: Subject, judge: Judge) -> None:
    path, model = require_graphs(subject).path, load_model(case, subject)
    pool = model.new_pool(2, 8)
    seen: list[tuple[str, int]] = []
    rows = Rows.decode((1, 0), (0, 0))
    plain = path.step(model, pool, [5, 6], rows)
    for slot in range(2):
        pool.slot(slot).clear()
    traced_path = traced(path, lambda op, slot, inputs, out: seen.append((op, slot)))
    logits = traced_path.step(model, pool, [5, 6], rows)
    judge.equal("logits", logits, plain)
    judge.law(("head", 0) in seen and ("0.conv_step", 1) in seen, f"a traced step reported "
              f"{len(seen)} ops, the head and the first convolution not among them")
