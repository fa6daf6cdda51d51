"""The attack on P2: a real server and the official client, each reply against the same alone."""

from __future__ import annotations

import gc
import itertools
import random
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from contracts.schema import Case
from engine.arithmetic import log_softmax_at
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from phases.p0_scheduler.increment import Request
from phases.p2_engine_serve import attacks, engine_checks, reference, request_data
from phases.p2_engine_serve.client_reply import ClientRequest
from phases.p2_engine_serve.harness import Harness
from phases.p2_engine_serve.hybrid_engine import Limits
from phases.p2_engine_serve.request_stream import Reply
from phases.p2_engine_serve.sampling import Sampling
from phases.p2_engine_serve.session_reuse import SessionTurns
from phases.p2_engine_serve.step_barrier import capture_batch_log


def test_replies_equal_serial(case: Case, subject: Subject, judge: Judge) -> None:
    asks = request_data.four_requests(case["endpoint"], case["stream"], case["tokens"])
    with Harness(subject, judge, model=case["model"]) as site:
        together = site.ask_all(asks)
        judge.engaged(m_formed=site.service.scheduler.counts.formed, widths=site.steps.widths)
        site.check_equal("m_formed", site.service.scheduler.counts.formed, len(asks))
        site.check_equal("rows of the widest step", max(site.steps.widths), len(asks))
        site.idle()
        if case["model"]:
            engine_checks.check_against_oracle(site, asks, together)
    with Harness(subject, judge, model=case["model"], slots=1) as site:
        for number, ask in reversed(list(enumerate(asks))):
            alone = site.ask(ask)
            site.check_equal("reply", together[number].raw, alone.raw, request=number)


def test_batches_form_over_http(case: Case, subject: Subject, judge: Judge) -> None:
    c, tokens = case["c"], 6
    asks = [ClientRequest("completions", bool(i % 2), request_data.make_body(
        "completions", "the", max_tokens=tokens, seed=i, ignore_eos=True)) for i in range(c)]
    with capture_batch_log() as lines, Harness(subject, judge, slots=16) as site:
        site.ask_all(asks)
        steps = len(site.steps.widths)
        judge.engaged(m_formed=site.service.scheduler.counts.formed, steps=steps)
        site.check_equal("log", lines, [f"Batch m={c}"])
        site.check_equal("rows of each step", site.steps.widths, [c] * tokens)
        site.check_equal("rowtwin_formed", site.read_metric("rowtwin_formed"), float(c))
        site.check_equal("rowtwin_batch_size_sum", site.read_metric("rowtwin_batch_size_sum"),
                         float(c * steps))
        site.check_equal("rowtwin_batch_size_count", site.read_metric("rowtwin_batch_size_count"),
                         float(steps))


def test_rows_are_drawn_alone(case: Case, subject: Subject, judge: Judge) -> None:
    crowd = engine_checks.MixedRequests(subject, judge)
    for order in (range(6), reversed(range(6)), [3, 0, 5, 1, 4, 2]):
        crowd.serve(list(order), late=case["late"])
    crowd.check_options()


def test_draws_follow_their_options(case: Case, subject: Subject, judge: Judge) -> None:
    logits = engine_checks.tied_logits(case["seed"], 24, case["vocab"])
    options = [Sampling(t, k, p, seed=case["seed"] + 100 * k, top=5) for t, k, p in
               itertools.product((0.0, 0.3, 1.0, 40.0), (0, 1, 3), (1.0, 0.6))]
    numbers = list(range(24))
    first = [reference.ranked(line)[0] for line in logits]
    drawn = subject.stack.engine.draw(logits, first, options, numbers)
    for row, (one, option) in enumerate(zip(drawn, options, strict=True)):
        engine_checks.check_equal(judge, "token", one.token,
                                  reference.pick(logits[row], option, row), row=row)
        told = [one.token, *reference.ranked(logits[row])[:5]]
        engine_checks.check_equal(judge, "likeliest tokens", [t for t, _ in one.top], told[1:],
                                  row=row)
        judge.equal("log-probs", torch.tensor([one.logprob, *(v for _, v in one.top)]),
                    torch.tensor([log_softmax_at(logits[row], t) for t in told]), row=row)
    engine_checks.check_frequencies(subject, judge, case["seed"])


