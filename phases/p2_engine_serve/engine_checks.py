"""Checks below HTTP: an engine's rows compared with solo runs, and draws with their weights."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from engine.arithmetic import exp
from engine.errors import InputError
from engine.tokenizer import Tokenizer
from engine.vocabulary import END_TOKEN, PAD_TOKEN, byte_letters
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from phases.p0_scheduler.increment import Emitted, Event, Request, Settings, Token
from phases.p2_engine_serve import request_data
from phases.p2_engine_serve.client_reply import ClientReply, ClientRequest
from phases.p2_engine_serve.fake_path import make_fake_path
from phases.p2_engine_serve.harness import Harness, check_equal, load_tokenizer
from phases.p2_engine_serve.hybrid_engine import HybridEngine, Limits
from phases.p2_engine_serve.sampling import Sampling

TOKENS = 6
DRAWS = 2000


def expect_refusal(judge: Judge, name: str, words: str, call: Callable[[], object]) -> None:
    """Expect a call to raise `InputError` with `words` in its message."""
    try:
        call()
    except InputError as refusal:
        judge.law(words in str(refusal), f"the refusal of {name} is {str(refusal)!r}, "
                  f"without {words!r}")
    else:
        judge.law(False, f"{name} is not refused")


class MixedRequests:
    """Six requests with different prompts and options for one engine."""

    samplings = (Sampling(top=3), Sampling(1.0, seed=7), Sampling(1.0, seed=8, top=1),
                 Sampling(5.0, top_k=1, seed=9), Sampling(0.8, top_p=0.9, seed=10),
                 Sampling(1.0, seed=7, top=20))
    prompts = ((30, 31), (30, 31), (30, 31), (30, 31), tuple(range(40, 60)), (30, 31))

    def __init__(self, subject: Subject, judge: Judge) -> None:
        self.subject, self.judge = subject, judge
        self.requests = [Request(f"r{i}", prompt, TOKENS, frozenset(), sampling) for i, (
            prompt, sampling) in enumerate(zip(self.prompts, self.samplings, strict=True))]
        self.solo_streams = [without_slots(itertools.islice(self._engine().run_single(request),
                                                            TOKENS)) for request in self.requests]

    def serve(self, order: Sequence[int], late: int) -> None:
        """Serve all in an order, the last ones `late` steps later; compare each with solo."""
        engine = self._engine()
        scheduler = self.subject.stack.scheduler(
            engine, Settings(slots=6, queue=6, chunk=8, context=64))
        events: list[Event] = []
        for number, which in enumerate(order):
            if number == 3:
                for _ in range(late):
                    events += scheduler.step()
            scheduler.submit(self.requests[which])
        while not scheduler.idle:
            events += scheduler.step()
        for which, solo in enumerate(self.solo_streams):
            got = without_slots(e.emitted for e in events if isinstance(e, Token)
                                and e.id == f"r{which}")
            check_equal(self.judge, "tokens and log-probs", got, solo, request=which,
                        order=str(order), late=late)

    def check_options(self) -> None:
        """Check that the solo streams follow their options."""
        tokens = [[token for token, _, _ in one] for one in self.solo_streams]
        check_equal(self.judge, "top_k 1 at a high temperature", tokens[3], tokens[0])
        check_equal(self.judge, "the same seed again", tokens[5], tokens[1])
        self.judge.law(tokens[1] != tokens[2], "two seeds give one stream")
        self.judge.law(tokens[1] != tokens[0], "a temperature of 1 gives the greedy stream")

    def _engine(self) -> HybridEngine:
        model = self.subject.models("nano")
        ids = load_tokenizer(model.path).tokens
        path = make_fake_path(self.subject.path, ids.index(PAD_TOKEN), ids.index(END_TOKEN))
        engine: HybridEngine = self.subject.stack.engine(model, path, Limits(6, 64))
        return engine


def without_slots(emitted: Any) -> list[tuple[int, float, Any]]:
    """Return tokens with their log-probs, without the slot, which may differ."""
    return [(one.token, one.logprob, one.top) for one in emitted if isinstance(one, Emitted)]


def tied_logits(seed: int, count: int, vocab: int) -> Tensor:
    """Return logits f32[count, vocab] with ties among the largest of each row."""
    logits = torch.randn(count, vocab, generator=torch.Generator().manual_seed(seed)) * 3
    for row in range(count):
        order = logits[row].argsort(descending=True)
        tied = order[0:2] if row % 3 == 0 else order[1:3]
        logits[row, tied] = float(logits[row, tied[0]])
        logits[row, order[4:8]] = float(logits[row, order[4]])
    return logits


def check_frequencies(subject: Subject, judge: Judge, seed: int) -> None:
    """Compare token frequencies, over one request's draws and over seeds, with their weights."""
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 1.5, 0.5])
    weights = exp(logits - logits.max()).double()
    share = (weights / weights.sum()).tolist()
    for over in ("numbers", "seeds"):
        options = [Sampling(1.0, seed=seed + i * (over == "seeds")) for i in range(DRAWS)]
        numbers = [i * (over == "numbers") for i in range(DRAWS)]
        drawn = subject.stack.engine.draw(logits.repeat(DRAWS, 1), [2] * DRAWS, options, numbers)
        count = Counter(one.token for one in drawn)
        away = max(abs(count[token] / DRAWS - share[token]) for token in range(len(share)))
        judge.law(away < 0.05, f"over {DRAWS} {over} a token's frequency differs by {away:.3f} "
                  f"from its probability")


