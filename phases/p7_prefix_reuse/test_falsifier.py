"""The falsifiers of P7: with any reuse, a request gets the results of a cold start."""

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
    harness = Harness(case, subject, judge, block=block, stride=stride, capacity=length + 8)
    first = harness.ask(harness.prompt(1, length), limit=3)
    harness.serve(first, reused=0)
    state_tokens = harness.turn_tokens(first)
    lengths = range(len(state_tokens) + 1) if case["lengths"] == "all" else case["lengths"].split()
    for at in map(int, lengths):
        request = harness.ask(harness.diverging_prompt(state_tokens, at, seed=100 + at))
        harness.serve(request, reused=at if at == len(state_tokens) else at - at % stride)
    harness.check_accounting()


def test_turns_of_chats_are_reused(case: Case, subject: Subject, judge: Judge) -> None:
    harness = Harness(case, subject, judge, slots=2, chunk=case["chunk"], capacity=96)
    system = harness.prompt(1, 11)
    samplers = Sampling(top=2), Sampling(temperature=0.9, top_k=40, seed=7, top=2)
    texts, reused = [system, system], [0, 0]
    for turn in range(case["turns"]):
        requests = [harness.ask((*text, *harness.prompt(10 * turn + i, 2 + i + turn)), 3, sampler)
                    for i, (text, sampler) in enumerate(zip(texts, samplers, strict=True))]
        harness.serve()
        for i, request in enumerate(requests):
            harness.serve(request, reused=reused[i])
            emitted = tuple(one.token for one in harness.tokens[request.id])
            texts[i], reused[i] = (*request.tokens, *emitted), len(harness.turn_tokens(request))
    harness.serve(harness.ask((*system, *harness.prompt(99, 3))), reused=8)
    harness.check_accounting()


def test_children_do_not_meet(case: Case, subject: Subject, judge: Judge) -> None:
    at, tail = case["at"], case["tail"]
    harness = Harness(case, subject, judge, slots=3)
    parent = harness.ask(harness.prompt(1, at), limit=1)
    harness.serve(parent, reused=0)
    for seeds in ((2, 3), (4,), (5, 6)):
        requests = [harness.ask(harness.diverging_prompt(parent.tokens, at, seed, tail), limit=4)
                    for seed in seeds]
        harness.serve()
        harness.serve(*requests, reused=at)
    harness.check_checkpoints()


def test_kv_without_state_is_not_reused(case: Case, subject: Subject, judge: Judge) -> None:
    harness = Harness(case, subject, judge)
    harness.store.budget = harness.checkpoint_bytes(16, 22)
    first = harness.ask(harness.prompt(1, 20), limit=3)
    harness.serve(first, reused=0)
    lengths = [len(tokens) for tokens in harness.checkpoint_tokens()]
    judge.law(lengths == [16, 22], f"with a budget for checkpoints after 16 and 22 tokens, those "
              f"after {lengths} are stored")
    harness.serve(harness.ask(harness.diverging_prompt(harness.turn_tokens(first), case["at"],
                                                       seed=2)), reused=case["reused"])


def test_match_is_made_at_admission(case: Case, subject: Subject, judge: Judge) -> None:
    harness = Harness(case, subject, judge)
    harness.store.budget = harness.checkpoint_bytes(8, 16)
    parent, other = harness.prompt(1, 13), harness.prompt(2, 13)
    first = harness.ask(parent, limit=1)
    harness.serve(first, reused=0)
    evicting = harness.ask(other, limit=1)
    stale, early = harness.ask((*parent, 5)), harness.ask((*parent, 5, 6))
    harness.serve(evicting, stale)
    judge.law(harness.ended[stale.id].reused == 0, f"{harness.ended[stale.id].reused} tokens were "
              f"reused that were evicted while the request waited", request=stale.id)
    harness.serve(early)
    judge.law(harness.ended[early.id].reused > 0,
              "nothing was reused of a prompt that was computed while the request waited",
              request=early.id)
    harness.check_accounting()


def test_full_hit_computes_one_token(case: Case, subject: Subject, judge: Judge) -> None:
    length = case["length"]
    harness = Harness(case, subject, judge)
    tokens = harness.prompt(1, length)
    for shorter in (length - 1, length):
        if shorter:
            harness.serve(harness.ask(tokens[:shorter], limit=1))
    for _ in range(2):
        harness.serve(harness.ask(tokens), reused=length - 1)
        judge.law(harness.recorder.finished[-1].computed == 2,
                  f"{harness.recorder.finished[-1].computed} tokens "
                  f"were computed for two that were emitted after a full hit")


