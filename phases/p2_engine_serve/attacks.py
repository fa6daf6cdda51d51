"""Attacks over HTTP: what is refused, who leaves, what fails, what a step may hold up."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import httpx2
import openai

from engine.errors import InputError
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from phases.p2_engine_serve import request_data
from phases.p2_engine_serve.client_reply import Ask
from phases.p2_engine_serve.harness import Site, with_template
from phases.p2_engine_serve.step_barrier import PATIENCE

LONG: dict[str, Any] = {"prompt": "the one of", "max_tokens": 500, "ignore_eos": True, "seed": 3}
CULPRIT = 99
"""A token that no other prompt has, and no reply is likely to say."""


def hold_refusal(site: Site, name: str, answer: httpx2.Response, status: int,
                 field: str | None) -> None:
    """Hold an answer to be an error in the API's shape with the right status and field."""
    site.same("status", answer.status_code, status, request=name)
    error = answer.json().get("error", {})
    site.same("keys of the error", sorted(error), ["code", "message", "param", "type"],
              request=name)
    site.same("param", error["param"], field, request=name)
    told = str(error["message"])
    site.law(bool(told) and "Traceback" not in told and len(told) < 500,
             f"the refusal of {name} says {told[:600]!r}")


def hold_doors(site: Site, endpoint: str) -> None:
    """Hold what is refused before a body is read."""
    url = f"/v1/{endpoint}"
    good = b'{"model": "nano"}'
    text = site.http.post(url, content=good, headers={"content-type": "text/plain"})
    hold_refusal(site, "text", text, 415, None)
    hold_refusal(site, "get", site.http.get(url), 405, None)
    hold_refusal(site, "no-such-route", site.http.get("/v1/embeddings"), 404, None)
    hold_refusal(site, "slash-behind", site.http.post(f"{url}/", content=good), 404, None)
    for page in ("/health", "/metrics", "/v1/models"):
        head = site.http.head(page)
        site.same("HEAD", (head.status_code, head.content), (200, b""), page=page)
    start = f"POST {url} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    chunk = "800\r\n" + "x" * 0x800 + "\r\n"
    for name, rest in (("chunked", f"Transfer-Encoding: chunked\r\n\r\n{chunk}{chunk}0\r\n\r\n"),
                       ("announced", f"Content-Length: {10 ** 12}\r\n\r\n")):
        with socket.create_connection(site.socket.getsockname(), PATIENCE) as line:
            line.sendall((start + rest).encode())
            status = line.recv(64).split(b" ")[1:2]
        site.same("status", status, [b"413"], request=f"too-large-{name}")


def hold_long_texts(subject: Subject, judge: Judge, endpoint: str) -> None:
    """Hold a text whose bytes cannot fit the context to be refused before it is encoded."""
    with Site(subject, judge, context=8, template=request_data.PLAIN) as site:
        tokenizer = with_template(site.tokenizer, request_data.PLAIN)
        encode, encoded = tokenizer.encode, list[int]()

        def counted(text: str) -> list[int]:
            encoded.append(len(text))
            return encode(text)

        vars(tokenizer)["encode"] = counted
        site.service.tokenizer = tokenizer
        most, chat = 8 * max(len(token.encode()) for token in tokenizer.tokens), "chat" in endpoint
        for text, want in (("x" * (most + 1), []), ("é" * most, []), ("x" * 9, [9])):
            body = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
            answer = site.post({"model": "nano", **body}, endpoint)
            hold_refusal(site, "long", answer, 400, "messages" if chat else "prompt")
            site.same("code", answer.json()["error"]["code"], "context_length_exceeded")
            site.same("letters encoded", encoded, want, letters=len(text))


# Clients that leave.