def check_against_oracle(harness: Harness, requests: Sequence[ClientRequest],
                         replies: Sequence[ClientReply]) -> None:
    """Compare replies of a real model with `forward_single`, one request after another."""
    ends = harness.tokenizer.end_ids
    engine_requests = []
    for number, request in enumerate(requests):
        prompt = harness.tokenizer.encode(request_data.expected_prompt(request))
        option = {k: request.body[k] for k in ("temperature", "top_k", "top_p", "seed")
                  if k in request.body}
        engine_requests.append(Request(str(number), tuple(prompt), request.body["max_tokens"], ends,
                                       Sampling(**option)))
    served = harness.subject.stack.serial(harness.engine, engine_requests, ends)
    for number, (request, got, want) in enumerate(zip(requests, replies, served, strict=True)):
        tokens, stops = [one.token for one in want.emitted], request.body.get("stop", [])
        count = request_data.tokens_to_stop(harness.tokenizer, tokens, stops) or len(tokens)
        text = harness.tokenizer.decode(tokens[:count])
        cut = request_data.cut_at_stop(text, stops)
        harness.check_equal("text", got.text, text if cut is None else cut, request=number)
        harness.check_equal("tokens", got.ids, tokens[:count], request=number)
        if got.logprobs:
            harness.judge.equal("log-probs", torch.tensor(got.logprobs), torch.tensor(
                [one.logprob for one in want.emitted[:count]]), rule="truth", request=number)


def scripted_tokens(tokenizer: Tokenizer, kind: str) -> list[int]:
    """Return tokens of complete characters (`whole`), or tokens with broken characters."""
    if kind == "whole":
        return tokenizer.encode("né 😀 日本 x")
    letters = byte_letters()
    raw = b"\xf0\x9fa\xe6\x97\xa5\x80b\xc3"
    return [tokenizer.tokens.index(letters[byte]) for byte in raw]


def body_to_say(tokenizer: Tokenizer, tokens: Sequence[int], limit: int) -> dict[str, Any]:
    """Return a body that makes the fake path emit the first `limit` of some tokens."""
    return {"prompt": [*tokens, tokenizer.tokens.index(PAD_TOKEN)], "max_tokens": limit}


def requests_by_ending(endpoint: str, stream: bool, tokenizer: Tokenizer,
            ) -> tuple[list[ClientRequest], list[tuple[str, int, int | None]]]:
    """Return requests that end differently, with the reason, tokens and top of each."""
    short, long = len(tokenizer.encode("time")), len(tokenizer.encode("one of the"))
    plans: list[tuple[str, int, int | None, dict[str, Any], str, int]] = [
        ("time", 50, None, {}, "stop", short + 1),
        ("one of the", long - 1, 2, {}, "length", long - 1),
        ("time", short + 4, 0, {"ignore_eos": True}, "length", short + 4),
        ("one of the", long + 1, 5, {}, "stop", long + 1)]
    requests = [ClientRequest(endpoint, stream,
                              request_data.echo_body(endpoint, text, top=top, max_tokens=limit,
                                                     **more)) for text, limit, top, more, _,
                _ in plans]
    return requests, [(reason, count, top) for _, _, top, _, reason, count in plans]
