"""Falsifiers of P6: attention and rotation of all rows against each row by itself, and steps."""

from __future__ import annotations

import random
from dataclasses import replace

import torch

from contracts.schema import Case
from engine import ops
from engine.arithmetic import sigmoid
from engine.path import Rows
from engine.rope import rope_table
from falsifiers.instruments.load_counter import count_loads
from falsifiers.judging.batch_driver import BatchDriver, make_prompt, state_digest
from falsifiers.judging.errors import Declined
from falsifiers.judging.judge import Judge
from falsifiers.judging.poison import new_guarded
from falsifiers.judging.relations import (
    alone_equals_in_batch,
    neighbours_cannot_reach,
    permuted_rows_permute,
    repeats_are_equal,
)
from falsifiers.judging.subject import Subject
from phases.case_setup import build_engine, check_step_of_kernels, own_budget
from phases.p6_batched_attention import attacks
from phases.p6_batched_attention.data import DIM, Row, draw_sequence
from phases.p6_batched_attention.harness import (
    Harness,
    Layout,
    check_rotated,
    engine_output,
    kv_budget,
    select_op,
)
from phases.p6_batched_attention.step_checks import check_steps_solo, solo_stream


def test_rows_equal_alone(case: Case, subject: Subject, judge: Judge) -> None:
    attend = Harness(case, subject, judge)
    alone_equals_in_batch(judge, attend, attacks.build_rows(case), "attend")


def test_attention_is_true(case: Case, subject: Subject, judge: Judge) -> None:
    attend, rows = Harness(case, subject, judge), attacks.build_rows(case)
    for i, (row, got) in enumerate(zip(rows, attend(rows), strict=True)):
        attend.check_truth(got, row, row=i, length=row.length)


def test_rows_and_slots_may_move(case: Case, subject: Subject, judge: Judge) -> None:
    attend, rows = Harness(case, subject, judge), attacks.build_rows(case)
    m, draw = len(rows), random.Random(len(rows))
    permuted_rows_permute(judge, attend, rows, draw.sample(range(m), m), "attend")
    straight = attend(rows)
    for slots in (range(8 - m, 8), reversed(range(8 - m, 8)), draw.sample(range(8), m)):
        moved = attend(rows, Layout(slots=tuple(slots), pool_slots=8))
        for i, got in enumerate(moved):
            judge.equal("attend", got, straight[i], row=i)


def test_pads_do_nothing(case: Case, subject: Subject, judge: Judge) -> None:
    attend, rows = Harness(case, subject, judge), attacks.build_rows(case)
    want = attend(rows)
    for padded in attacks.padded_variants(rows, case["pads"]):
        got = [out for out, row in zip(attend(padded), padded, strict=True) if row.count]
        for i, out in enumerate(got):
            judge.equal("attend", out, want[i], row=i, rows=len(padded))
    judge.law(not any(len(out) for out in attend([Row(0, 0), Row(5, 0)])),
              "a step without tokens returned outputs")


def test_what_lies_beyond_cannot_reach_a_row(case: Case, subject: Subject, judge: Judge) -> None:
    attend, rows = Harness(case, subject, judge), attacks.build_rows(case)
    want = attend(rows)
    for beyond in (3e38, -3e38, 0.0):
        for i, got in enumerate(attend(rows, Layout(unwritten_value=beyond))):
            judge.equal("attend", got, want[i], row=i, beyond=str(beyond))


def test_neighbours_cannot_reach_a_row(case: Case, subject: Subject, judge: Judge) -> None:
    attend, (row, *rest) = Harness(case, subject, judge), attacks.build_rows(case)
    crowds = [rest, *([replace(r, flavour=f) for r in rest] for f in ("broken", "huge", "large")),
              [replace(r, length=2 * r.length + 63, count=r.count + 1) for r in rest]]
    neighbours_cannot_reach(judge, attend, row, crowds, "attend")


def test_only_new_rows_are_written(case: Case, subject: Subject, judge: Judge) -> None:
    attend, rows = Harness(case, subject, judge), attacks.build_rows(case)
    order = tuple(random.Random(1).sample(range(len(rows) + 3), len(rows)))
    for beyond in (1.25, float("nan")):  # every call checks all memory
        attend(rows, Layout(slots=order, pool_slots=len(rows) + 3, unwritten_value=beyond))


def test_chunks_equal_steps(case: Case, subject: Subject, judge: Judge) -> None:
    attend, length, count = Harness(case, subject, judge), case["length"], case["count"]
    attacks.check_cuts(attend, length, count, case["cuts"])
    mixed = [Row(40, 1, 1), Row(length, count), Row(0, 3, 2), Row(63, 1, 3), Row(length, 2, 4)]
    alone_equals_in_batch(judge, attend, mixed, "attend")


