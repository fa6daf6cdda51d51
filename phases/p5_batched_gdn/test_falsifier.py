"""Falsifiers of P5: rows, slots, chunks, pads and neighbours of the recurrent ops."""

from __future__ import annotations

import random

import torch

from contracts.schema import Case
from engine import ops
from engine.candidate import Engine, PathEngine
from engine.path import Rows, reference
from falsifiers.instruments.load_counter import count_loads
from falsifiers.judging.batch_driver import BatchDriver, SoloStream, make_prompt, run_solo
from falsifiers.judging.errors import Declined
from falsifiers.judging.judge import Judge
from falsifiers.judging.poison import new_guarded
from falsifiers.judging.subject import Subject
from phases.case_setup import (
    build_engine,
    check_step_of_kernels,
    has_own_arithmetic,
    own_budget,
)
from phases.p5_batched_gdn import attacks
from phases.p5_batched_gdn.harness import Harness, record_launches, select_op

CAPACITY = 64
FINITE_FLAVOURS = ("plain", "zeros", "extreme")


def test_rows_equal_alone(case: Case, subject: Subject, judge: Judge) -> None:
    harness = Harness(case, subject, judge)
    for m in case["m"]:
        pool, rows, states = attacks.build_batch(harness, m, case["longest"], seed=m)
        got = harness.run(pool, rows, m=m)
        want = [harness.run_solo(row, states[row.slot]) for row in rows]
        harness.check_rows(pool, rows, got, want, m=m)


def test_rows_are_true(case: Case, subject: Subject, judge: Judge) -> None:
    harness, flavour = Harness(case, subject, judge), case["flavour"]
    if not harness.bitwise and flavour != "plain":
        raise Declined("a candidate's own arithmetic is compared by a budget on plain values only")
    pool, rows, states = attacks.build_batch(harness, case["m"], case["longest"], 50, flavour)
    got = harness.run(pool, rows, flavour=flavour)
    harness.check_truth(pool, rows, got, states, finite=flavour in FINITE_FLAVOURS, flavour=flavour)