def test_reuse_told_is_reuse_measured(case: Case, subject: Subject, judge: Judge) -> None:
    harness, draw = Harness(case, subject, judge, slots=3, chunk=5), random.Random(case["seed"])
    requests = []
    for _ in range(case["requests"]):
        parts = [harness.prompt(10 * level + draw.randrange(2), 4 + 3 * level)
                 for level in range(draw.randint(1, 3))]
        text = tuple(token for part in parts for token in part)
        requests.append(harness.ask((*text,
                                     *harness.prompt(draw.randrange(99), 1))[:draw.randint(1, 40)],
                                    limit=draw.randint(1, 3)))
        harness.step(draw.randrange(4))
    harness.serve()
    harness.serve(*requests)
    harness.check_accounting()
    judge.law(harness.store.meter.reused > 0, "nothing was reused of prompts with shared prefixes")


def test_checkpoints_are_exact(case: Case, subject: Subject, judge: Judge) -> None:
    harness = Harness(case, subject, judge, slots=2, chunk=case["chunk"])
    first, other = harness.ask(harness.prompt(1, 20), limit=8), harness.ask(
        harness.prompt(2, 3), limit=7)
    harness.serve(first, other, reused=0)
    again = harness.ask((*harness.turn_tokens(first), *harness.prompt(3, 9)))
    harness.serve(again, reused=len(harness.turn_tokens(first)))
    for request in (first, other, again):
        state_tokens, checkpoints = harness.turn_tokens(request), harness.checkpoint_tokens()
        for end in [*range(8, len(state_tokens), 8), len(state_tokens)]:
            judge.law(state_tokens[:end] in checkpoints,
                      f"no checkpoint was taken after {end} tokens", position=end,
                      request=request.id)
    harness.check_checkpoints()


def test_nothing_kept_is_shared_with_a_slot(case: Case, subject: Subject, judge: Judge) -> None:
    attacks.check_overwritten_slots(Harness(case, subject, judge, slots=2))


def test_failures_cost_time_alone(case: Case, subject: Subject, judge: Judge) -> None:
    attacks.FAILURES[case["fault"]](Harness(case, subject, judge, slots=2, chunk=6))


def test_cancels_keep_only_what_was_computed(case: Case, subject: Subject, judge: Judge) -> None:
    harness = Harness(case, subject, judge, slots=2, chunk=5)
    first = harness.ask(harness.prompt(1, 11), limit=2)
    harness.serve(first, reused=0)
    gone = harness.ask((*harness.turn_tokens(first), *harness.prompt(2, 15)), limit=6)
    harness.step(case["step"])
    harness.scheduler.cancel(gone.id)
    stays = harness.ask(harness.prompt(3, 4))
    harness.serve(stays, reused=0)
    harness.serve(harness.ask((*gone.tokens, 1)))
    harness.check_accounting()
    harness.check_checkpoints()


def test_budget_is_kept(case: Case, subject: Subject, judge: Judge) -> None:
    harness = Harness(case, subject, judge, slots=2, chunk=8)
    harness.store.budget = harness.checkpoint_bytes(*range(8, 8 * case["fit"] + 1,
                                                           8)) if case["fit"] else 0
    for seed in (1, 2, 3, 1):
        requests = harness.ask(harness.prompt(seed, 13)), harness.ask(harness.prompt(seed, 17))
        attacks.serve_and_check_bytes(harness)
        harness.serve(*requests)
    count = len(harness.checkpoint_tokens())
    judge.law(count > 0 or not case["fit"], "nothing is stored though a checkpoint fits")
    harness.store.clear()
    attacks.check_bytes(harness)
    judge.law(harness.store.meter.bytes == 0 and not harness.checkpoint_tokens(),
              "a cleared store is not empty")
    judge.engaged(checkpoints=count, evictions=harness.store.meter.evictions)


def test_store_equals_dull_store(case: Case, subject: Subject, judge: Judge) -> None:
    run_histories(case, subject, judge)


def test_models_never_share(case: Case, subject: Subject, judge: Judge) -> None:
    one = Harness(case, subject, judge)
    model, path = attacks.other_model_or_path(subject, case["differs"])
    two = Harness(case, subject, judge, model=model, path=path, store=one.store)
    tokens = one.prompt(1, 17)
    for turn, harness in enumerate((one, two, one, two)):
        harness.serve(harness.ask(tokens), reused=0 if turn < 2 else 16)


def test_tokens_are_the_key(case: Case, subject: Subject, judge: Judge) -> None:
    harness = Harness(case, subject, judge)
    for token, halves in attacks.same_text_tokens(harness.model, case["pairs"]):
        long, short = harness.prompt(1, 3) + halves * 3, harness.prompt(1, 3) + (token,) * 3
        for tokens in (long, short):
            harness.serve(harness.ask(tokens, limit=1), reused=0)
        for tokens in (short, long):
            harness.serve(harness.ask((*tokens, 7)), reused=len(tokens))


def test_replies_tell_cached_tokens(case: Case, subject: Subject, judge: Judge) -> None:
    server_fixture.check_chat(subject, judge, case["turns"])
