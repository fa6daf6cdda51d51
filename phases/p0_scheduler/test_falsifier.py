"""The falsifiers of P0: schedules over a strict mock engine, each stream compared with solo."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

from contracts.schema import Case
from engine.errors import InputError
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from phases.p0_scheduler import attacks, thread_load
from phases.p0_scheduler.harness import FailAfterTokens, Harness, make_request, with_stop_at
from phases.p0_scheduler.protocol import ClosedError, QueueFullError
from phases.p0_scheduler.state_machine import Histories, run_histories


def test_batch_forms_at_every_width(case: Case, subject: Subject, judge: Judge) -> None:
    c, run = case["c"], Harness(subject, judge, slots=case["c"])
    lengths = [5 if case["prompts"] == "equal" else 1 + 7 * i % 30 for i in range(c)]
    for arm in "ab":  # the second arm has the same width again after a pause
        run.submit(*(make_request(f"{arm}{i}", n, 6) for i, n in enumerate(lengths)))
        rows = attacks.step_widths(run)
        run.check_equal("m_formed", max(rows), c)
        run.check_equal("steps", len(rows), max(-(-n // 8) for n in lengths) + 6 - 1)
    run.check_all()
    judge.engaged(m_formed=run.scheduler.counts.formed, steps=len(run.engine.steps()))


def test_slots_are_conserved_and_never_shared(case: Case, subject: Subject, judge: Judge) -> None:
    run = Harness(subject, judge, slots=case["slots"], queue=200, seed=case["seed"])
    for wave in attacks.request_waves(case["seed"], case["requests"]):
        run.submit(*wave)
        run.step()
        occupied = sorted(run.engine.owners)
        run.check_equal("free and taken slots", sorted(run.engine.free_slots + occupied),
                        list(range(case["slots"])))
        run.check_equal("slots counted as taken", run.scheduler.counts.live, len(occupied))
    run.run_until_idle()
    run.check_all()


def test_aborts_leak_no_slot(case: Case, subject: Subject, judge: Judge) -> None:
    draw, run = random.Random(case["seed"]), Harness(subject, judge, slots=case["slots"])
    for cycle in range(case["cycles"]):
        run.submit(make_request(f"aborted{cycle}", 20, 40))
        run.step(draw.randrange(6))
        run.cancel(f"aborted{cycle}", draw.choice(["cancel", "disconnect"]))
    start = run.clock
    probes = [make_request(f"probe{i}", 5, 3) for i in range(case["slots"])]
    run.submit(*probes)
    run.run_until_idle()
    run.check_equal("steps until every probe had ended", run.clock - start, 3)
    run.check_all(but=[id for id in run.requests if id.startswith("aborted")])


def test_every_ending_releases_once(case: Case, subject: Subject, judge: Judge) -> None:
    for second, third in itertools.product(attacks.ENDINGS, repeat=2):
        for ats in ((2, 2, 2), (1, 2, 0), (0, 0, 3)):
            plan = list(zip((case["first"], second, third), ats, strict=True))
            run = attacks.run_to_endings(subject, judge, plan)
            run.check_accounting()
            for id, (ending, _) in zip(run.requests, plan, strict=True):
                run.check_equal("reason", run.ended[id].reason, ending, request=id)


def test_random_histories_keep_every_law(case: Case, subject: Subject, judge: Judge) -> None:
    run_histories(lambda: Histories(subject, judge, case["slots"]), case["examples"],
                  case["steps"], case["shrink"])


def test_reuse_waits_for_the_step_to_be_read(case: Case, subject: Subject, judge: Judge) -> None:
    run, who = Harness(subject, judge, slots=4), case["who"]
    seen = attacks.cancel_inside(run, case["inside"], case["nth"], who)
    run.submit(make_request("a", 12, 30), make_request("b", 3, 2))
    run.step()
    run.submit(make_request("c", 9, 9), make_request("d", 20, 9), make_request("e", 4, 9),
               make_request("f", 4, 9))
    run.run_until_idle()
    run.law(bool(seen), f"there was no {case['inside']} call in which to cancel")
    after = {call.name for call in run.engine.log[seen[0]:] if who in call.ids}
    run.check_equal("calls naming the cancelled request", after - {"recycle_slot"}, set())
    run.check_equal("reason", run.ended[who].reason, "cancel")
    run.check_all(but=[who])


def test_token_budgets_are_exact(case: Case, subject: Subject, judge: Judge) -> None:
    for limit, length in itertools.product((1, 2, 10), (1, 8, 9, 17)):
        run = Harness(subject, judge, slots=2)
        run.submit(make_request("a", 9, 40))
        run.step(case["join"])
        run.submit(make_request("b", length, limit))
        run.run_until_idle()
        run.check_equal("tokens emitted", len(run.streams["b"]), limit, request="b",
                        join=case["join"])
        run.check_equal("tokens computed", run.engine.computed_tokens("b"), length + limit - 1,
                        request="b", join=case["join"])
        run.check_equal("tokens emitted", len(run.streams["a"]), 40, request="a", join=case["join"])
        run.check_accounting()


def test_finish_times_equal_solo(case: Case, subject: Subject, judge: Judge) -> None:
    run = Harness(subject, judge, slots=case["slots"], queue=200, chunk=case["chunk"])
    for wave in attacks.request_waves(case["seed"], 40):
        run.submit(*wave)
        run.step()
    run.run_until_idle()
    solo = run.check_streams_equal_solo()
    for id, (seat, end) in attacks.expected_times(run, solo).items():
        run.check_equal("step of the seat", run.seated_at(id), seat, request=id)
        run.check_equal("step of the end", run.ended_at[id], end, request=id)
    run.check_accounting()


def test_decode_never_waits_for_prefill(case: Case, subject: Subject, judge: Judge) -> None:
    run = Harness(subject, judge, slots=3, chunk=4)
    run.submit(make_request("decodes", 3, 80))
    run.step(2)
    run.submit(*(make_request(id, 4 * case["chunks"], 2) for id in ("prefills", "too")))
    for _ in range(case["chunks"]):
        before = len(run.streams["decodes"])
        run.step()
        run.check_equal("tokens a step", len(run.streams["decodes"]) - before, 1, request="decodes")
    run.run_until_idle()
    run.check_all()


def test_prefill_never_waits_for_others(case: Case, subject: Subject, judge: Judge) -> None:
    run = Harness(subject, judge, slots=4, chunk=4)
    run.submit(make_request("decodes", 3, 200), make_request("prefills", 4 * 128, 2))
    run.step(case["join"])
    run.submit(make_request("short", 3, 5), make_request("middling", 4 * 6, 5))
    start = run.clock
    run.step(6)
    run.check_equal("step of the seat", run.seated_at("short"), start, request="short")
    run.check_equal("step of the end", run.ended_at.get("short"), start + 4, request="short")
    run.check_equal("tokens after its sixth chunk", len(run.streams["middling"]), 1,
                    request="middling")
    run.run_until_idle()
    run.check_equal("step of the end", run.ended_at["prefills"], 128, request="prefills")
    run.check_all()


def test_admission_is_first_come_first_served(case: Case, subject: Subject, judge: Judge) -> None:
    draw, run = random.Random(case["seed"]), Harness(subject, judge, slots=case["slots"], queue=200)
    engine = run.engine
    for number in range(60):  # requests keep arriving, some far shorter than the waiting ones
        run.submit(make_request(f"n{number}", draw.choice((1, 2, 40)), draw.randint(1, 6)))
        for _ in range(draw.randrange(2)):
            seated = len(engine.tenants)
            expected = min(len(engine.free_slots), len(run.requests) - seated)
            run.step()
            run.check_equal("seats taken", len(engine.tenants) - seated, expected,
                            step=run.clock - 1)
    run.run_until_idle()
    run.check_equal("order of admission", [tenant.request.id for tenant in engine.tenants],
                    list(run.requests))
    run.check_accounting()


def test_cancel_ends_at_every_stage(case: Case, subject: Subject, judge: Judge) -> None:
    run = Harness(subject, judge, slots=2, chunk=8)
    target = attacks.bring_to_stage(run, case["stage"])
    start = run.clock
    for ok in (True, False):
        run.check_equal("cancel accepted", run.cancel(target, case["reason"]), ok, request=target)
    run.check_equal("cancel of an unknown request accepted", run.cancel("nobody"), False)
    seen, seated = len(run.engine.log), bool(run.engine.calls_naming(target))
    run.step()
    run.check_equal("step of the end", run.ended_at.get(target), start, request=target)
    run.check_equal("reason", run.ended[target].reason, case["reason"], request=target)
    run.check_equal("cancel accepted after the end", run.cancel(target), False, request=target)
    run.run_until_idle()
    late = [call.name for call in run.engine.log[seen:] if target in call.ids]
    run.check_equal("calls after the cancel", late, ["recycle_slot"] if seated else [])
    run.check_all(but=[target])


def test_errors_stay_with_their_request(case: Case, subject: Subject, judge: Judge) -> None:
    run = Harness(subject, judge, slots=4, chunk=4)
    bad = {f"r{i}": case["beyond"] for i in case["bad"]}
    run.engine.fail_call = FailAfterTokens(run.engine, bad, names_row=case["named"])
    for number in range(7):
        run.submit(make_request(f"r{number}", 3 + 5 * number % 13, 8 + number))
        run.step(number % 2)
    run.run_until_idle()
    run.check_streams_equal_solo(but=sorted(bad))
    for id in bad:
        run.check_equal("reason", run.ended[id].reason, "error", request=id)
        run.law(id in run.ended[id].detail, f"the error of {id!r} is {run.ended[id].detail!r}")
    resets = sum(call.name == "reset" for call in run.engine.log)
    run.law(resets <= case["resets"] * len(bad), f"{resets} resets for {len(bad)} culprits")
    run.check_accounting()


def test_accidents_cost_nobody_a_token(case: Case, subject: Subject, judge: Judge) -> None:
    for at in range(12):
        run = Harness(subject, judge, slots=3, chunk=4)
        run.engine.fail_call = attacks.fail_nth_call(run, case["call"], at)
        run.submit(*(make_request(f"r{i}", 2 + 5 * i, 6) for i in range(5)))
        run.run_until_idle()
        run.check_all(but=attacks.solo_failures(run))


def test_a_dead_engine_ends_everyone_clearly(case: Case, subject: Subject, judge: Judge) -> None:
    run = Harness(subject, judge, slots=2)
    run.engine.fail_call = attacks.fail_from_step(run, case["step"])
    run.submit(*(make_request(f"r{i}", 3, 9) for i in range(5)))
    run.run_until_idle()
    for id in run.requests:
        run.check_equal("reason", run.ended[id].reason, "error", request=id)
    run.expect_refusal(make_request("late", 2, 2), ClosedError, "could not be reset")
    run.check_streams_equal_solo(but=list(run.requests))


def test_a_full_queue_refuses_and_keeps_others(case: Case, subject: Subject, judge: Judge) -> None:
    most = case["slots"] + case["queue"]
    run = Harness(subject, judge, slots=case["slots"], queue=case["queue"])
    run.submit(*(make_request(f"r{i}", 4, 2 + i) for i in range(most)))
    for _ in range(2):
        run.expect_refusal(make_request("more", 4, 2), QueueFullError, str(most))
        run.step()
    run.submit(make_request("more", 4, 2))  # the first has ended, so one more fits
    run.expect_refusal(make_request("again", 4, 2), QueueFullError, str(most))
    run.run_until_idle()
    run.check_all()


def test_stops_are_each_requests_own(case: Case, subject: Subject, judge: Judge) -> None:
    at, twin = case["at"], make_request("a", 5, 9)
    stops = with_stop_at(twin, at)
    eos = stops.stop_ids if case["kind"] == "eos" else frozenset({8})
    run = Harness(subject, judge, slots=4, eos=eos)
    exact = replace(stops, id="exact", limit=at + 1)  # stopping beats length
    run.submit(stops, replace(twin, id="ignores"), exact, make_request("other", 4, 9))
    run.run_until_idle()
    for id, tokens, reason in ((stops.id, at + 1, case["kind"]), ("exact", at + 1, case["kind"]),
                               ("ignores", 9, "length"), ("other", 9, "length")):
        run.check_equal("tokens emitted", len(run.streams[id]), tokens, request=id)
        run.check_equal("reason", run.ended[id].reason, reason, request=id)
    run.check_equal("steps", len(run.engine.steps()), 9)
    run.check_all()


def test_bad_requests_change_nothing(case: Case, subject: Subject, judge: Judge) -> None:
    run = Harness(subject, judge, slots=1, context=20)
    run.submit(make_request("a", 4, 17), make_request("b", 20, 1))  # each needs all 20 tokens
    run.step(case["join"])
    calls, counts = len(run.engine.log), run.scheduler.counts
    for bad, words in ((("c", 5, 17), "21"), (("c", 21, 1), "21"), (("c", 0, 1), "empty"),
                       (("c", 1, 0), "limit 0"), (("c", 1, -3), "limit -3"), (("a", 2, 2), "'a'"),
                       (("b", 2, 2), "'b'")):
        run.expect_refusal(bad, InputError, words)
    run.check_equal("calls to the engine", len(run.engine.log), calls)
    run.check_equal("counts", run.scheduler.counts, counts)
    run.run_until_idle()
    run.check_all()


def test_drain_serves_what_was_accepted(case: Case, subject: Subject, judge: Judge) -> None:
    run = Harness(subject, judge, slots=2)
    run.submit(*(make_request(f"r{i}", 3 + i, 4) for i in range(case["accepted"])))
    run.step(case["steps"])
    run.scheduler.close()
    run.expect_refusal(make_request("late", 2, 2), ClosedError, "shutting down")
    if case["abort"]:
        run.scheduler.abort()
        run.cancelled_at.update(dict.fromkeys(run.waiting(), run.clock))
    cut = run.waiting() if case["abort"] else []
    for _ in range(2):
        run.check_events(run.scheduler.drain())
    run.check_equal("last call", run.engine.log[-1].name, "cleanup")
    run.check_equal("cleanups", sum(call.name == "cleanup" for call in run.engine.log), 1)
    run.check_all(but=cut)


def test_reused_tokens_are_skipped(case: Case, subject: Subject, judge: Judge) -> None:
    run = Harness(subject, judge, slots=2, chunk=4)
    run.engine.reuse_length = lambda one: min(case["reused"], len(one.tokens) - 1)
    run.submit(*(make_request(f"r{i}", n, 3) for i, n in enumerate((1, 4, 9, 17))))
    run.run_until_idle()
    for id, one in run.requests.items():
        reused = min(case["reused"], len(one.tokens) - 1)
        run.check_equal("tokens computed", run.engine.computed_tokens(id),
                        len(one.tokens) - reused + 3 - 1, request=id)
        run.check_equal("reported reuse", run.ended[id].reused, reused, request=id)
    counts, prompts = run.scheduler.counts, sum(len(r.tokens) for r in run.requests.values())
    run.check_equal("counted prompt tokens", counts.prefilled + counts.reused, prompts)
    run.check_all()


def test_threads_get_their_own_streams(case: Case, subject: Subject, judge: Judge) -> None:
    clients, slots, seed = case["clients"], case["slots"], case["seed"]
    load = thread_load.ThreadLoad(subject, judge, clients=clients, slots=slots, seed=seed)
    load.serve()
    run = load.harness
    run.check_all(but=load.cancelled_ids)
    judge.engaged(m_formed=run.scheduler.counts.formed, requests=len(run.requests))