def test_order_and_slots_do_not_matter(case: Case, subject: Subject, judge: Judge) -> None:
    harness = Harness(case, subject, judge)
    _, rows, states = attacks.build_batch(harness, case["m"], case["longest"], 60)
    want = [harness.run_solo(row, states[row.slot]) for row in rows]
    for order, slots in attacks.row_placements(case["m"], case["slots"]):
        placed = [rows[i].slice_tokens(0, rows[i].count, slot)
                  for i, slot in zip(order, slots, strict=True)]
        starts = {slot: states[rows[i].slot] for i, slot in zip(order, slots, strict=True)}
        for cut in {len(placed), len(placed) // 2}:  # one call of m rows, and two of a + b = m
            pool = harness.build_pool(case["slots"], starts)
            calls = [call for call in (placed[:cut], placed[cut:]) if call]
            got = [out for call in calls for out in harness.run(pool, call)]
            harness.check_rows(pool, placed, got, [want[i] for i in order], seated=str(slots),
                               cut=cut)


def test_chunks_equal_steps(case: Case, subject: Subject, judge: Judge) -> None:
    harness, length = Harness(case, subject, judge), case["tokens"]
    chunk = attacks.draw_sequence(harness, 70, length, slot=2)
    start = harness.draw_state(70) if case["start"] == "held" else harness.empty_state()
    decoding, other = attacks.draw_sequence(harness, 71, length, slot=0), harness.draw_state(71)
    pool = harness.build_pool(3, {2: start})
    steps = [harness.run(pool, [chunk.slice_tokens(i, 1)])[0] for i in range(length)]
    want = torch.cat(steps), pool.read(2)
    for split in attacks.splits(length, case["splits"]):
        pool, got, at = harness.build_pool(3, {2: start, 0: other}), [], 0
        for number, count in enumerate(split):  # the decoding row comes first
            rows = [decoding.slice_tokens(number, 1), chunk.slice_tokens(at, count)]
            got.append(harness.run(pool, rows, split=str(split)))
            at += count
        decoded = decoding.slice_tokens(0, len(split))
        harness.check_rows(pool, [chunk, decoded],
                           [torch.cat([outs[i] for outs in got]) for i in (1, 0)],
                           [want, harness.run_solo(decoded, other)], split=str(split))


def test_recycled_slot_is_fresh(case: Case, subject: Subject, judge: Judge) -> None:
    harness, slot = Harness(case, subject, judge), 1
    for length in case["lengths"]:
        pool = harness.build_pool(3, {0: harness.draw_state(1)})
        tenant = attacks.draw_sequence(harness, 80, 3, slot, "broken")
        harness.run(pool, [tenant, attacks.draw_sequence(harness, 81, 1, 0)])
        pool.write(slot, harness.empty_state())
        prompt = attacks.draw_sequence(harness, 82 + length, length + 2, slot)
        calls = [prompt.slice_tokens(0, length), prompt.slice_tokens(length, 1),
                 prompt.slice_tokens(length + 1, 1)]
        got = [torch.cat([harness.run(pool, [row], length=length)[0] for row in calls])]
        harness.check_rows(pool, [prompt], got, [harness.run_solo(prompt, harness.empty_state())],
                           length=length)
        harness.check_truth(pool, [prompt], got, {slot: harness.empty_state()}, length=length)


def test_membership_may_change_every_call(case: Case, subject: Subject, judge: Judge) -> None:
    harness, draw = Harness(case, subject, judge), random.Random(case["seed"])
    slots, length = case["slots"], case["tokens"]
    sequences = {s: attacks.draw_sequence(harness, 90 + s, length, s) for s in range(slots)}
    start = {s: harness.draw_state(s) for s in sequences}
    pool, fed, calls = harness.build_pool(slots, start), dict.fromkeys(sequences, 0), 0
    got: dict[int, list[torch.Tensor]] = {s: [] for s in sequences}
    while live := [s for s in sequences if fed[s] < length]:
        order = draw.sample(live, draw.randint(1, len(live)))
        rows = [sequences[s].slice_tokens(fed[s], draw.randint(1, min(3, length - fed[s])))
                for s in order]
        for slot, row, out in zip(order, rows, harness.run(pool, rows, call=calls), strict=True):
            got[slot].append(out)
            fed[slot] += row.count
        calls += 1
    for slot, row in sequences.items():
        harness.check_rows(pool, [row], [torch.cat(got[slot])],
                           [harness.run_solo(row, start[slot])])
    judge.engaged(calls=calls)


def test_pad_rows_do_nothing(case: Case, subject: Subject, judge: Judge) -> None:
    harness, m = Harness(case, subject, judge), case["m"]
    pool, rows, states = attacks.build_batch(harness, m, 2, 100)
    want = [harness.run_solo(row, states[row.slot]) for row in rows]
    for pads in case["pads"]:
        for place in ("before", "between", "after"):
            for slot, state in states.items():
                pool.write(slot, state)
            padded = attacks.insert_pads(rows, pads, place, pad_slot=pool.slots)
            outs = harness.run(pool, padded, pads=pads, place=place)
            got = [out for out, row in zip(outs, padded, strict=True) if row.count]
            harness.check_rows(pool, rows, got, want, pads=pads, place=place)


def test_neighbours_cannot_reach_a_row(case: Case, subject: Subject, judge: Judge) -> None:
    harness = Harness(case, subject, judge)
    victim, start = attacks.draw_sequence(harness, 110, 2, slot=1), harness.draw_state(110)
    want = harness.run_solo(victim, start)
    for flavour in ("plain", "huge", "broken"):
        crowd = [attacks.draw_sequence(harness, 111 + s, 1 + s % 3, s, flavour) for s in (0, 2, 3)]
        for place in range(4):
            states = {row.slot: harness.draw_state(row.slot, flavour) for row in crowd}
            pool = harness.build_pool(5, {1: start, **states})
            rows = [*crowd[:place], victim, *crowd[place:]]
            got = harness.run(pool, rows, crowd=flavour)
            harness.check_rows(pool, [victim], [got[place]], [want], crowd=flavour, place=place)


def test_gates_are_true(case: Case, subject: Subject, judge: Judge) -> None:
    gates, device = select_op(case, subject, "gates"), subject.device
    own = has_own_arithmetic(subject)
    for tokens in case["tokens"]:
        (a, b), vectors = attacks.gate_inputs(tokens, case["value_heads"], device, plain=own)
        g, beta = (new_guarded(*a.shape, device=device) for _ in range(2))
        gates(a, b, *(x.to(device) for x in vectors), g.inside, beta.inside)
        want = [torch.empty(a.shape) for _ in range(2)]
        ops.gates(a.cpu(), b.cpu(), *vectors, *want)
        for name, guard, right in zip(("g", "beta"), (g, beta), want, strict=True):
            got = guard.inside.cpu()
            if own:  # each value by itself, since the heads of a token have nothing in common
                judge.budget(name, got.view(-1, 1), right.view(-1, 1), own_budget("p5"),
                             tokens=tokens)
            else:
                judge.equal(name, got, right, rule="truth", finite=False, tokens=tokens)
            guard.hold(judge, name, tokens=tokens)


def test_repeats_are_equal(case: Case, subject: Subject, judge: Judge) -> None:
    harness = Harness(case, subject, judge)
    pool, rows, states = attacks.build_batch(harness, case["m"], case["longest"], 120)
    want = [(out.clone(), pool.read(row.slot))
            for out, row in zip(harness.run(pool, rows), rows, strict=True)]
    for repeat in range(1, case["times"]):
        for slot, state in states.items():
            pool.write(slot, state)
        got = harness.run(pool, rows, repeat=repeat)
        harness.check_rows(pool, rows, got, want, repeat=repeat)


def test_long_runs_do_not_drift(case: Case, subject: Subject, judge: Judge) -> None:
    harness, m, chunk = Harness(case, subject, judge), case["m"], 64
    start = {slot: harness.draw_state(slot) for slot in range(m)}
    batch = harness.build_pool(m, start)
    single = [harness.build_pool(1, {0: start[s]}) for s in range(m)]
    for first in range(0, case["steps"], chunk):
        rows = [attacks.draw_sequence(harness, 130 + s + first, chunk, s) for s in range(m)]
        outs = [harness.run_unchecked(batch.states, [row.slice_tokens(i, 1) for row in rows])
                for i in range(chunk)]
        for slot, row in enumerate(rows):
            solo_out = harness.run(single[slot], [row.slice_tokens(0, chunk, 0)])[0]
            harness.check_rows(batch, [row], [torch.cat([out[slot] for out in outs])],
                               [(solo_out, single[slot].read(0))], step=first)
    judge.engaged(steps=case["steps"])


def test_far_slots_are_reached(case: Case, subject: Subject, judge: Judge) -> None:
    harness = Harness(case, subject, judge)
    slots = 2**31 // torch.Size(harness.op.state_shape).numel() + 3
    states = torch.full((slots, *harness.op.state_shape), torch.nan, device=subject.device)
    row, start = attacks.draw_sequence(harness, 140, 3, 0), harness.draw_state(140)
    out, state = harness.run_solo(row, start)
    places = (slots - 1, 0, slots // 2)
    for slot in places:
        states[slot] = start.to(subject.device)
    rows = [row.slice_tokens(0, row.count, slot) for slot in places]
    for slot, got in zip(places, harness.run_unchecked(states, rows), strict=True):
        judge.equal("out", got, out, slot=slot)
        judge.equal("state", states[slot].cpu(), state, slot=slot)
        states[slot] = torch.nan
    judge.law(bool(torch.isnan(states.view(-1)[::61]).all()),
              "the call wrote a slot that no row names", rung="frame")


def test_loads_and_stores_stay_inside(case: Case, subject: Subject, judge: Judge) -> None:
    harness = Harness(case, subject, judge)
    for m in case["m"]:
        pool, rows, _ = attacks.build_batch(harness, m, 2, 150)
        padded = attacks.insert_pads(rows, 2, "between", pad_slot=pool.slots)
        checker = harness.run_bounds_checked(pool, padded)
        if not checker.accesses:
            raise Declined("its kernel is not Triton's, so its loads are not visible")
        judge.law(not checker.violations, next(iter(checker.violations), ""), rung="frame", m=m)


def test_state_is_read_once(case: Case, subject: Subject, judge: Judge) -> None:
    harness = Harness(case, subject, judge)
    pool, rows, _ = attacks.build_batch(harness, case["m"], case["longest"], 160)
    slot_bytes = pool.states[0].nbytes
    with count_loads(state=pool.states) as reads, record_launches() as grids:
        harness.run_unchecked(pool.states, rows)
    count = reads["state"]
    if not count.loads:
        raise Declined("its kernel is not Triton's, so its loads are not visible")
    for slot in range(pool.slots + 1):
        seen = int(count.seen[slot * slot_bytes:(slot + 1) * slot_bytes].sum())
        want = slot_bytes if slot in {row.slot for row in rows} else 0
        judge.law(seen == want, f"the call read {seen} bytes of slot {slot}, but should read "
                  f"{want}", slot=slot)
    judge.law(count.total == count.unique, f"the call read the state "
              f"{count.total / count.unique:.1f} times, but should read it once for any number of "
              f"tokens")
    judge.law(len(grids) == 1, f"{len(rows)} rows took {len(grids)} launches, but should take one")
    judge.engaged(bytes_read=count.total, launches=len(grids), rows=len(rows))


def test_streams_equal_the_oracle(case: Case, subject: Subject, judge: Judge) -> None:
    (engine, _), streams = build_engine(case, subject), _expected_streams(case, subject)
    draw, slots = random.Random(case["seed"]), case["slots"]
    batch = BatchDriver(engine, Rows, judge, slots=slots, capacity=CAPACITY)
    while streams or batch.live:
        free = [s for s in range(slots) if s not in batch.live]
        while streams and free and (not batch.live or draw.random() < 0.7):
            slot = free.pop(draw.randrange(len(free)))
            if hasattr(engine, "write_state"):
                batch.poison(slot)
            batch.join(slot, streams.pop())
        order = draw.sample(sorted(batch.live), k=draw.randint(1, len(batch.live)))
        left = [len(batch.live[s].logits) - batch.fed[s] for s in order]
        batch.step(order, [draw.randint(1, n) for n in left])
        for slot in [s for s in order if batch.fed[s] == len(batch.live[s].logits)]:
            batch.leave(slot)
    judge.engaged(rows_a_step=batch.widest, steps=batch.step_number)


def test_kernels_run_the_step(case: Case, subject: Subject, judge: Judge) -> None:
    check_step_of_kernels(judge, case, subject, {
        name: select_op(case, subject, name) for name in ("conv_step", "gates", "delta_step")})


def _expected_streams(case: Case, subject: Subject) -> list[SoloStream]:
    """Return each prompt's stream: the oracle's, or the candidate's own if its arithmetic is."""
    engine: Engine = PathEngine(reference(), subject.models(case["model"]))
    if has_own_arithmetic(subject):
        engine, _ = build_engine(case, subject)
    vocab = subject.models(case["model"]).config.vocab
    return [run_solo(engine, Rows, make_prompt(170 + n, 1 + n % 6, vocab), 3, CAPACITY, reference())
            for n in range(case["sequences"])]
