"""The falsifiers of P2: a real server and the official client; replies are compared with solo."""

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
from phases.p2_engine_serve.harness import Harness, check_equal
from phases.p2_engine_serve.hybrid_engine import Limits
from phases.p2_engine_serve.request_stream import Reply
from phases.p2_engine_serve.sampling import Sampling
from phases.p2_engine_serve.session_reuse import SessionTurns
from phases.p2_engine_serve.step_barrier import capture_batch_log


def test_replies_equal_serial(case: Case, subject: Subject, judge: Judge) -> None:
    requests = request_data.four_requests(case["endpoint"], case["stream"], case["tokens"])
    with Harness(subject, judge, model=case["model"]) as harness:
        together = harness.ask_all(requests)
        judge.engaged(m_formed=harness.service.scheduler.counts.formed, widths=harness.steps.widths)
        harness.check_equal("m_formed", harness.service.scheduler.counts.formed, len(requests))
        harness.check_equal("rows of the widest step", max(harness.steps.widths), len(requests))
        harness.idle()
        if case["model"]:
            engine_checks.check_against_oracle(harness, requests, together)
    with Harness(subject, judge, model=case["model"], slots=1) as harness:
        for number, request in reversed(list(enumerate(requests))):
            alone = harness.ask(request)
            harness.check_equal("reply", together[number].raw, alone.raw, request=number)


def test_batches_form_over_http(case: Case, subject: Subject, judge: Judge) -> None:
    c, tokens = case["c"], 6
    requests = [ClientRequest("completions", bool(i % 2), request_data.make_body(
        "completions", "the", max_tokens=tokens, seed=i, ignore_eos=True)) for i in range(c)]
    with capture_batch_log() as lines, Harness(subject, judge, slots=16) as harness:
        harness.ask_all(requests)
        steps = len(harness.steps.widths)
        judge.engaged(m_formed=harness.service.scheduler.counts.formed, steps=steps)
        harness.check_equal("log", lines, [f"Batch m={c}"])
        harness.check_equal("rows of each step", harness.steps.widths, [c] * tokens)
        harness.check_equal("rowtwin_formed", harness.read_metric("rowtwin_formed"), float(c))
        harness.check_equal("rowtwin_batch_size_sum", harness.read_metric("rowtwin_batch_size_sum"),
                            float(c * steps))
        harness.check_equal("rowtwin_batch_size_count",
                            harness.read_metric("rowtwin_batch_size_count"), float(steps))


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
        check_equal(judge, "token", one.token, reference.pick(logits[row], option, row), row=row)
        expected = [one.token, *reference.ranked(logits[row])[:5]]
        check_equal(judge, "likeliest tokens", [t for t, _ in one.top], expected[1:], row=row)
        judge.equal("log-probs", torch.tensor([one.logprob, *(v for _, v in one.top)]),
                    torch.tensor([log_softmax_at(logits[row], t) for t in expected]), row=row)
    engine_checks.check_frequencies(subject, judge, case["seed"])


def test_one_live_request_keeps_its_turn(case: Case, subject: Subject, judge: Judge) -> None:
    with Harness(subject, judge) as harness:
        SessionTurns(harness, subject, judge).run(case["kind"])
        harness.idle()