def wave(site: Site, draw: random.Random, clients: int, alone: dict[str, str]) -> None:
    """Let clients come at once, some of whom leave after some steps; hold the others."""
    stay: list[tuple[Ask, Future[Any]]] = []
    leave: list[socket.socket] = []
    site.gate.hold()
    for number in range(clients):
        if number and draw.random() < 0.6:
            ask = random_ask(draw)
            stay.append((ask, site.accepted(partial(site.ask, ask))))
        else:
            leave.append(site.leaver(Ask("completions", draw.random() < 0.5, LONG)))
    site.law(site.gate.let(draw.randrange(6)), "steps are never done")
    for line in leave:
        line.close()
    came = site.gate.wait_for(lambda: site.gate.cancelled >= len(leave))
    site.law(came, f"of {len(leave)} clients who left, {site.gate.cancelled} requests were "
                   f"cancelled while no step was done")
    site.gate.release()
    replies = [(ask, site.result(future)) for ask, future in stay]
    for ask, got in replies:  # who asks alone must not meet who still waits
        key = repr(ask)
        if key not in alone:
            alone[key] = site.ask(ask).raw
        site.same("reply", got.raw, alone[key], ask=key)


def random_ask(draw: random.Random) -> Ask:
    """Return one of a few hundred short requests."""
    endpoint, prompt = draw.choice(["completions", "chat"]), draw.choice(request_data.PROMPTS)
    return Ask(endpoint, draw.random() < 0.5, request_data.body(
        endpoint, prompt, draw.choice(request_data.TOPS), max_tokens=draw.randint(1, 6),
        seed=draw.randrange(5)))


def while_a_step_runs(site: Site) -> None:
    """Hold everything but tokens to go on while a step runs, and who leaves to be gone after it."""
    asks = [random_ask(random.Random(f"held {i}")) for i in range(3)]
    alone = [site.ask(ask).raw for ask in asks]
    site.gate.hold()
    site.gate.release()
    site.steps.inside.clear()
    site.steps.resume.clear()
    line = site.leaver(Ask("completions", True, LONG))
    site.law(site.steps.inside.wait(PATIENCE), "the engine never steps")
    before = len(site.steps.widths)
    for path in ("/health", "/metrics", "/v1/models"):
        _answers(site, path, partial(site.http.get, path), 200)
    for endpoint in ("completions", "chat/completions"):
        _answers(site, f"a bad request to {endpoint}", partial(site.post, {}, endpoint), 400)
    futures = [site.accepted(partial(site.ask, ask)) for ask in asks]
    waiting = site.leaver(Ask("completions", False, LONG))
    for one in (line, waiting):
        one.close()
    site.law(site.gate.wait_for(lambda: site.gate.cancelled == 2),
             "who leaves while a step runs is not cancelled")
    site.steps.resume.set()
    for future, want in zip(futures, alone, strict=True):
        site.same("reply", site.result(future).raw, want)
    site.same("rows of the widest step since", max(site.steps.widths[before + 1:]), len(asks))
    site.same("disconnects", site.metric('rowtwin_ended_total{reason="disconnect"}'), 2.0)


def _answers(site: Site, name: str, call: Callable[[], httpx2.Response], status: int) -> None:
    try:
        got = call().status_code
    except httpx2.TimeoutException:
        got = 0
    site.law(got == status, f"{name} is answered by {got} while a step runs, where 0 is silence")


def drained(site: Site, asks: Sequence[Ask], alone: Sequence[str]) -> None:
    """Hold a shutdown to serve what was accepted, and nothing more."""
    site.gate.hold()
    futures = [site.accepted(partial(outcome, site, ask)) for ask in asks]
    closing = site.crowd.submit(site.service.close)
    closed = site.gate.wait_for(lambda: bool(site.service.scheduler.closed))
    site.law(closed, "the service does not close")
    hold_refusal(site, "too-late", site.post({"model": "nano", **request_data.GOOD}), 503, None)
    site.same("health", site.http.get("/health").status_code, 503)
    site.gate.release()
    for number, future in enumerate(futures):
        site.same("outcome", future.result(60.0), alone[number], request=number)
    closing.result(60.0)
    site.same("where the pool is", site.engine.pool.device, "meta")
    site.same("the engine's thread runs", site.service.driver._thread.is_alive(), False)


# Trouble.