def test_one_live_request_keeps_its_turn(case: Case, subject: Subject, judge: Judge) -> None:
    with Harness(subject, judge) as site:
        SessionTurns(site, subject, judge).run(case["kind"])
        site.idle()


def test_stop_strings_cut_whole_texts(case: Case, subject: Subject, judge: Judge) -> None:
    text, stops = request_data.STOP_CASES[case["text"]]
    with Harness(subject, judge, template=request_data.PLAIN_TEMPLATE) as site:
        said = site.tokenizer.encode(text)
        want, tokens = request_data.cut_at_stop(text, stops), request_data.tokens_to_stop(
            site.tokenizer, said, stops)
        total = len(said) + 1 if tokens is None else tokens
        for limit in (total, total + 3):
            asks = [ClientRequest(endpoint, stream,
                                  request_data.echo_body(endpoint, text, max_tokens=limit,
                                                         stop=stops, top=0))
                    for endpoint in ("completions", "chat") for stream in (False, True)]
            before, replies = len(site.steps.widths), site.ask_all(asks)
            site.check_equal("steps", len(site.steps.widths) - before,
                      -(-(len(said) + 1) // site.chunk) + total - 1, limit=limit)
            for ask, got in zip(asks, replies, strict=True):
                where: dict[str, int | str] = {"endpoint": ask.endpoint, "stream": str(ask.stream),
                                               "limit": limit}
                site.check_equal("text", got.text, text if want is None else want, **where)
                site.check_equal("finish_reason", got.reason, "stop", **where)
                site.check_equal("completion_tokens", got.usage["completion_tokens"], total,
                                 **where)
                site.check_equal("tokens told", len(got.ids), total, **where)
                site.check_equal("log-probs told", len(got.logprobs), total, **where)
        site.idle()


def test_streams_show_whole_characters(case: Case, subject: Subject, judge: Judge) -> None:
    with Harness(subject, judge, template=request_data.PLAIN_TEMPLATE) as site:
        tokens = engine_checks.scripted_tokens(site.tokenizer, case["text"])
        for limit in range(1, len(tokens) + 1):
            ask = ClientRequest("completions", True,
                                engine_checks.body_to_say(site.tokenizer, tokens, limit))
            got = site.ask(ask)
            site.check_equal("text", got.text, site.tokenizer.decode(tokens[:limit]), limit=limit)
            if case["text"] == "whole":
                broken = [i for i, part in enumerate(got.texts[:-1]) if "\ufffd" in part]
                site.check_equal("chunks with broken characters", broken, [], limit=limit)


def test_replies_end_for_their_own_reason(case: Case, subject: Subject, judge: Judge) -> None:
    with Harness(subject, judge, template=request_data.PLAIN_TEMPLATE) as site:
        asks, wants = engine_checks.requests_by_ending(case["endpoint"], case["stream"],
                                                       site.tokenizer)
        for number, (got, want) in enumerate(zip(site.ask_all(asks), wants, strict=True)):
            ask, (reason, count, top) = asks[number], want
            prompt = len(site.tokenizer.encode(ask.body["prompt"]))
            usage = {"prompt_tokens": prompt, "completion_tokens": count,
                     "total_tokens": prompt + count, "prompt_tokens_details": {"cached_tokens": 0}}
            site.check_equal("finish_reason", got.reason, reason, request=number)
            site.check_equal("usage", got.usage, usage, request=number)
            site.check_equal("tokens told", len(got.ids), count, request=number)
            site.check_equal("likely tokens told", got.top_counts, [] if top is None
                             else [top] * count, request=number)
            site.check_equal("text", got.text, site.tokenizer.decode(got.ids), request=number)
        site.idle()


def test_bad_requests_are_refused_by_field(case: Case, subject: Subject, judge: Judge) -> None:
    chat = case["endpoint"] == "chat"
    data = request_data
    endpoint, good = ("chat/completions", data.CHAT) if chat else ("completions", data.GOOD)
    table = {**data.EVERYWHERE, **(data.CHATS if chat else data.COMPLETIONS)}
    with Harness(subject, judge, body=2048) as site:
        want = site.post({"model": "nano", **good, "seed": 1}, endpoint).json()["choices"]
        before = site.barrier.accepted
        for name, (change, status, field) in table.items():
            body = {k: v for k, v in {"model": "nano", **good, **change}.items() if v is not ...}
            attacks.check_refusal(site, name, site.post(body, endpoint), status, field)
        for name, (raw, status, field) in request_data.RAW_BODIES.items():
            attacks.check_refusal(site, name, site.post(raw, endpoint), status, field)
        attacks.check_early_refusals(site, endpoint)
        site.check_equal("requests accepted", site.barrier.accepted, before)
        got = site.post({"model": "nano", **good, "seed": 1}, endpoint).json()["choices"]
        site.check_equal("a good reply afterwards", got, want)
        site.idle()
    attacks.check_long_texts(subject, judge, endpoint)


def test_strangers_stay_outside(case: Case, subject: Subject, judge: Judge) -> None:
    with Harness(subject, judge, key="sesame") as site:
        for header in ({}, {"authorization": "Bearer"}, {"authorization": "Bearer sesam"},
                       {"authorization": "Bearer sesames"}, {"authorization": "sesame"}):
            for path in ("completions", "chat/completions"):
                answer = site.post({"model": "nano", **request_data.GOOD}, path, **header)
                site.check_equal("status", answer.status_code, 401, path=path, header=str(header))
            answer = site.http.get("/v1/models", headers=header)
            site.check_equal("status", answer.status_code, 401, path="models", header=str(header))
        site.check_equal("requests accepted", site.barrier.accepted, 0)
        heard = site.ask(request_data.four_requests("completions", "whole", 2)[0])
        site.check_equal("tokens told to a friend", len(heard.ids), 2)


def test_a_full_queue_answers_429(case: Case, subject: Subject, judge: Judge) -> None:
    slots, queue = case["slots"], case["queue"]
    ask = request_data.four_requests("completions", "whole", 3)[1]
    with Harness(subject, judge, slots=slots, queue=queue) as site:
        futures = site.hold([ask] * (slots + queue))
        for endpoint, body in (("completions", request_data.GOOD),
                               ("chat/completions", request_data.CHAT)):
            answer = site.post({"model": "nano", **body}, endpoint)
            attacks.check_refusal(site, "one-too-many", answer, 429, None)
            site.law(answer.headers.get("retry-after", "").isdigit(), "a 429 has no Retry-After")
        site.barrier.release()
        raws = {site.result(future).raw for future in futures}
        site.check_equal("different replies to one request", len(raws), 1)
        site.check_equal("reply afterwards", {site.ask(ask).raw}, raws)
        site.idle()


def test_disconnects_free_their_slots(case: Case, subject: Subject, judge: Judge) -> None:
    draw = random.Random(case["seed"])
    with Harness(subject, judge, slots=4, queue=64, context=600) as site:
        alone: dict[str, str] = {}
        for _ in range(case["waves"]):
            attacks.run_client_wave(site, draw, case["clients"], alone)
            site.idle()
        left = int(site.read_metric('rowtwin_ended_total{reason="disconnect"}'))
        site.law(left > case["waves"], f"only {left} disconnects were counted")
        site.stop()
        site.check_equal("sinks kept", len(site.service.driver._sinks), 0)
        site.check_equal("requests kept", site.service.scheduler.idle, True)
        gc.collect()
        kept = sum(issubclass(type(thing), Reply) for thing in gc.get_objects())
        site.check_equal("replies kept", kept, 0)


def test_handlers_never_wait_for_a_step(case: Case, subject: Subject, judge: Judge) -> None:
    with Harness(subject, judge, context=600) as site:
        attacks.check_during_step(site)
        site.idle()


def test_engine_errors_reach_every_client(case: Case, subject: Subject, judge: Judge) -> None:
    with Harness(subject, judge) as site:
        attacks.check_engine_errors(site, case["trouble"])


def test_hostile_templates_are_refused(case: Case, subject: Subject, judge: Judge) -> None:
    if case["template"] == "one-chat":
        attacks.check_next_chat(subject, judge)
        return
    with tempfile.TemporaryDirectory() as folder:
        trap = Path(folder, "trap")
        template = subject.stack.template(request_data.HOSTILE_TEMPLATES[case["template"]],
                                          seconds=1.5)
        try:
            attacks.check_hostile_template(judge, template, str(trap),
                                 broken=case["template"] in request_data.BROKEN_TEMPLATES)
        finally:
            template.close()
        judge.law(not trap.exists(), "a hostile template reached the file system")
    if case["template"] == "no-template":
        attacks.check_bad_template_server(subject, judge)


def test_chats_follow_the_template(case: Case, subject: Subject, judge: Judge) -> None:
    with Harness(subject, judge) as site:
        for number, (messages, text) in enumerate(request_data.CHAT_TURNS):
            answer = site.post({"model": "nano", "messages": messages, "max_tokens": 1,
                                "return_token_ids": True}, "chat/completions").json()
            want = site.tokenizer.encode(text + "<|im_start|>assistant\n")
            site.check_equal("prompt", answer.get("prompt_token_ids"), want, chat=number)
    refuses = "{{ raise_exception('roles must alternate') }}"
    with Harness(subject, judge, template=refuses) as site:
        answer = site.post({"model": "nano", **request_data.CHAT}, "chat/completions")
        attacks.check_refusal(site, "the-template-objects", answer, 400, "messages")
        site.law("roles must alternate" in answer.text, "the template's own words are lost")


def test_shutdown_drains(case: Case, subject: Subject, judge: Judge) -> None:
    asks = request_data.four_requests("mixed", "mixed", 3)
    with Harness(subject, judge, slots=2) as site:
        alone = [site.ask(ask).raw for ask in asks]
        attacks.check_drain(site, asks, alone)


def test_memory_has_a_budget(case: Case, subject: Subject, judge: Judge) -> None:
    model, slots, context = subject.models("nano"), case["slots"], case["context"]
    one = model.new_pool(1, context).nbytes
    engine = subject.stack.engine(model, subject.path, Limits(slots, context, slots * one))
    engine_checks.check_equal(judge, "bytes of state", engine.pool.nbytes, slots * one)
    for more, less in ((0, 1), (1, 0), (10 ** 9, 0)):  # the last could never be allocated
        limits = Limits(slots + more, context, slots * one - less)
        engine_checks.expect_refusal(judge, f"{slots + more} slots", f"{slots * one - less:,}",
                     partial(subject.stack.engine, model, subject.path, limits))
    for name, tokens in (("a token outside", (1, 509)), ("a long prompt", (1,) * (context + 1))):
        request = Request("bad", tokens, 1)
        engine_checks.expect_refusal(judge, name, "509" if "outside" in name else str(context),
                     partial(engine.add_slot, request))
        pair = [replace(request, tokens=(1,)), request]
        engine_checks.expect_refusal(judge, name, "", partial(engine.start_batch, pair))
        engine_checks.check_equal(judge, f"slots taken after {name}", len(engine.tenants), 0)
    for wrong in ({"temperature": -1.0}, {"top_p": 0.0}, {"seed": -1}, {"top": 21}):
        engine_checks.expect_refusal(judge, str(wrong), next(iter(wrong)),
                                     partial(Sampling, **wrong))
