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
from phases.p2_engine_serve.client_reply import Ask
from phases.p2_engine_serve.harness import Site
from phases.p2_engine_serve.hybrid_engine import Limits
from phases.p2_engine_serve.request_stream import Reply
from phases.p2_engine_serve.sampling import Sampling
from phases.p2_engine_serve.session_reuse import Turns
from phases.p2_engine_serve.step_barrier import logged


def test_replies_equal_serial(case: Case, subject: Subject, judge: Judge) -> None:
    asks = request_data.four(case["endpoint"], case["stream"], case["tokens"])
    with Site(subject, judge, model=case["model"]) as site:
        together = site.together(asks)
        judge.engaged(m_formed=site.service.scheduler.counts.formed, widths=site.steps.widths)
        site.same("m_formed", site.service.scheduler.counts.formed, len(asks))
        site.same("rows of the widest step", max(site.steps.widths), len(asks))
        site.idle()
        if case["model"]:
            engine_checks.hold_to_oracle(site, asks, together)
    with Site(subject, judge, model=case["model"], slots=1) as site:
        for number, ask in reversed(list(enumerate(asks))):
            alone = site.ask(ask)
            site.same("reply", together[number].raw, alone.raw, request=number)


def test_batches_form_over_http(case: Case, subject: Subject, judge: Judge) -> None:
    c, tokens = case["c"], 6
    asks = [Ask("completions", bool(i % 2), request_data.body(
        "completions", "the", max_tokens=tokens, seed=i, ignore_eos=True)) for i in range(c)]
    with logged() as lines, Site(subject, judge, slots=16) as site:
        site.together(asks)
        steps = len(site.steps.widths)
        judge.engaged(m_formed=site.service.scheduler.counts.formed, steps=steps)
        site.same("log", lines, [f"Batch m={c}"])
        site.same("rows of each step", site.steps.widths, [c] * tokens)
        site.same("rowtwin_formed", site.metric("rowtwin_formed"), float(c))
        site.same("rowtwin_batch_size_sum", site.metric("rowtwin_batch_size_sum"), float(c * steps))
        site.same("rowtwin_batch_size_count", site.metric("rowtwin_batch_size_count"), float(steps))


def test_rows_are_drawn_alone(case: Case, subject: Subject, judge: Judge) -> None:
    crowd = engine_checks.Crowd(subject, judge)
    for order in (range(6), reversed(range(6)), [3, 0, 5, 1, 4, 2]):
        crowd.serve(list(order), late=case["late"])
    crowd.laws()


def test_draws_follow_their_options(case: Case, subject: Subject, judge: Judge) -> None:
    logits = engine_checks.noise(case["seed"], 24, case["vocab"])
    options = [Sampling(t, k, p, seed=case["seed"] + 100 * k, top=5) for t, k, p in
               itertools.product((0.0, 0.3, 1.0, 40.0), (0, 1, 3), (1.0, 0.6))]
    numbers = list(range(24))
    first = [reference.ranked(line)[0] for line in logits]
    drawn = subject.stack.engine.draw(logits, first, options, numbers)
    for row, (one, option) in enumerate(zip(drawn, options, strict=True)):
        engine_checks.same(
            judge, "token", one.token, reference.pick(logits[row], option, row), row=row
        )
        told = [one.token, *reference.ranked(logits[row])[:5]]
        engine_checks.same(judge, "likeliest tokens", [t for t, _ in one.top], told[1:], row=row)
        judge.equal("log-probs", torch.tensor([one.logprob, *(v for _, v in one.top)]),
                    torch.tensor([log_softmax_at(logits[row], t) for t in told]), row=row)
    engine_checks.hold_frequencies(subject, judge, case["seed"])


def test_one_live_request_keeps_its_turn(case: Case, subject: Subject, judge: Judge) -> None:
    with Site(subject, judge) as site:
        Turns(site, subject, judge).run(case["kind"])
        site.idle()