def test_softmax_is_sound(case: Case, subject: Subject, judge: Judge) -> None:
    attend, rows = Harness(case, subject, judge), attacks.build_rows(case)
    for row, got in zip(rows, attend(rows), strict=True):
        want = attacks.two_pass_attention(row, attend.heads, attend.groups)
        judge.budget("attend", got.flatten(0, 1), want.flatten(0, 1), own_budget("p6"),
                     length=row.length)
    ones = [replace(row, flavour="ones") for row in rows]
    for row, got in zip(ones, attend(ones), strict=True):
        gate = draw_sequence(row, attend.heads, attend.groups).queries(row)[1]
        attacks.check_exact(attend, got, sigmoid(gate), length=row.length)


def test_heads_are_grouped(case: Case, subject: Subject, judge: Judge) -> None:
    attend, rows = Harness(case, subject, judge), attacks.build_rows(case)
    shares = attend.heads // attend.groups
    powers = torch.tensor([2.0 ** (h // shares) for h in range(attend.heads)])
    for row, got in zip(rows, attend(rows), strict=True):
        gate = draw_sequence(row, attend.heads, attend.groups).queries(row)[1]
        attacks.check_exact(attend, got, powers[:, None] * sigmoid(gate), length=row.length)


def test_rotation_is_each_rows_own(case: Case, subject: Subject, judge: Judge) -> None:
    rotate, positions = select_op(case, subject, "rotate"), case["positions"]
    dev, pairs, t = subject.device, case["pairs"], len(positions)
    table = rope_table(max(positions) + 1, 2 * pairs, 1e7)
    x = torch.randn(t, case["heads"], DIM, generator=torch.Generator().manual_seed(t))
    want = torch.empty_like(x)
    ops.rotate(x, table, positions, want)
    judge.law(torch.equal(want[..., 2 * pairs:], x[..., 2 * pairs:]),
              "the engine rotated dimensions that it should copy")
    for first, last in ((0, t), *((i, i + 1) for i in range(t))):  # all at once, then each token
        out = new_guarded(last - first, *x.shape[1:], device=dev)
        rotate(x[first:last].to(dev), table.to(dev), torch.tensor(positions[first:last]).to(dev),
               out.inside)
        check_rotated(judge, subject, out.inside.cpu(), want[first:last], 2 * pairs, row=first)
        out.hold(judge, "rotate")


def test_norm_and_rotation_are_true_together(case: Case, subject: Subject, judge: Judge) -> None:
    if subject.candidate is not None:
        raise Declined("only the tree's own norm and rotation share a launch, not a candidate's")
    attacks.check_norm_rotate(case, judge, subject.path, subject.device)


def test_repeats_are_equal(case: Case, subject: Subject, judge: Judge) -> None:
    attend = Harness(case, subject, judge)
    repeats_are_equal(judge, attend, attacks.build_rows(case), case["times"], "attend")


def test_offsets_do_not_wrap(case: Case, subject: Subject, judge: Judge) -> None:
    attend, (row,) = Harness(case, subject, judge), attacks.build_rows(case)
    step = attacks.spread_cache(attend.lay_out([row], Layout(capacity=row.reach + 1)),
                             case["stride"])
    attend.run(step)
    judge.equal("attend", step.out.inside, attend([row])[0], length=row.length)
    for name, cache, joined in (("keys", step.keys, step.k), ("values", step.values, step.v)):
        judge.equal(name, cache.inside[0, row.length:row.reach], joined, rule="truth")


def test_loads_and_stores_stay_inside(case: Case, subject: Subject, judge: Judge) -> None:
    attend, rows = Harness(case, subject, judge), attacks.build_rows(case)
    for padded in ([Row(9, 0), *rows, Row(0, 0)], rows):
        step = attend.lay_out(padded, Layout())
        with attend.watch_bounds(step) as checker:
            attend.run(step)
        if not checker.accesses and subject.candidate is not None:
            raise Declined("its kernel is not Triton's, so its loads are not visible")
        judge.law(not checker.violations, next(iter(checker.violations), ""), rung="frame")
        judge.law(checker.accesses > 0, "the kernel made no load or store")
    judge.engaged(accesses_watched=checker.accesses)


def test_keys_are_read_once(case: Case, subject: Subject, judge: Judge) -> None:
    attend, rows = Harness(case, subject, judge), attacks.build_rows(case)
    step = attend.lay_out(rows, Layout())
    with count_loads(keys=step.keys.inside, values=step.values.inside) as reads:
        attend.run(step)
    if not any(read.loads for read in reads.values()) and subject.candidate is not None:
        raise Declined("its kernel is not Triton's, so its loads are not visible")
    want = attacks.expected_bytes(rows, attend.groups, attend.kv.itemsize)
    for name, read in reads.items():
        judge.law(read.total == want, f"the kernel loaded {read.total} bytes of {name}, but should "
                  f"load {want}: each token's keys once for all query heads of a group")
    judge.engaged(bytes_of_keys=want, query_heads=attend.heads, kv_heads=attend.groups)


def test_products_take_what_attention_wrote(case: Case, subject: Subject, judge: Judge) -> None:
    attend = Harness(case, subject, judge)
    attacks.check_product(attend, attacks.build_rows(case), subject.path.fused.project,
                          case["kind"])


def test_steps_equal_solo(case: Case, subject: Subject, judge: Judge) -> None:
    check_steps_solo(case, subject, judge)


def test_membership_may_change_every_step(case: Case, subject: Subject, judge: Judge) -> None:
    engine, model = build_engine(case, subject)
    draw, slots, waiting = random.Random(case["seed"]), 4, list(range(case["sequences"]))
    batch = BatchDriver(engine, Rows, judge, slots=slots, capacity=96)
    for slot in range(slots):
        batch.poison(slot)
    while waiting or batch.live:
        free = [s for s in range(slots) if s not in batch.live]
        while waiting and free and (not batch.live or draw.random() < 0.7):
            number = waiting.pop()
            batch.join(free.pop(draw.randrange(len(free))),
                       solo_stream(engine, model, 40 + number, 1 + 17 * number % 68, 3, 96))
        order = draw.sample(sorted(batch.live), k=draw.randint(1, len(batch.live)))
        left = [len(batch.live[s].logits) - batch.fed[s] for s in order]
        batch.step(order, [draw.choice((1, draw.randint(1, n), n)) for n in left])
        for slot in [s for s in order if batch.fed[s] == len(batch.live[s].logits)]:
            batch.leave(slot)
            batch.poison(slot, draw.choice((float("nan"), 3e38)))
    judge.engaged(rows_a_step=batch.widest, steps=batch.step_number)


def test_long_runs_do_not_drift(case: Case, subject: Subject, judge: Judge) -> None:
    engine, model = build_engine(case, subject)
    steps, m = case["steps"], case["m"]
    pool, solo = engine.new_pool(m, steps), [engine.new_pool(1, steps) for _ in range(m)]
    tokens = make_prompt(120, m, model.config.vocab)
    for step in range(steps):
        order = range(m)[::(-1) ** step]
        logits = engine.step([tokens[i] for i in order], Rows.decode(order, (step,) * m), pool)
        for row, i in enumerate(order):
            single = engine.step([tokens[i]], Rows.decode((0,), (step,)), solo[i])
            judge.equal("logits", logits[row], single[0], row=row, slot=i, step=step)
            tokens[i] = int(logits[row].argmax())
    for i in range(m):
        got, want = (state_digest(engine.read_state(p, s)) for p, s in ((pool, i), (solo[i], 0)))
        judge.law(got == want, f"state[slot {i}] after {steps} steps differs from the state of its "
                  f"sequence by itself", rung="bits", slot=i)
    judge.engaged(steps=steps, rows_a_step=m)


def test_kernels_run_the_step(case: Case, subject: Subject, judge: Judge) -> None:
    check_step_of_kernels(judge, case, subject, {
        name: select_op(case, subject, name) for name in ("attend", "rotate")})


def test_narrow_rows_equal_alone(case: Case, subject: Subject, judge: Judge) -> None:
    attend = Harness(case, subject, judge)
    alone_equals_in_batch(judge, attend, attacks.build_rows(case), "attend")
    attacks.check_cuts(attend, 62, 3, "all")


def test_narrow_kv_is_rounded_once(case: Case, subject: Subject, judge: Judge) -> None:
    test_attention_is_true(case, subject, judge)


def test_narrow_kv_stays_near_f32(case: Case, subject: Subject, judge: Judge) -> None:
    attend, rows = Harness(case, subject, judge), attacks.build_rows(case)
    if not attend.bitwise:
        raise Declined("a candidate's own arithmetic differs from f32 by itself")
    for row, got in zip(rows, attend(rows), strict=True):
        want = engine_output(row, attend.heads, attend.groups)
        judge.budget("attend", got.flatten(0, 1).float(), want.flatten(0, 1), kv_budget(case),
                     length=row.length)


def test_narrow_steps_equal_solo(case: Case, subject: Subject, judge: Judge) -> None:
    stream = check_steps_solo(case, subject, judge)
    if subject.candidate is not None:
        return  # its own arithmetic may differ from f32 by itself
    wide = subject.models(case["model"])
    state = wide.new_state(len(stream.tokens))
    for position, logits in enumerate(stream.logits):
        want = wide.forward_single(stream.tokens[position], state, position)
        judge.budget("logits", logits.cpu(), want, kv_budget(case), logits=True, step=position)
