"""The attack on P7: whatever was reused, a request gets what a cold start gives."""

from __future__ import annotations

import random

from contracts.schema import Case
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from phases.p2_engine_serve.increment import Sampling
from phases.p7_prefix_reuse import attacks, server_fixture
from phases.p7_prefix_reuse.harness import Harness
from phases.p7_prefix_reuse.histories import run_histories


def test_warm_equals_cold_at_every_length(case: Case, subject: Subject, judge: Judge) -> None:
    block, stride, length = case["block"], case["stride"], case["length"]
    house = Harness(case, subject, judge, block=block, stride=stride, capacity=length + 8)
    first = house.ask(house.prompt(1, length), limit=3)
    house.serve(first, reused=0)
    held = house.turn_tokens(first)
    lengths = range(len(held) + 1) if case["lengths"] == "all" else case["lengths"].split()
    for at in map(int, lengths):
        request = house.ask(house.diverging_prompt(held, at, seed=100 + at))
        house.serve(request, reused=at if at == len(held) else at - at % stride)
    house.check_accounting()


def test_turns_of_chats_are_reused(case: Case, subject: Subject, judge: Judge) -> None:
    house = Harness(case, subject, judge, slots=2, chunk=case["chunk"], capacity=96)
    system = house.prompt(1, 11)
    samplers = Sampling(top=2), Sampling(temperature=0.9, top_k=40, seed=7, top=2)
    texts, reused = [system, system], [0, 0]
    for turn in range(case["turns"]):
        asked = [house.ask((*text, *house.prompt(10 * turn + i, 2 + i + turn)), 3, sampler)
                 for i, (text, sampler) in enumerate(zip(texts, samplers, strict=True))]
        house.serve()
        for i, request in enumerate(asked):
            house.serve(request, reused=reused[i])
            emitted = tuple(one.token for one in house.tokens[request.id])
            texts[i], reused[i] = (*request.tokens, *emitted), len(house.turn_tokens(request))
    house.serve(house.ask((*system, *house.prompt(99, 3))), reused=8)
    house.check_accounting()


def test_children_do_not_meet(case: Case, subject: Subject, judge: Judge) -> None:
    at, tail = case["at"], case["tail"]
    house = Harness(case, subject, judge, slots=3)
    parent = house.ask(house.prompt(1, at), limit=1)
    house.serve(parent, reused=0)
    for seeds in ((2, 3), (4,), (5, 6)):
        asked = [house.ask(house.diverging_prompt(parent.tokens, at, seed, tail), limit=4)
                 for seed in seeds]
        house.serve()
        house.serve(*asked, reused=at)
    house.check_checkpoints()


def test_kv_without_state_is_not_reused(case: Case, subject: Subject, judge: Judge) -> None:
    house = Harness(case, subject, judge)
    house.store.budget = house.checkpoint_bytes(16, 22)
    first = house.ask(house.prompt(1, 20), limit=3)
    house.serve(first, reused=0)
    judge.law(
        [len(tokens) for tokens in house.checkpoint_tokens()] == [16, 22],
        f"a budget for checkpoints "
        f"after 16 and 22 tokens keeps {[len(tokens) for tokens in house.checkpoint_tokens()]}")
    house.serve(house.ask(house.diverging_prompt(house.turn_tokens(first), case["at"], seed=2)),
                reused=case["reused"])


def test_match_is_made_at_admission(case: Case, subject: Subject, judge: Judge) -> None:
    house = Harness(case, subject, judge)
    house.store.budget = house.checkpoint_bytes(8, 16)
    parent, other = house.prompt(1, 13), house.prompt(2, 13)
    first = house.ask(parent, limit=1)
    house.serve(first, reused=0)
    evicting = house.ask(other, limit=1)
    stale, early = house.ask((*parent, 5)), house.ask((*parent, 5, 6))
    house.serve(evicting, stale)
    judge.law(house.ended[stale.id].reused == 0, f"{house.ended[stale.id].reused} tokens were "
              f"reused that were evicted while the request waited", request=stale.id)
    house.serve(early)
    judge.law(house.ended[early.id].reused > 0, "nothing was reused of a prompt that was computed "
              "while the request waited", request=early.id)
    house.check_accounting()


def test_full_hit_computes_one_token(case: Case, subject: Subject, judge: Judge) -> None:
    length = case["length"]
    house = Harness(case, subject, judge)
    tokens = house.prompt(1, length)
    for shorter in (length - 1, length):
        if shorter:
            house.serve(house.ask(tokens[:shorter], limit=1))
    for _ in range(2):
        house.serve(house.ask(tokens), reused=length - 1)
        judge.law(house.recorder.finished[-1].computed == 2,
                  f"{house.recorder.finished[-1].computed} tokens "
                  f"were computed for two that were emitted behind a full hit")