def test_stop_strings_cut_whole_texts(case: Case, subject: Subject, judge: Judge) -> None:
    text, stops = request_data.STOPS[case["text"]]
    with Site(subject, judge, template=request_data.PLAIN) as site:
        said = site.tokenizer.encode(text)
        want, tokens = (
            request_data.cut(text, stops),
            request_data.tokens_to_stop(site.tokenizer, said, stops),
        )
        total = len(said) + 1 if tokens is None else tokens
        for limit in (total, total + 3):
            asks = [
                Ask(
                    endpoint,
                    stream,
                    request_data.echo(endpoint, text, max_tokens=limit, stop=stops, top=0),
                )
                for endpoint in ("completions", "chat")
                for stream in (False, True)
            ]
            before, replies = len(site.steps.widths), site.together(asks)
            site.same("steps", len(site.steps.widths) - before,
                      -(-(len(said) + 1) // site.chunk) + total - 1, limit=limit)
            for ask, got in zip(asks, replies, strict=True):
                where: dict[str, int | str] = {"endpoint": ask.endpoint, "stream": str(ask.stream),
                                               "limit": limit}
                site.same("text", got.text, text if want is None else want, **where)
                site.same("finish_reason", got.reason, "stop", **where)
                site.same("completion_tokens", got.usage["completion_tokens"], total, **where)
                site.same("tokens told", len(got.ids), total, **where)
                site.same("log-probs told", len(got.logprobs), total, **where)
        site.idle()


def test_streams_show_whole_characters(case: Case, subject: Subject, judge: Judge) -> None:
    with Site(subject, judge, template=request_data.PLAIN) as site:
        tokens = engine_checks.script(site.tokenizer, case["text"])
        for limit in range(1, len(tokens) + 1):
            ask = Ask("completions", True, engine_checks.said(site.tokenizer, tokens, limit))
            got = site.ask(ask)
            site.same("text", got.text, site.tokenizer.decode(tokens[:limit]), limit=limit)
            if case["text"] == "whole":
                broken = [i for i, part in enumerate(got.texts[:-1]) if "\ufffd" in part]
                site.same("chunks with broken characters", broken, [], limit=limit)


def test_replies_end_for_their_own_reason(case: Case, subject: Subject, judge: Judge) -> None:
    with Site(subject, judge, template=request_data.PLAIN) as site:
        asks, wants = engine_checks.endings(case["endpoint"], case["stream"], site.tokenizer)
        for number, (got, want) in enumerate(zip(site.together(asks), wants, strict=True)):
            ask, (reason, count, top) = asks[number], want
            prompt = len(site.tokenizer.encode(ask.body["prompt"]))
            usage = {"prompt_tokens": prompt, "completion_tokens": count,
                     "total_tokens": prompt + count, "prompt_tokens_details": {"cached_tokens": 0}}
            site.same("finish_reason", got.reason, reason, request=number)
            site.same("usage", got.usage, usage, request=number)
            site.same("tokens told", len(got.ids), count, request=number)
            site.same("likely tokens told", got.tops, [] if top is None else [top] * count,
                      request=number)
            site.same("text", got.text, site.tokenizer.decode(got.ids), request=number)
        site.idle()


def test_bad_requests_are_refused_by_field(case: Case, subject: Subject, judge: Judge) -> None:
    chat = case["endpoint"] == "chat"
    data = request_data
    endpoint, good = ("chat/completions", data.CHAT) if chat else ("completions", data.GOOD)
    table = {**data.EVERYWHERE, **(data.CHATS if chat else data.COMPLETIONS)}
    with Site(subject, judge, body=2048) as site:
        want = site.post({"model": "nano", **good, "seed": 1}, endpoint).json()["choices"]
        before = site.gate.accepted
        for name, (change, status, field) in table.items():
            body = {k: v for k, v in {"model": "nano", **good, **change}.items() if v is not ...}
            attacks.hold_refusal(site, name, site.post(body, endpoint), status, field)
        for name, (raw, status, field) in request_data.RAW.items():
            attacks.hold_refusal(site, name, site.post(raw, endpoint), status, field)
        attacks.hold_doors(site, endpoint)
        site.same("requests accepted", site.gate.accepted, before)
        got = site.post({"model": "nano", **good, "seed": 1}, endpoint).json()["choices"]
        site.same("a good reply afterwards", got, want)
        site.idle()
    attacks.hold_long_texts(subject, judge, endpoint)


def test_strangers_stay_outside(case: Case, subject: Subject, judge: Judge) -> None:
    with Site(subject, judge, key="sesame") as site:
        for header in ({}, {"authorization": "Bearer"}, {"authorization": "Bearer sesam"},
                       {"authorization": "Bearer sesames"}, {"authorization": "sesame"}):
            for path in ("completions", "chat/completions"):
                answer = site.post({"model": "nano", **request_data.GOOD}, path, **header)
                site.same("status", answer.status_code, 401, path=path, header=str(header))
            answer = site.http.get("/v1/models", headers=header)
            site.same("status", answer.status_code, 401, path="models", header=str(header))
        site.same("requests accepted", site.gate.accepted, 0)
        heard = site.ask(request_data.four("completions", "whole", 2)[0])
        site.same("tokens told to a friend", len(heard.ids), 2)


def test_a_full_queue_answers_429(case: Case, subject: Subject, judge: Judge) -> None:
    slots, queue = case["slots"], case["queue"]
    ask = request_data.four("completions", "whole", 3)[1]
    with Site(subject, judge, slots=slots, queue=queue) as site:
        futures = site.hold([ask] * (slots + queue))
        for endpoint, body in (("completions", request_data.GOOD),
                               ("chat/completions", request_data.CHAT)):
            answer = site.post({"model": "nano", **body}, endpoint)
            attacks.hold_refusal(site, "one-too-many", answer, 429, None)
            site.law(answer.headers.get("retry-after", "").isdigit(), "a 429 has no Retry-After")
        site.gate.release()
        raws = {site.result(future).raw for future in futures}
        site.same("different replies to one request", len(raws), 1)
        site.same("reply afterwards", {site.ask(ask).raw}, raws)
        site.idle()


def test_disconnects_free_their_slots(case: Case, subject: Subject, judge: Judge) -> None:
    draw = random.Random(case["seed"])
    with Site(subject, judge, slots=4, queue=64, context=600) as site:
        alone: dict[str, str] = {}
        for _ in range(case["waves"]):
            attacks.wave(site, draw, case["clients"], alone)
            site.idle()
        left = int(site.metric('rowtwin_ended_total{reason="disconnect"}'))
        site.law(left > case["waves"], f"only {left} disconnects were counted")
        site.stop()
        site.same("sinks kept", len(site.service.driver._sinks), 0)
        site.same("requests kept", site.service.scheduler.idle, True)
        gc.collect()
        kept = sum(issubclass(type(thing), Reply) for thing in gc.get_objects())
        site.same("replies kept", kept, 0)


def test_handlers_never_wait_for_a_step(case: Case, subject: Subject, judge: Judge) -> None:
    with Site(subject, judge, context=600) as site:
        attacks.while_a_step_runs(site)
        site.idle()


def test_engine_errors_reach_every_client(case: Case, subject: Subject, judge: Judge) -> None:
    with Site(subject, judge) as site:
        attacks.with_trouble(site, case["trouble"])


def test_hostile_templates_are_refused(case: Case, subject: Subject, judge: Judge) -> None:
    if case["template"] == "one-chat":
        attacks.hold_next_chat(subject, judge)
        return
    with tempfile.TemporaryDirectory() as folder:
        trap = Path(folder, "trap")
        template = subject.stack.template(request_data.HOSTILE[case["template"]], seconds=1.5)
        try:
            attacks.hold_hostile(judge, template, str(trap),
                                 broken=case["template"] in request_data.BROKEN)
        finally:
            template.close()
        judge.law(not trap.exists(), "a hostile template reached the file system")
    if case["template"] == "no-template":
        attacks.hold_server_with_bad_template(subject, judge)


def test_chats_follow_the_template(case: Case, subject: Subject, judge: Judge) -> None:
    with Site(subject, judge) as site:
        for number, (messages, text) in enumerate(request_data.TURNS):
            answer = site.post({"model": "nano", "messages": messages, "max_tokens": 1,
                                "return_token_ids": True}, "chat/completions").json()
            want = site.tokenizer.encode(text + "<|im_start|>assistant\n")
            site.same("prompt", answer.get("prompt_token_ids"), want, chat=number)
    refuses = "{{ raise_exception('roles must alternate') }}"
    with Site(subject, judge, template=refuses) as site:
        answer = site.post({"model": "nano", **request_data.CHAT}, "chat/completions")
        attacks.hold_refusal(site, "the-template-objects", answer, 400, "messages")
        site.law("roles must alternate" in answer.text, "the template's own words are lost")


def test_shutdown_drains(case: Case, subject: Subject, judge: Judge) -> None:
    asks = request_data.four("mixed", "mixed", 3)
    with Site(subject, judge, slots=2) as site:
        alone = [site.ask(ask).raw for ask in asks]
        attacks.drained(site, asks, alone)


def test_memory_has_a_budget(case: Case, subject: Subject, judge: Judge) -> None:
    model, slots, context = subject.models("nano"), case["slots"], case["context"]
    one = model.new_pool(1, context).nbytes
    engine = subject.stack.engine(model, subject.path, Limits(slots, context, slots * one))
    engine_checks.same(judge, "bytes of state", engine.pool.nbytes, slots * one)
    for more, less in ((0, 1), (1, 0), (10 ** 9, 0)):  # the last could never be allocated
        limits = Limits(slots + more, context, slots * one - less)
        engine_checks.refused(judge, f"{slots + more} slots", f"{slots * one - less:,}",
                     partial(subject.stack.engine, model, subject.path, limits))
    for name, tokens in (("a token outside", (1, 509)), ("a long prompt", (1,) * (context + 1))):
        request = Request("bad", tokens, 1)
        engine_checks.refused(judge, name, "509" if "outside" in name else str(context),
                     partial(engine.add_slot, request))
        pair = [replace(request, tokens=(1,)), request]
        engine_checks.refused(judge, name, "", partial(engine.start_batch, pair))
        engine_checks.same(judge, f"slots taken after {name}", len(engine.tenants), 0)
    for wrong in ({"temperature": -1.0}, {"top_p": 0.0}, {"seed": -1}, {"top": 21}):
        engine_checks.refused(judge, str(wrong), next(iter(wrong)), partial(Sampling, **wrong))
