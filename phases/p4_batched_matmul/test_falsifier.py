"""The attack on P4: the batched step against one row, one token and the looped step."""

from __future__ import annotations

import random
from collections import Counter

import torch

from contracts.schema import Case
from engine.candidate import PathEngine, is_whole
from engine.path import Rows, traced
from falsifiers.bisect.trace import Trace, assert_traces_equal
from falsifiers.judging.batch_driver import BatchDriver, bad_steps, make_prompt, state_digest
from falsifiers.judging.errors import Declined
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from falsifiers.vectors import step_rows
from phases.p4_batched_matmul import attacks, increment, op_checks
from phases.p4_batched_matmul.harness import (
    CAPACITY,
    build_engine,
    draw_step,
    expected_arithmetic,
    require_bitwise,
    require_op,
    require_tree_step,
    select_kernel,
    solo_stream,
)
from phases.p4_batched_matmul.looped import looped_step


def test_rows_equal_solo(case: Case, subject: Subject, judge: Judge) -> None:
    if "op" in case.given:
        require_op(case["op"], subject)
        op_checks.check_twin(judge, subject.path, case, expected_arithmetic(subject))
        return
    engine, model = build_engine(case, subject)
    if "counts" in case.given:
        step_rows.compare_with_solo(judge, engine, draw_step(case, model))
        return
    draw = random.Random(case["m"])
    batch = BatchDriver(engine, Rows, judge, slots=case["m"] + 1, capacity=CAPACITY)
    order = draw.sample(range(case["m"] + 1), case["m"])
    streams = [solo_stream(engine, model, i, 1 + (5 * i + 2) % 7, case["decode"])
               for i in range(min(case["m"], case["streams"]))]
    for row, slot in enumerate(order):  # where rows share streams, no two side by side do
        batch.join(slot, streams[row % len(streams)])
    batch.step(order, [len(batch.live[slot].tokens) - case["decode"] for slot in order])
    for _ in range(case["decode"]):
        batch.step(draw.sample(order, case["m"]))
    judge.engaged(rows_a_step=batch.widest, steps=batch.step_number)


def test_ops_equal_looped_step(case: Case, subject: Subject, judge: Judge) -> None:
    (engine, model), oracle = build_engine(case, subject), subject.models(case["model"])
    whole_engine = is_whole(subject.candidate)  # whose ops cannot be traced
    if whole_engine:
        oracle = oracle.with_arithmetic(expected_arithmetic(subject))
    if "counts" in case.given:
        own = subject.candidate is not None and not subject.candidate.bitwise
        step_rows.compare_with_engine(judge, engine, PathEngine(increment.path(), oracle),
                            draw_step(case, model), step_rows.OWN_STEP_BUDGET if own else None)
        return
    require_bitwise(subject)
    m, draw = case["m"], random.Random(100 + case["m"])
    pool, peer = (engine_.new_pool(m + 1, CAPACITY) for engine_ in (engine, oracle))
    slots, lengths = draw.sample(range(m + 1), m), dict.fromkeys(range(m + 1), 0)
    for step in range(case["steps"]):
        counts = tuple(1 + (3 * i + step) % 5 if step % 2 == 0 else 1 for i in range(m))
        rows = Rows(tuple(slots), tuple(lengths[s] for s in slots), counts)
        tokens = make_prompt(step, sum(counts), model.config.vocab)
        got, want = Trace(), Trace()
        seen = engine if whole_engine else PathEngine(traced(subject.path, got), model)
        logits = seen.step(tokens, rows, pool)
        right = looped_step(oracle, peer, tokens, rows, want)
        if not whole_engine:
            assert_traces_equal(judge, got, want, step=step)
        judge.equal("logits", logits, right, rule="truth", step=step)
        lengths.update({s: lengths[s] + count for s, count in zip(slots, counts, strict=True)})
        for slot, length in lengths.items():
            right_state, state = peer.slot(slot).named(length), engine.read_state(pool, slot)
            if state.keys() == right_state.keys():  # an engine of its own may keep it otherwise
                for name, right in right_state.items():
                    judge.equal(name, state[name][:len(right)], right, rule="truth", slot=slot,
                                step=step)
        draw.shuffle(slots)


def test_membership_may_change_every_step(case: Case, subject: Subject, judge: Judge) -> None:
    engine, model = build_engine(case, subject)
    draw = random.Random(case["seed"])
    slots, waiting = 6, list(range(case["sequences"]))
    batch = BatchDriver(engine, Rows, judge, slots=slots, capacity=CAPACITY)
    while waiting or batch.live:
        free = [s for s in range(slots) if s not in batch.live]
        while waiting and free and (not batch.live or draw.random() < 0.7):
            number = waiting.pop()
            batch.join(free.pop(draw.randrange(len(free))),
                       solo_stream(engine, model, 40 + number, 1 + number % 4, 3))
        order = draw.sample(sorted(batch.live), k=draw.randint(1, len(batch.live)))
        left = [len(batch.live[s].logits) - batch.fed[s] for s in order]
        batch.step(order, [draw.randint(1, n) for n in left])
        for slot in [s for s in order if batch.fed[s] == len(batch.live[s].logits)]:
            batch.leave(slot)
    judge.engaged(rows_a_step=batch.widest, steps=batch.step_number)


