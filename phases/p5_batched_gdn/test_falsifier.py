"""The attack on P5: rows, slots, chunks, pads and neighbours of the recurrent ops."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import torch

from contracts.schema import Case
from engine import ops
from engine.candidate import Engine, PathEngine, engine_of, is_whole
from engine.path import Rows, reference
from falsifiers.instruments.load_counter import count_loads
from falsifiers.judging.batch_driver import BatchDriver, SoloStream, make_prompt, run_solo
from falsifiers.judging.errors import Declined
from falsifiers.judging.judge import Judge
from falsifiers.judging.poison import new_guarded
from falsifiers.judging.subject import Subject
from phases.p5_batched_gdn import attacks
from phases.p5_batched_gdn.harness import Harness, own_budget, record_launches, select_op

CAPACITY = 64
FINITE_FLAVOURS = ("plain", "zeros", "extreme")


def test_rows_equal_alone(case: Case, subject: Subject, judge: Judge) -> None:
    rig = Harness(case, subject, judge)
    for m in case["m"]:
        arena, rows, states = attacks.build_batch(rig, m, case["longest"], seed=m)
        got = rig.run(arena, rows, m=m)
        want = [rig.run_solo(row, states[row.slot]) for row in rows]
        rig.hold(arena, rows, got, want, m=m)


def test_rows_are_true(case: Case, subject: Subject, judge: Judge) -> None:
    rig, flavour = Harness(case, subject, judge), case["flavour"]
    if not rig.bitwise and flavour != "plain":
        raise Declined("an arithmetic of its own is held to a budget on plain values alone")
    arena, rows, states = attacks.build_batch(rig, case["m"], case["longest"], 50, flavour)
    got = rig.run(arena, rows, flavour=flavour)
    rig.check_truth(arena, rows, got, states, finite=flavour in FINITE_FLAVOURS, flavour=flavour)


def test_order_and_slots_do_not_matter(case: Case, subject: Subject, judge: Judge) -> None:
    rig = Harness(case, subject, judge)
    _, rows, states = attacks.build_batch(rig, case["m"], case["longest"], 60)
    want = [rig.run_solo(row, states[row.slot]) for row in rows]
    for order, slots in attacks.row_placements(case["m"], case["slots"]):
        turned = [rows[i].slice_tokens(0, rows[i].count, slot) for i, slot in zip(order, slots,
                                                                          strict=True)]
        held = {slot: states[rows[i].slot] for i, slot in zip(order, slots, strict=True)}
        for cut in {len(turned), len(turned) // 2}:  # together, and m = a + b
            arena = rig.build_pool(case["slots"], held)
            parts = [part for part in (turned[:cut], turned[cut:]) if part]
            got = [out for part in parts for out in rig.run(arena, part)]
            rig.hold(arena, turned, got, [want[i] for i in order], seated=str(slots), cut=cut)


def test_chunks_equal_steps(case: Case, subject: Subject, judge: Judge) -> None:
    rig, length = Harness(case, subject, judge), case["tokens"]
    whole = attacks.draw_sequence(rig, 70, length, slot=2)
    start, other = (
        rig.draw_state(70) if case["start"] == "held" else rig.empty_state(),
        rig.draw_state(71),
    )
    beside = attacks.draw_sequence(rig, 71, length, slot=0)
    arena = rig.build_pool(3, {2: start})
    steps = [rig.run(arena, [whole.slice_tokens(i, 1)])[0] for i in range(length)]
    want = torch.cat(steps), arena.read(2)
    for split in attacks.splits(length, case["splits"]):
        arena, got, at = rig.build_pool(3, {2: start, 0: other}), [], 0
        for number, count in enumerate(split):  # a decoding row stands before it
            rows = [beside.slice_tokens(number, 1), whole.slice_tokens(at, count)]
            got.append(rig.run(arena, rows, split=str(split)))
            at += count
        stepped = beside.slice_tokens(0, len(split))
        rig.hold(arena, [whole, stepped], [torch.cat([outs[i] for outs in got]) for i in (1, 0)],
                 [want, rig.run_solo(stepped, other)], split=str(split))


def test_recycled_slot_is_fresh(case: Case, subject: Subject, judge: Judge) -> None:
    rig, slot = Harness(case, subject, judge), 1
    for length in case["lengths"]:
        arena = rig.build_pool(3, {0: rig.draw_state(1)})
        tenant = attacks.draw_sequence(rig, 80, 3, slot, "broken")
        rig.run(arena, [tenant, attacks.draw_sequence(rig, 81, 1, 0)])
        arena.write(slot, rig.empty_state())
        prompt = attacks.draw_sequence(rig, 82 + length, length + 2, slot)
        parts = (
            prompt.slice_tokens(0, length),
            prompt.slice_tokens(length, 1),
            prompt.slice_tokens(length + 1, 1),
        )
        got = [torch.cat([rig.run(arena, [part], length=length)[0] for part in parts])]
        rig.hold(arena, [prompt], got, [rig.run_solo(prompt, rig.empty_state())], length=length)
        rig.check_truth(arena, [prompt], got, {slot: rig.empty_state()}, length=length)


def test_membership_may_change_every_call(case: Case, subject: Subject, judge: Judge) -> None:
    rig, draw = Harness(case, subject, judge), random.Random(case["seed"])
    slots, length = case["slots"], case["tokens"]
    whole = {s: attacks.draw_sequence(rig, 90 + s, length, s) for s in range(slots)}
    start = {s: rig.draw_state(s) for s in whole}
    arena, fed, calls = rig.build_pool(slots, start), dict.fromkeys(whole, 0), 0
    got: dict[int, list[torch.Tensor]] = {s: [] for s in whole}
    while live := [s for s in whole if fed[s] < length]:
        order = draw.sample(live, draw.randint(1, len(live)))
        rows = [
            whole[s].slice_tokens(fed[s], draw.randint(1, min(3, length - fed[s]))) for s in order
        ]
        for slot, row, out in zip(order, rows, rig.run(arena, rows, call=calls), strict=True):
            got[slot].append(out)
            fed[slot] += row.count
        calls += 1
    for slot, row in whole.items():
        rig.hold(arena, [row], [torch.cat(got[slot])], [rig.run_solo(row, start[slot])])
    judge.engaged(calls=calls)


def test_pad_rows_do_nothing(case: Case, subject: Subject, judge: Judge) -> None:
    rig, m = Harness(case, subject, judge), case["m"]
    for pads in case["pads"]:
        for place in ("before", "between", "after"):
            arena, rows, states = attacks.build_batch(rig, m, 2, 100)
            padded = attacks.insert_pads(rows, pads, place, nobody=arena.slots)
            got = rig.run(arena, padded, pads=pads, place=place)
            kept = [out for out, row in zip(got, padded, strict=True) if row.count]
            want = [rig.run_solo(row, states[row.slot]) for row in rows]
            rig.hold(arena, rows, kept, want, pads=pads, place=place)


def test_neighbours_cannot_reach_a_row(case: Case, subject: Subject, judge: Judge) -> None:
    rig = Harness(case, subject, judge)
    victim, start = attacks.draw_sequence(rig, 110, 2, slot=1), rig.draw_state(110)
    want = rig.run_solo(victim, start)
    for flavour in ("plain", "huge", "broken"):
        crowd = [attacks.draw_sequence(rig, 111 + s, 1 + s % 3, s, flavour) for s in (0, 2, 3)]
        for place in range(4):
            arena = rig.build_pool(5, {1: start, **{row.slot: rig.draw_state(row.slot, flavour)
                                               for row in crowd}})
            rows = [*crowd[:place], victim, *crowd[place:]]
            got = rig.run(arena, rows, crowd=flavour)
            rig.hold(arena, [victim], [got[place]], [want], crowd=flavour, place=place)


def test_gates_are_true(case: Case, subject: Subject, judge: Judge) -> None:
    gates, device = select_op(case, subject, "gates"), subject.device
    own = subject.candidate is not None and not subject.candidate.bitwise
    for tokens in case["tokens"]:
        (a, b), vectors = attacks.gate_inputs(tokens, case["value_heads"], device, plain=own)
        g, beta = (new_guarded(*a.shape, device=device) for _ in range(2))
        gates(a, b, *(x.to(device) for x in vectors), g.inside, beta.inside)
        want = [torch.empty(a.shape) for _ in range(2)]
        ops.gates(a.cpu(), b.cpu(), *vectors, *want)
        for name, got, right in zip(("g", "beta"), (g, beta), want, strict=True):
            mine = got.inside.cpu()
            if own:  # each value by itself, as one token's heads have nothing in common
                judge.budget(name, mine.view(-1, 1), right.view(-1, 1), own_budget(), tokens=tokens)
            else:
                judge.equal(name, mine, right, rule="truth", finite=False, tokens=tokens)
            got.hold(judge, name, tokens=tokens)


def test_repeats_are_equal(case: Case, subject: Subject, judge: Judge) -> None:
    rig = Harness(case, subject, judge)
    arena, rows, states = attacks.build_batch(rig, case["m"], case["longest"], 120)
    want = [(out.clone(), arena.read(row.slot))
            for out, row in zip(rig.run(arena, rows), rows, strict=True)]
    for repeat in range(1, case["times"]):
        for slot, state in states.items():
            arena.write(slot, state)
        rig.hold(arena, rows, rig.run(arena, rows, repeat=repeat), want, repeat=repeat)


def test_long_runs_do_not_drift(case: Case, subject: Subject, judge: Judge) -> None:
    rig, m, chunk = Harness(case, subject, judge), case["m"], 64
    start = {slot: rig.draw_state(slot) for slot in range(m)}
    batch, single = rig.build_pool(m, start), [rig.build_pool(1, {0: start[s]}) for s in range(m)]
    for first in range(0, case["steps"], chunk):
        rows = [attacks.draw_sequence(rig, 130 + s + first, chunk, s) for s in range(m)]
        outs = [
            rig.run_unchecked(batch.whole, [row.slice_tokens(i, 1) for row in rows])
            for i in range(chunk)
        ]
        for slot, row in enumerate(rows):
            alone_out = rig.run(single[slot], [row.slice_tokens(0, chunk, 0)])[0]
            rig.hold(batch, [row], [torch.cat([out[slot] for out in outs])],
                     [(alone_out, single[slot].read(0))], step=first)
    judge.engaged(steps=case["steps"])


def test_far_slots_are_reached(case: Case, subject: Subject, judge: Judge) -> None:
    rig = Harness(case, subject, judge)
    size = torch.Size(rig.op.state_shape).numel()
    slots = 2**31 // size + 3
    whole = torch.full((slots, *rig.op.state_shape), torch.nan, device=subject.device)
    row, start = attacks.draw_sequence(rig, 140, 3, 0), rig.draw_state(140)
    out, state = rig.run_solo(row, start)
    places = (slots - 1, 0, slots // 2)
    for slot in places:
        whole[slot] = start.to(subject.device)
    got = rig.run_unchecked(whole, [row.slice_tokens(0, row.count, slot) for slot in places])
    for slot, mine in zip(places, got, strict=True):
        judge.equal("out", mine, out, slot=slot)
        judge.equal("state", whole[slot].cpu(), state, slot=slot)
        whole[slot] = torch.nan
    judge.law(bool(torch.isnan(whole.view(-1)[::61]).all()), "a far slot that no row names was "
              "written", rung="frame")


def test_loads_and_stores_stay_inside(case: Case, subject: Subject, judge: Judge) -> None:
    rig = Harness(case, subject, judge)
    for m in case["m"]:
        arena, rows, _ = attacks.build_batch(rig, m, 2, 150)
        fence = rig.run_bounds_checked(
            arena, attacks.insert_pads(rows, 2, "between", nobody=arena.slots)
        )
        if not fence.accesses:
            raise Declined("its loads cannot be seen, as its kernel is not Triton's")
        judge.law(not fence.violations, fence.violations[0] if fence.violations else "", rung="frame", m=m)


def test_state_is_read_once(case: Case, subject: Subject, judge: Judge) -> None:
    rig = Harness(case, subject, judge)
    arena, rows, _ = attacks.build_batch(rig, case["m"], case["longest"], 160)
    one = arena.whole[0].nbytes
    with count_loads(state=arena.whole) as reads, record_launches() as grids:
        rig.run_unchecked(arena.whole, rows)
    held = reads["state"]
    if not held.loads:
        raise Declined("its loads cannot be counted, as its kernel is not Triton's")
    for slot in range(arena.slots + 1):
        seen = int(held.seen[slot * one:(slot + 1) * one].sum())
        want = one if slot in {row.slot for row in rows} else 0
        judge.law(seen == want, f"{seen} bytes of slot {slot} were read, but should be {want}",
                  slot=slot)
    judge.law(held.total == held.unique, f"state was read {held.total / held.unique:.1f} times in "
              f"one call, but should be once however many tokens a row has")
    judge.law(len(grids) == 1, f"{len(rows)} rows took {len(grids)} launches, but should take one")
    judge.engaged(bytes_read=held.total, launches=len(grids), rows=len(rows))


def test_streams_equal_the_oracle(case: Case, subject: Subject, judge: Judge) -> None:
    engine, streams = _build_engine(case, subject), _expected_streams(case, subject)
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
    model, m = _load_model(case, subject), case["m"]
    names = ("conv_step", "gates", "delta_step")
    other = replace(subject.path, **{n: select_op(case, subject, n) for n in names})
    rows = Rows(tuple(range(m))[::-1], (0,) * m, tuple(1 + i % 2 for i in range(m)))
    tokens, results = make_prompt(7, sum(rows.counts), model.config.vocab), []
    for path in (other, subject.path):
        pool = model.new_pool(m, 4)
        results.append({"logits": path.step(model, pool, tokens, rows),
                        **{f"slot {s}, {name}": view for s in range(m)
                           for name, view in pool.slot(s).named().items()}})
    for name, got in results[0].items():
        judge.equal(name, got, results[1][name], rule="truth")


def _load_model(case: Case, subject: Subject) -> Any:
    model = subject.models(case["model"])
    return model.to(subject.device) if subject.device != "cpu" else model


def _build_engine(case: Case, subject: Subject) -> Engine:
    offered = subject.candidate
    return engine_of(
        subject.path, offered if is_whole(offered) else None, _load_model(case, subject)
    )


def _expected_streams(case: Case, subject: Subject) -> list[SoloStream]:
    """Return what each prompt gets from the oracle, or alone from an arithmetic of its own."""
    oracle: Engine = PathEngine(reference(), subject.models(case["model"]))
    own = subject.candidate is not None and not subject.candidate.bitwise
    engine, vocab = (
        _build_engine(case, subject) if own else oracle,
        _load_model(case, subject).config.vocab,
    )
    return [run_solo(engine, Rows, make_prompt(170 + n, 1 + n % 6, vocab), 3, CAPACITY, reference())
            for n in range(case["sequences"])]