def with_trouble(site: Site, kind: str) -> None:
    """Let steps fail in one way while five requests run, and hold each of them to its own end."""
    asks = [random_ask(random.Random(f"trouble {i}")) for i in range(4)]
    asks.insert(2, Ask("completions", kind == "row", {"prompt": [50, CULPRIT], "max_tokens": 3,
                                                           "seed": 5}))
    alone = [outcome(site, ask) for ask in asks]
    left = [1 if kind == "once" else 10 ** 6]

    def trouble(tokens: Sequence[int]) -> bool:
        if kind in ("row", "nan") and CULPRIT not in tokens:
            return False
        left[0] -= 1
        if left[0] >= 0 and kind != "nan":
            raise RuntimeError("the device is lost")
        return kind == "nan"

    def no_reset() -> None:
        raise RuntimeError("the device is gone")

    if kind == "dead":
        site.engine.reset = no_reset
    site.steps.trouble = trouble
    site.gate.hold()
    futures = [site.accepted(partial(outcome, site, ask)) for ask in asks]
    site.gate.release()
    got = [future.result(60.0) for future in futures]
    for number, (one, want) in enumerate(zip(got, alone, strict=True)):
        fails = kind in ("always", "dead") or (kind in ("row", "nan") and number == 2)
        site.same("outcome", one[:6] if fails else one, "error:" if fails else want, request=number)
    site.steps.trouble = lambda tokens: False
    after = outcome(site, asks[0])
    site.same("outcome afterwards", after[:6] if kind == "dead" else after,
              "error:" if kind == "dead" else alone[0])
    site.same("health", site.http.get("/health").status_code, 503 if kind == "dead" else 200)
    if kind != "dead":
        site.idle()


def outcome(site: Site, ask: Ask) -> str:
    """Return a reply, or `error:` with what the official client makes of it."""
    try:
        return site.ask(ask).raw
    except openai.APITimeoutError:
        return "nothing"
    except openai.APIError as error:
        return f"error: {error.message}"


def hold_hostile(judge: Judge, template: Any, trap: str, *, broken: bool) -> None:
    """Hold a template to be refused in one sentence; a broken one is not run again."""
    ask, asked = template._ask, list[str]()

    def counted(line: str) -> Any:
        asked.append(line)
        return ask(line)

    template._ask = counted
    for _ in range(2):
        try:
            text = template.render([{"role": "user", "content": trap}])
        except InputError as refusal:
            told = str(refusal)
            judge.law("\n" not in told and len(told) < 700, f"the refusal says {told!r}")
        else:
            judge.law(False, f"the template was run and wrote {text[:100]!r}")
    judge.law(len(asked) < 2 or not broken, "a template that is broken is run again")


def hold_next_chat(subject: Subject, judge: Judge) -> None:
    """Hold a template that goes too far in one chat to serve the next one."""
    for name, source in request_data.ONE_CHAT.items():
        template = subject.stack.template("{% set m = messages[0].content %}{% if m|length > 9 %}"
                                          f"{source}{{% endif %}}ok", seconds=1.5)
        try:
            told = ""
            try:
                template.render([{"role": "user", "content": "x" * 2000}])
            except InputError as refusal:
                told = str(refusal)
            judge.law(bool(told), f"a template that fails by {name} was served")
            text = _rendered(template)
        finally:
            template.close()
        judge.law(text == "ok", f"the chat behind one that failed by {name} got {text!r}")


def _rendered(template: Any) -> str:
    try:
        return str(template.render([{"role": "user", "content": "x"}]))
    except InputError as refusal:
        return str(refusal)


def hold_server_with_bad_template(subject: Subject, judge: Judge) -> None:
    """Hold a server whose file has a broken template to refuse chats and serve completions."""
    with Site(subject, judge, template=request_data.HOSTILE["no-template"]) as site:
        for _ in range(2):
            answer = site.post({"model": "nano", **request_data.CHAT}, "chat/completions")
            hold_refusal(site, "chat", answer, 400, "messages")
        site.same("status", site.post({"model": "nano", **request_data.GOOD}).status_code, 200)