def test_reuse_told_is_reuse_measured(case: Case, subject: Subject, judge: Judge) -> None:
    house, draw = Harness(case, subject, judge, slots=3, chunk=5), random.Random(case["seed"])
    asked = []
    for _ in range(case["requests"]):
        parts = [house.prompt(10 * level + draw.randrange(2), 4 + 3 * level)
                 for level in range(draw.randint(1, 3))]
        text = tuple(token for part in parts for token in part)
        asked.append(house.ask((*text, *house.prompt(draw.randrange(99), 1))[:draw.randint(1, 40)],
                               limit=draw.randint(1, 3)))
        house.step(draw.randrange(4))
    house.serve()
    house.serve(*asked)
    house.check_accounting()
    judge.law(house.store.meter.reused > 0, "nothing was reused of prompts that share beginnings")


def test_checkpoints_are_exact(case: Case, subject: Subject, judge: Judge) -> None:
    house = Harness(case, subject, judge, slots=2, chunk=case["chunk"])
    first, beside = house.ask(house.prompt(1, 20), limit=8), house.ask(house.prompt(2, 3), limit=7)
    house.serve(first, beside, reused=0)
    again = house.ask((*house.turn_tokens(first), *house.prompt(3, 9)))
    house.serve(again, reused=len(house.turn_tokens(first)))
    for request in (first, beside, again):
        held, kept = house.turn_tokens(request), house.checkpoint_tokens()
        for end in [*range(8, len(held), 8), len(held)]:
            judge.law(held[:end] in kept, f"no checkpoint was taken after {end} tokens",
                      position=end, request=request.id)
    house.check_checkpoints()


def test_nothing_kept_is_shared_with_a_slot(case: Case, subject: Subject, judge: Judge) -> None:
    attacks.check_overwritten_slots(Harness(case, subject, judge, slots=2))


def test_failures_cost_time_alone(case: Case, subject: Subject, judge: Judge) -> None:
    attacks.FAILURES[case["fault"]](Harness(case, subject, judge, slots=2, chunk=6))


def test_cancels_keep_only_what_was_computed(case: Case, subject: Subject, judge: Judge) -> None:
    house = Harness(case, subject, judge, slots=2, chunk=5)
    first = house.ask(house.prompt(1, 11), limit=2)
    house.serve(first, reused=0)
    gone = house.ask((*house.turn_tokens(first), *house.prompt(2, 15)), limit=6)
    house.step(case["step"])
    house.scheduler.cancel(gone.id)
    stays = house.ask(house.prompt(3, 4))
    house.serve(stays, reused=0)
    house.serve(house.ask((*gone.tokens, 1)))
    house.check_accounting()
    house.check_checkpoints()


def test_budget_is_kept(case: Case, subject: Subject, judge: Judge) -> None:
    house = Harness(case, subject, judge, slots=2, chunk=8)
    house.store.budget = house.checkpoint_bytes(*range(8, 8 * case["fit"] + 1,
                                                       8)) if case["fit"] else 0
    for seed in (1, 2, 3, 1):
        asked = house.ask(house.prompt(seed, 13)), house.ask(house.prompt(seed, 17))
        attacks.serve_and_check_bytes(house)
        house.serve(*asked)
    held = len(house.checkpoint_tokens())
    judge.law(held > 0 or not case["fit"], "nothing is kept though a checkpoint would fit")
    house.store.clear()
    attacks.check_bytes(house)
    judge.law(house.store.meter.bytes == 0 and not house.checkpoint_tokens(),
              "something is left of a store that was cleared")
    judge.engaged(checkpoints=held, evictions=house.store.meter.evictions)


def test_store_equals_dull_store(case: Case, subject: Subject, judge: Judge) -> None:
    run_histories(case, subject, judge)


def test_models_never_share(case: Case, subject: Subject, judge: Judge) -> None:
    one = Harness(case, subject, judge)
    model, path = attacks.other_model_or_path(subject, case["differs"])
    two = Harness(case, subject, judge, model=model, path=path, store=one.store)
    tokens = one.prompt(1, 17)
    for turn, house in enumerate((one, two, one, two)):
        house.serve(house.ask(tokens), reused=0 if turn < 2 else 16)


def test_tokens_are_the_key(case: Case, subject: Subject, judge: Judge) -> None:
    house = Harness(case, subject, judge)
    for whole, halves in attacks.same_text_tokens(house.model, case["pairs"]):
        long, short = house.prompt(1, 3) + halves * 3, house.prompt(1, 3) + (whole,) * 3
        for tokens in (long, short):
            house.serve(house.ask(tokens, limit=1), reused=0)
        for tokens in (short, long):
            house.serve(house.ask((*tokens, 7)), reused=len(tokens))


def test_replies_tell_cached_tokens(case: Case, subject: Subject, judge: Judge) -> None:
    server_fixture.check_chat(subject, judge, case["turns"])
