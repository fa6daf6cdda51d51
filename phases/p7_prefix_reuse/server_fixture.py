"""A server on the loopback, and a client that reads its reported reuse."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

from engine.gguf_file import open_gguf
from engine.tokenizer import Tokenizer
from falsifiers.judging.batch_driver import make_prompt
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from phases.p2_engine_serve.increment import Limits, Server, Terms, address, bound

WAIT_SECONDS = 60.0
STORE_BUDGET = 64 << 20


@dataclass(frozen=True)
class ServerFixture:
    """One client of one server."""

    url: str

    def complete(self, tokens: Sequence[int]) -> dict[str, Any]:
        """Return the body that answers a completion of four tokens."""
        body: dict[str, Any] = json.loads(self._fetch("/v1/completions", {
            "model": "m", "prompt": list(tokens), "max_tokens": 4, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True, "logprobs": 3}))
        return body

    def read_metric(self, name: str) -> float:
        """Return a metric of the server, or -1."""
        lines = self._fetch("/metrics").splitlines()
        return next((float(line.split()[1]) for line in lines if line.startswith(f"{name} ")), -1.0)

    def _fetch(self, path: str, body: dict[str, Any] | None = None) -> str:
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.url + path, data, {"Content-Type": "application/json"})
        with build_opener(ProxyHandler({})).open(request, timeout=WAIT_SECONDS) as answer:
            text: str = answer.read().decode()
        return text


@contextmanager
def run_server(subject: Subject, budget: int) -> Iterator[ServerFixture]:
    """Serve `nano` on the subject's stack and path, with a store of `budget` bytes."""
    stack, model = subject.stack, subject.models("nano")
    tokenizer = Tokenizer.from_metadata(open_gguf(model.path).metadata, model.config.vocab)
    engine = stack.engine(model, subject.path, Limits(2, 64),
                          stack.prefixes(model, subject.path, budget))
    service = stack.service(stack, engine, tokenizer, Terms("m", grace=WAIT_SECONDS))
    listening = bound("127.0.0.1", 0)
    server = Server(service)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield ServerFixture(address(listening))
    finally:
        server.should_exit = True
        thread.join(WAIT_SECONDS)
        listening.close()


def check_chat(subject: Subject, judge: Judge, turns: int) -> None:
    """Compare every turn of a chat, except its usage, with a server without a store."""
    text = list(make_prompt(1, 14, subject.models("nano").config.vocab))
    expected, total, hits = 0, 0, 0
    with run_server(subject, STORE_BUDGET) as warm, run_server(subject, 0) as cold:
        for turn in range(turns):
            cold.complete([7])  # so that no session turn is continued either
            got, want = warm.complete(text), cold.complete(text)
            judge.law(got["choices"] == want["choices"], f"turn {turn} is answered with "
                      f"{got['choices']}, but without a store with {want['choices']}", turn=turn)
            cached = got["usage"]["prompt_tokens_details"]["cached_tokens"]
            judge.law(cached == expected, f"turn {turn} reports {cached} cached tokens, but "
                      f"{expected} are stored", turn=turn)
            judge.law(got["usage"]["prompt_tokens"] == len(text), f"turn {turn} reports "
                      f"{got['usage']['prompt_tokens']} prompt tokens, but has {len(text)}")
            total, hits = total + expected, hits + (expected > 0)
            reply = got["choices"][0]["token_ids"]
            expected, text = len(text) + len(reply) - 1, [*text, *reply, 5, 6]
        for name, value in (("prefix_reused_total", total), ("prefix_hits_total", hits),
                            ("reused_total", total), ("prefix_checkpoints", turns),
                            ("prefix_budget", STORE_BUDGET)):
            reported = warm.read_metric(f"rowtwin_{name}")
            judge.law(reported == value, f"rowtwin_{name} is {reported:g}, but should be {value}")
        judge.law(0 < warm.read_metric("rowtwin_prefix_bytes") <= STORE_BUDGET,
                  "rowtwin_prefix_bytes is outside 1 to the budget")