def test_stop_strings_cut_whole_texts(case: Case, subject: Subject, judge: Judge) -> None:
    text, stops = request_data.STOP_CASES[case["text"]]
    with Harness(subject, judge, template=request_data.PLAIN_TEMPLATE) as harness:
        text_tokens = harness.tokenizer.encode(text)
        want, tokens = request_data.cut_at_stop(text, stops), request_data.tokens_to_stop(
            harness.tokenizer, text_tokens, stops)
        total = len(text_tokens) + 1 if tokens is None else tokens
        for limit in (total, total + 3):
            requests = [ClientRequest(endpoint, stream,
                                      request_data.echo_body(endpoint, text, max_tokens=limit,
                                                             stop=stops, top=0))
                        for endpoint in ("completions", "chat") for stream in (False, True)]
            before, replies = len(harness.steps.widths), harness.ask_all(requests)
            harness.check_equal("steps", len(harness.steps.widths) - before,
                                -(-(len(text_tokens) + 1) // harness.chunk) + total - 1,
                                limit=limit)
            for request, got in zip(requests, replies, strict=True):
                where: dict[str, int | str] = {"endpoint": request.endpoint,
                                               "stream": str(request.stream), "limit": limit}
                harness.check_equal("text", got.text, text if want is None else want, **where)
                harness.check_equal("finish_reason", got.reason, "stop", **where)
                harness.check_equal("completion_tokens", got.usage["completion_tokens"], total,
                                    **where)
                harness.check_equal("tokens reported", len(got.ids), total, **where)
                harness.check_equal("log-probs reported", len(got.logprobs), total, **where)
        harness.idle()


def test_streams_show_whole_characters(case: Case, subject: Subject, judge: Judge) -> None:
    with Harness(subject, judge, template=request_data.PLAIN_TEMPLATE) as harness:
        tokens = engine_checks.scripted_tokens(harness.tokenizer, case["text"])
        for limit in range(1, len(tokens) + 1):
            request = ClientRequest("completions", True,
                                    engine_checks.body_to_say(harness.tokenizer, tokens, limit))
            got = harness.ask(request)
            harness.check_equal("text", got.text, harness.tokenizer.decode(tokens[:limit]),
                                limit=limit)
            if case["text"] == "whole":
                broken = [i for i, part in enumerate(got.texts[:-1]) if "\ufffd" in part]
                harness.check_equal("chunks with broken characters", broken, [], limit=limit)


def test_replies_end_for_their_own_reason(case: Case, subject: Subject, judge: Judge) -> None:
    with Harness(subject, judge, template=request_data.PLAIN_TEMPLATE) as harness:
        requests, wants = engine_checks.requests_by_ending(case["endpoint"], case["stream"],
                                                           harness.tokenizer)
        for number, (got, want) in enumerate(zip(harness.ask_all(requests), wants, strict=True)):
            request, (reason, count, top) = requests[number], want
            prompt = len(harness.tokenizer.encode(request.body["prompt"]))
            usage = {"prompt_tokens": prompt, "completion_tokens": count,
                     "total_tokens": prompt + count, "prompt_tokens_details": {"cached_tokens": 0}}
            harness.check_equal("finish_reason", got.reason, reason, request=number)
            harness.check_equal("usage", got.usage, usage, request=number)
            harness.check_equal("tokens reported", len(got.ids), count, request=number)
            harness.check_equal("likely tokens reported", got.top_counts, [] if top is None
                                else [top] * count, request=number)
            harness.check_equal("text", got.text, harness.tokenizer.decode(got.ids), request=number)
        harness.idle()


def test_bad_requests_are_refused_by_field(case: Case, subject: Subject, judge: Judge) -> None:
    chat = case["endpoint"] == "chat"
    data = request_data
    endpoint, good = ("chat/completions", data.CHAT) if chat else ("completions", data.GOOD)
    table = {**data.EVERYWHERE, **(data.CHATS if chat else data.COMPLETIONS)}
    with Harness(subject, judge, body=2048) as harness:
        want = harness.post({"model": "nano", **good, "seed": 1}, endpoint).json()["choices"]
        before = harness.barrier.accepted
        for name, (change, status, field) in table.items():
            body = {k: v for k, v in {"model": "nano", **good, **change}.items() if v is not ...}
            attacks.check_refusal(harness, name, harness.post(body, endpoint), status, field)
        for name, (raw, status, field) in request_data.RAW_BODIES.items():
            attacks.check_refusal(harness, name, harness.post(raw, endpoint), status, field)
        attacks.check_early_refusals(harness, endpoint)
        harness.check_equal("requests accepted", harness.barrier.accepted, before)
        got = harness.post({"model": "nano", **good, "seed": 1}, endpoint).json()["choices"]
        harness.check_equal("a good reply afterwards", got, want)
        harness.idle()
    attacks.check_long_texts(subject, judge, endpoint)


def test_strangers_stay_outside(case: Case, subject: Subject, judge: Judge) -> None:
    with Harness(subject, judge, key="sesame") as harness:
        for header in ({}, {"authorization": "Bearer"}, {"authorization": "Bearer sesam"},
                       {"authorization": "Bearer sesames"}, {"authorization": "sesame"}):
            for path in ("completions", "chat/completions"):
                answer = harness.post({"model": "nano", **request_data.GOOD}, path, **header)
                harness.check_equal("status", answer.status_code, 401, path=path,
                                    header=str(header))
            answer = harness.http.get("/v1/models", headers=header)
            harness.check_equal("status", answer.status_code, 401, path="models",
                                header=str(header))
        harness.check_equal("requests accepted", harness.barrier.accepted, 0)
        reply = harness.ask(request_data.four_requests("completions", "whole", 2)[0])
        harness.check_equal("tokens with the right key", len(reply.ids), 2)


def test_a_full_queue_answers_429(case: Case, subject: Subject, judge: Judge) -> None:
    slots, queue = case["slots"], case["queue"]
    request = request_data.four_requests("completions", "whole", 3)[1]
    with Harness(subject, judge, slots=slots, queue=queue) as harness:
        futures = harness.hold([request] * (slots + queue))
        for endpoint, body in (("completions", request_data.GOOD),
                               ("chat/completions", request_data.CHAT)):
            answer = harness.post({"model": "nano", **body}, endpoint)
            attacks.check_refusal(harness, "one-too-many", answer, 429, None)
            harness.law(answer.headers.get("retry-after", "").isdigit(), "a 429 has no Retry-After")
        harness.barrier.release()
        raws = {harness.result(future).raw for future in futures}
        harness.check_equal("different replies to one request", len(raws), 1)
        harness.check_equal("reply afterwards", {harness.ask(request).raw}, raws)
        harness.idle()


def test_disconnects_free_their_slots(case: Case, subject: Subject, judge: Judge) -> None:
    draw = random.Random(case["seed"])
    with Harness(subject, judge, slots=4, queue=64, context=600) as harness:
        alone: dict[str, str] = {}
        for _ in range(case["waves"]):
            attacks.run_client_wave(harness, draw, case["clients"], alone)
            harness.idle()
        left = int(harness.read_metric('rowtwin_ended_total{reason="disconnect"}'))
        harness.law(left > case["waves"], f"only {left} disconnects were counted")
        harness.stop()
        harness.check_equal("sinks left", len(harness.service.driver._sinks), 0)
        harness.check_equal("no request left", harness.service.scheduler.idle, True)
        gc.collect()
        leaked = sum(issubclass(type(thing), Reply) for thing in gc.get_objects())
        harness.check_equal("replies left", leaked, 0)


def test_handlers_never_wait_for_a_step(case: Case, subject: Subject, judge: Judge) -> None:
    with Harness(subject, judge, context=600) as harness:
        attacks.check_during_step(harness)
        harness.idle()


def test_engine_errors_reach_every_client(case: Case, subject: Subject, judge: Judge) -> None:
    with Harness(subject, judge) as harness:
        attacks.check_engine_errors(harness, case["trouble"])


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
    with Harness(subject, judge) as harness:
        for number, (messages, text) in enumerate(request_data.CHAT_TURNS):
            answer = harness.post({"model": "nano", "messages": messages, "max_tokens": 1,
                                   "return_token_ids": True}, "chat/completions").json()
            want = harness.tokenizer.encode(text + "<|im_start|>assistant\n")
            harness.check_equal("prompt", answer.get("prompt_token_ids"), want, chat=number)
    refuses = "{{ raise_exception('roles must alternate') }}"
    with Harness(subject, judge, template=refuses) as harness:
        answer = harness.post({"model": "nano", **request_data.CHAT}, "chat/completions")
        attacks.check_refusal(harness, "the-template-objects", answer, 400, "messages")
        harness.law("roles must alternate" in answer.text,
                    "the refusal lacks the template's message")


def test_shutdown_drains(case: Case, subject: Subject, judge: Judge) -> None:
    requests = request_data.four_requests("mixed", "mixed", 3)
    with Harness(subject, judge, slots=2) as harness:
        alone = [harness.ask(request).raw for request in requests]
        attacks.check_drain(harness, requests, alone)


def test_memory_has_a_budget(case: Case, subject: Subject, judge: Judge) -> None:
    model, slots, context = subject.models("nano"), case["slots"], case["context"]
    one = model.new_pool(1, context).nbytes
    engine = subject.stack.engine(model, subject.path, Limits(slots, context, slots * one))
    check_equal(judge, "bytes of state", engine.pool.nbytes, slots * one)
    for more, less in ((0, 1), (1, 0), (10 ** 9, 0)):  # the last exceeds any memory
        limits = Limits(slots + more, context, slots * one - less)
        engine_checks.expect_refusal(judge, f"{slots + more} slots", f"{slots * one - less:,}",
                                     partial(subject.stack.engine, model, subject.path, limits))
    for name, tokens in (("a token outside", (1, 509)), ("a long prompt", (1,) * (context + 1))):
        request = Request("bad", tokens, 1)
        engine_checks.expect_refusal(judge, name, "509" if "outside" in name else str(context),
                                     partial(engine.add_slot, request))
        pair = [replace(request, tokens=(1,)), request]
        engine_checks.expect_refusal(judge, name, "", partial(engine.start_batch, pair))
        check_equal(judge, f"slots taken after {name}", len(engine.tenants), 0)
    for wrong in ({"temperature": -1.0}, {"top_p": 0.0}, {"seed": -1}, {"top": 21}):
        engine_checks.expect_refusal(judge, str(wrong), next(iter(wrong)),
                                     partial(Sampling, **wrong))