def test_prefill_equals_steps(case: Case, subject: Subject, judge: Judge) -> None:
    engine, model = build_engine(case, subject)
    length = case["length"]
    stream = solo_stream(engine, model, 70, length, 2)
    for split in attacks.splits(case["splits"], length):
        batch = BatchDriver(engine, Rows, judge, slots=2, capacity=CAPACITY)
        batch.join(1, stream)
        for count in (*split, 1, 1):
            batch.step([1], [count])
    if not is_whole(subject.candidate):
        pool = model.new_pool(2, CAPACITY)
        for first, count in ((0, length // 3), (length // 3, length - length // 3)):
            logits = subject.path.prefill(model, pool, stream.tokens[first:first + count], 1, first)
        judge.equal("logits of prefill", logits, stream.logits[length - 1], slot=1)
    judge.engaged(tokens_a_step=length)


def test_chunks_stand_beside_decoding_rows(case: Case, subject: Subject, judge: Judge) -> None:
    engine, model = build_engine(case, subject)
    chunks, steps = case["chunks"], len(case["chunks"][0])
    batch = BatchDriver(engine, Rows, judge, slots=len(chunks) + 2, capacity=CAPACITY)
    for slot in (0, len(chunks) + 1):
        batch.join(slot, solo_stream(engine, model, 60 + slot, 2, steps))
    for slot, counts in enumerate(chunks, 1):
        batch.join(slot, solo_stream(engine, model, 60 + slot, sum(counts), 1))
    for step in range(steps):
        given = {0: 1, len(chunks) + 1: 1, **{s: c[step] for s, c in enumerate(chunks, 1)}}
        order = sorted(given, reverse=step % 2 == 0)
        batch.step(order, [given[slot] for slot in order])
    batch.step(range(1, len(chunks) + 1))


def test_neighbours_cannot_reach_a_row(case: Case, subject: Subject, judge: Judge) -> None:
    engine, model = build_engine(case, subject)
    if not hasattr(engine, "write_state"):
        raise Declined("the candidate's engine has no write_state(), so no slot can be poisoned")
    if "counts" in case.given:
        step_rows.compare_with_solo(judge, engine, draw_step(case, model))
        return
    victim = solo_stream(engine, model, 80, 2, 2)
    for order in ((2, 0), (0, 2), (1, 0, 2)):
        pool = engine.new_pool(3, CAPACITY)
        for slot in (1, 2):
            lengths = engine.read_state(pool, slot)
            engine.write_state(pool, slot, {name: torch.full_like(x, case["tenant"])
                                            for name, x in lengths.items()})
        row = order.index(0)
        for step, token in enumerate(victim.tokens[:len(victim.logits)]):
            tokens = [token if slot == 0 else 100 + step for slot in order]
            rows = Rows(order, tuple(step if slot == 0 else step + 9 for slot in order),
                        (1,) * len(order))
            logits = engine.step(tokens, rows, pool)
            judge.equal("logits", logits[row], victim.logits[step], row=row, slot=0, step=step)
            after = state_digest(engine.read_state(pool, 0), step + 1)
            judge.law(after == victim.digests[step], f"state[slot 0, step {step}] beside poison is "
                      f"not the state it has alone", rung="bits", slot=0, step=step)


def test_refusals_change_nothing(case: Case, subject: Subject, judge: Judge) -> None:
    engine, model = build_engine(case, subject)
    batch, fresh = BatchDriver(engine, Rows, judge, slots=3, capacity=8), case.given.get("fresh")
    for slot in range(0 if fresh else 2):
        batch.join(slot, solo_stream(engine, model, 90 + slot, 2, 2, 8))
    if not fresh:
        batch.step([0, 1])
    for name, value, tokens, rows in bad_steps(Rows, model.config.vocab):
        batch.refuse(name, value, tokens, rows)
    if not fresh:
        batch.step([1, 0])


def test_repeats_are_equal(case: Case, subject: Subject, judge: Judge) -> None:
    engine, model = build_engine(case, subject)
    prompts = [make_prompt(100 + i, 4, model.config.vocab) for i in range(3)]
    logits: list[list[torch.Tensor]] = []
    for _ in range(2):
        pool = engine.new_pool(3, CAPACITY)
        logits.append([engine.step([p[step] for p in prompts],
                                   Rows.decode(range(3), (step,) * 3), pool) for step in range(4)])
    for step, (first, second) in enumerate(zip(*logits, strict=True)):
        judge.law(first.data_ptr() != second.data_ptr(), "two steps returned one buffer")
        judge.equal("logits", second, first, step=step)


def test_each_weight_is_met_once_a_step(case: Case, subject: Subject, judge: Judge) -> None:
    path, model = require_tree_step(subject), subject.models(case["model"])
    model = model.to(subject.device) if subject.device != "cpu" else model
    m, longest = case["m"], case["longest"]
    counts = tuple(longest - 3 * i % longest for i in range(m))
    met: dict[str, list[int]] = {}
    calls: Counter[str] = Counter()
    logits = attacks.counting_path(path, met, calls).step(
        model, model.new_pool(m, CAPACITY), [7] * sum(counts),
        Rows(tuple(range(m)), (0,) * m, counts))
    judge.law(logits.shape[0] == m, f"a step of {m} rows returned {logits.shape[0]}")
    weights = model.weights
    for weight in [w for layer in weights.layers for w in layer.matrices.values()]:
        judge.law(met.get(weight.name) == [sum(counts)], f"{weight.name} was met with "
                  f"{met.get(weight.name, [])} rows in a step of {sum(counts)} tokens, but should "
                  f"be met once, with all")
    judge.law(met.get(weights.head.name) == [m], f"the head was met with "
              f"{met.get(weights.head.name, [])} rows, but should be met once, with {m}")
    expected = attacks.expected_calls(model)
    for op, number in expected.items():
        judge.law(calls[op] == number, f"{op} ran {calls[op]} times in a step, but should run "
                  f"{number} times whatever its rows")
    judge.engaged(matrices=len(met), times_met=1, tokens=sum(counts), head_rows=m)
    if subject.device != "cpu" and m == 4:
        judge.engaged(host_waits_a_step=attacks.count_host_waits(path, model),
                      **attacks.measure_decode_rates(path, model))


def test_argmax_takes_the_lowest_index(case: Case, subject: Subject, judge: Judge) -> None:
    argmax = select_kernel(case, subject.path.argmax)
    for name, logits in attacks.tied_rows(case["vocab"]):
        out = torch.full((len(logits),), -7, device=subject.device)
        argmax(attacks.space_rows(logits, case["stride"], subject.device), out)
        for row, values in enumerate(logits.tolist()):
            want = values.index(max(values))
            judge.law(int(out[row]) == want, f"argmax[row {row}, {name}]={int(out[row])}, but "
                      f"should be {want}", row=row)


def test_argmax_refuses_nan(case: Case, subject: Subject, judge: Judge) -> None:
    argmax = select_kernel(case, subject.path.argmax)
    m, last = case["rows"], case["vocab"] - 1
    for row, column in ((0, 0), (m - 1, last), (1, last // 2), (m - 2, 1)):
        for bits in (0x7FC00000, 0x7F800001, -1):
            logits = torch.linspace(-3, 3, m * case["vocab"]).reshape(m, -1)
            logits[row, column] = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
            try:
                argmax(logits.to(subject.device), torch.zeros(m, dtype=torch.int64,
                                                              device=subject.device))
            except ValueError as error:
                judge.law(f"row {row} " in str(error), f"the refusal of NaN in row {row} says "
                          f"{str(error)!r}, which does not name the row")
            else:
                judge.law(False, f"argmax took NaN at column {column} of row {row}", row=row)


def test_kernels_give_the_reference_bits(case: Case, subject: Subject, judge: Judge) -> None:
    require_bitwise(subject)
    if case["op"] == "function":
        attacks.check_functions(judge, subject.engine.kernel("pointwise"), subject.device)
    elif case["op"] == "carried":
        attacks.check_quantised_reuse(
            judge, require_tree_step(subject), subject.device, case["m"], case["n"]
        )
    elif case["op"] in ("embed", "project"):
        require_op(case["op"], subject)
        op_checks.check_truth(judge, subject.path, case, expected_arithmetic(subject))
    elif case["op"] == "add_norm":
        require_op(case["op"], subject)
        own = subject.path.add_norm
        kernel = select_kernel(case, own)  # the tree's alone is given no norm there
        fused = subject.path.fused.add_norm if kernel is own else kernel
        attacks.check_add_norm(judge, fused, subject.device, case["n"])
    else:
        hold = {"norm": attacks.check_norm, "gated_norm": attacks.check_gated_norm,
                "silu_mul": attacks.check_silu_mul}[case["op"]]
        hold(
            judge, select_kernel(case, getattr(subject.path, case["op"])), subject.device, case["n"]
        )


def test_kernels_run_the_step(case: Case, subject: Subject, judge: Judge) -> None:
    model, m = subject.models(case["model"]), case["m"]
    rows = Rows(tuple(range(m))[::-1], (0,) * m, tuple(1 + i % 2 for i in range(m)))
    tokens = make_prompt(7, sum(rows.counts), model.config.vocab)
    results = []
    for path in (attacks.kernel_path(require_tree_step(subject), case["kinds"]), subject.path):
        pool = model.new_pool(m, 4)
        logits, chosen = path.step(model, pool, tokens, rows), torch.zeros(m, dtype=torch.int64)
        path.argmax(logits, chosen)
        results.append({"logits": logits, "argmax": chosen,
                        **{f"slot {s}, {name}": view for s in range(m)
                           for name, view in pool.slot(s).named().items()}})
    for name, got in results[0].items():
        judge.equal(name, got, results[1][name], rule="truth")
