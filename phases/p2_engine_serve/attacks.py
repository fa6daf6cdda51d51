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
from phases.p2_engine_serve.client_reply import ClientRequest
from phases.p2_engine_serve.harness import Harness, with_template
from phases.p2_engine_serve.step_barrier import WAIT_SECONDS

LONG_BODY: dict[str, Any] = {
    "prompt": "the one of",
    "max_tokens": 500,
    "ignore_eos": True,
    "seed": 3,
}
CULPRIT_TOKEN = 99
"""A token that no other prompt has, and no reply is likely to say."""


def check_refusal(site: Harness, name: str, answer: httpx2.Response, status: int,
                 field: str | None) -> None:
    """Hold an answer to be an error in the API's shape with the right status and field."""
    site.check_equal("status", answer.status_code, status, request=name)
    error = answer.json().get("error", {})
    site.check_equal("keys of the error", sorted(error), ["code", "message", "param", "type"],
              request=name)
    site.check_equal("param", error["param"], field, request=name)
    told = str(error["message"])
    site.law(bool(told) and "Traceback" not in told and len(told) < 500,
             f"the refusal of {name} says {told[:600]!r}")


def check_early_refusals(site: Harness, endpoint: str) -> None:
    """Hold what is refused before a body is read."""
    url = f"/v1/{endpoint}"
    good = b'{"model": "nano"}'
    text = site.http.post(url, content=good, headers={"content-type": "text/plain"})
    check_refusal(site, "text", text, 415, None)
    check_refusal(site, "get", site.http.get(url), 405, None)
    check_refusal(site, "no-such-route", site.http.get("/v1/embeddings"), 404, None)
    check_refusal(site, "slash-behind", site.http.post(f"{url}/", content=good), 404, None)
    for page in ("/health", "/metrics", "/v1/models"):
        head = site.http.head(page)
        site.check_equal("HEAD", (head.status_code, head.content), (200, b""), page=page)
    start = f"POST {url} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    chunk = "800\r\n" + "x" * 0x800 + "\r\n"
    for name, rest in (("chunked", f"Transfer-Encoding: chunked\r\n\r\n{chunk}{chunk}0\r\n\r\n"),
                       ("announced", f"Content-Length: {10 ** 12}\r\n\r\n")):
        with socket.create_connection(site.socket.getsockname(), WAIT_SECONDS) as line:
            line.sendall((start + rest).encode())
            status = line.recv(64).split(b" ")[1:2]
        site.check_equal("status", status, [b"413"], request=f"too-large-{name}")


def check_long_texts(subject: Subject, judge: Judge, endpoint: str) -> None:
    """Hold a text whose bytes cannot fit the context to be refused before it is encoded."""
    with Harness(subject, judge, context=8, template=request_data.PLAIN_TEMPLATE) as site:
        tokenizer = with_template(site.tokenizer, request_data.PLAIN_TEMPLATE)
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
            check_refusal(site, "long", answer, 400, "messages" if chat else "prompt")
            site.check_equal("code", answer.json()["error"]["code"], "context_length_exceeded")
            site.check_equal("letters encoded", encoded, want, letters=len(text))


# Clients that leave.

def run_client_wave(site: Harness, draw: random.Random, clients: int,
                    alone: dict[str, str]) -> None:
    """Let clients come at once, some of whom leave after some steps; hold the others."""
    stay: list[tuple[ClientRequest, Future[Any]]] = []
    leave: list[socket.socket] = []
    site.barrier.hold()
    for number in range(clients):
        if number and draw.random() < 0.6:
            ask = random_request(draw)
            stay.append((ask, site.accepted(partial(site.ask, ask))))
        else:
            leave.append(site.ask_over_socket(ClientRequest("completions", draw.random() < 0.5,
                                                            LONG_BODY)))
    site.law(site.barrier.allow_steps(draw.randrange(6)), "steps are never done")
    for line in leave:
        line.close()
    came = site.barrier.wait_for(lambda: site.barrier.cancelled >= len(leave))
    site.law(came, f"of {len(leave)} clients who left, {site.barrier.cancelled} requests were "
                   f"cancelled while no step was done")
    site.barrier.release()
    replies = [(ask, site.result(future)) for ask, future in stay]
    for ask, got in replies:  # who asks alone must not meet who still waits
        key = repr(ask)
        if key not in alone:
            alone[key] = site.ask(ask).raw
        site.check_equal("reply", got.raw, alone[key], ask=key)


def random_request(draw: random.Random) -> ClientRequest:
    """Return one of a few hundred short requests."""
    endpoint, prompt = draw.choice(["completions", "chat"]), draw.choice(request_data.PROMPTS)
    return ClientRequest(endpoint, draw.random() < 0.5, request_data.make_body(
        endpoint, prompt, draw.choice(request_data.TOP_COUNTS), max_tokens=draw.randint(1, 6),
        seed=draw.randrange(5)))


def check_during_step(site: Harness) -> None:
    """Hold everything but tokens to go on while a step runs, and who leaves to be gone after it."""
    asks = [random_request(random.Random(f"held {i}")) for i in range(3)]
    alone = [site.ask(ask).raw for ask in asks]
    site.barrier.hold()
    site.barrier.release()
    site.steps.entered.clear()
    site.steps.resume.clear()
    line = site.ask_over_socket(ClientRequest("completions", True, LONG_BODY))
    site.law(site.steps.entered.wait(WAIT_SECONDS), "the engine never steps")
    before = len(site.steps.widths)
    for path in ("/health", "/metrics", "/v1/models"):
        _check_status(site, path, partial(site.http.get, path), 200)
    for endpoint in ("completions", "chat/completions"):
        _check_status(site, f"a bad request to {endpoint}", partial(site.post, {}, endpoint), 400)
    futures = [site.accepted(partial(site.ask, ask)) for ask in asks]
    waiting = site.ask_over_socket(ClientRequest("completions", False, LONG_BODY))
    for one in (line, waiting):
        one.close()
    site.law(site.barrier.wait_for(lambda: site.barrier.cancelled == 2),
             "who leaves while a step runs is not cancelled")
    site.steps.resume.set()
    for future, want in zip(futures, alone, strict=True):
        site.check_equal("reply", site.result(future).raw, want)
    site.check_equal("rows of the widest step since", max(site.steps.widths[before + 1 :]),
                     len(asks))
    site.check_equal("disconnects", site.read_metric('rowtwin_ended_total{reason="disconnect"}'),
                     2.0)


def _check_status(site: Harness, name: str, call: Callable[[], httpx2.Response],
                  status: int) -> None:
    try:
        got = call().status_code
    except httpx2.TimeoutException:
        got = 0
    site.law(got == status, f"{name} is answered by {got} while a step runs, where 0 is silence")


def check_drain(site: Harness, asks: Sequence[ClientRequest], alone: Sequence[str]) -> None:
    """Hold a shutdown to serve what was accepted, and nothing more."""
    site.barrier.hold()
    futures = [site.accepted(partial(reply_or_error, site, ask)) for ask in asks]
    closing = site.executor.submit(site.service.close)
    closed = site.barrier.wait_for(lambda: bool(site.service.scheduler.close_reason))
    site.law(closed, "the service does not close")
    check_refusal(site, "too-late", site.post({"model": "nano", **request_data.GOOD}), 503, None)
    site.check_equal("health", site.http.get("/health").status_code, 503)
    site.barrier.release()
    for number, future in enumerate(futures):
        site.check_equal("outcome", future.result(60.0), alone[number], request=number)
    closing.result(60.0)
    site.check_equal("where the pool is", site.engine.pool.device, "meta")
    site.check_equal("the engine's thread runs", site.service.driver._thread.is_alive(), False)


# Trouble.

def check_engine_errors(site: Harness, kind: str) -> None:
    """Let steps fail in one way while five requests run, and hold each of them to its own end."""
    asks = [random_request(random.Random(f"trouble {i}")) for i in range(4)]
    asks.insert(2, ClientRequest("completions", kind == "row",
                                 {"prompt": [50, CULPRIT_TOKEN], "max_tokens": 3, "seed": 5}))
    alone = [reply_or_error(site, ask) for ask in asks]
    left = [1 if kind == "once" else 10 ** 6]

    def trouble(tokens: Sequence[int]) -> bool:
        if kind in ("row", "nan") and CULPRIT_TOKEN not in tokens:
            return False
        left[0] -= 1
        if left[0] >= 0 and kind != "nan":
            raise RuntimeError("the device is lost")
        return kind == "nan"

    def no_reset() -> None:
        raise RuntimeError("the device is gone")

    if kind == "dead":
        site.engine.reset = no_reset
    site.steps.fail_step = trouble
    site.barrier.hold()
    futures = [site.accepted(partial(reply_or_error, site, ask)) for ask in asks]
    site.barrier.release()
    got = [future.result(60.0) for future in futures]
    for number, (one, want) in enumerate(zip(got, alone, strict=True)):
        fails = kind in ("always", "dead") or (kind in ("row", "nan") and number == 2)
        site.check_equal("outcome", one[:6] if fails else one, "error:" if fails else want,
                         request=number)
    site.steps.fail_step = lambda tokens: False
    after = reply_or_error(site, asks[0])
    site.check_equal("outcome afterwards", after[:6] if kind == "dead" else after,
              "error:" if kind == "dead" else alone[0])
    site.check_equal("health", site.http.get("/health").status_code, 503 if kind == "dead" else 200)
    if kind != "dead":
        site.idle()


def reply_or_error(site: Harness, ask: ClientRequest) -> str:
    """Return a reply, or `error:` with what the official client makes of it."""
    try:
        return site.ask(ask).raw
    except openai.APITimeoutError:
        return "nothing"
    except openai.APIError as error:
        return f"error: {error.message}"


def check_hostile_template(judge: Judge, template: Any, trap: str, *, broken: bool) -> None:
    """Hold a template to be refused in one sentence; a broken one is not run again."""
    ask, asked = template._query_process, list[str]()

    def counted(line: str) -> Any:
        asked.append(line)
        return ask(line)

    template._query_process = counted
    for _ in range(2):
        try:
            text = template.render([{"role": "user", "content": trap}])
        except InputError as refusal:
            told = str(refusal)
            judge.law("\n" not in told and len(told) < 700, f"the refusal says {told!r}")
        else:
            judge.law(False, f"the template was run and wrote {text[:100]!r}")
    judge.law(len(asked) < 2 or not broken, "a template that is broken is run again")


def check_next_chat(subject: Subject, judge: Judge) -> None:
    """Hold a template that goes too far in one chat to serve the next one."""
    for name, source in request_data.CHAT_FAILURES.items():
        template = subject.stack.template("{% set m = messages[0].content %}{% if m|length > 9 %}"
                                          f"{source}{{% endif %}}ok", seconds=1.5)
        try:
            told = ""
            try:
                template.render([{"role": "user", "content": "x" * 2000}])
            except InputError as refusal:
                told = str(refusal)
            judge.law(bool(told), f"a template that fails by {name} was served")
            text = _render_or_error(template)
        finally:
            template.close()
        judge.law(text == "ok", f"the chat behind one that failed by {name} got {text!r}")


def _render_or_error(template: Any) -> str:
    try:
        return str(template.render([{"role": "user", "content": "x"}]))
    except InputError as refusal:
        return str(refusal)


def check_bad_template_server(subject: Subject, judge: Judge) -> None:
    """Hold a server whose file has a broken template to refuse chats and serve completions."""
    with Harness(subject, judge, template=request_data.HOSTILE_TEMPLATES["no-template"]) as site:
        for _ in range(2):
            answer = site.post({"model": "nano", **request_data.CHAT}, "chat/completions")
            check_refusal(site, "chat", answer, 400, "messages")
        site.check_equal("status", site.post({"model": "nano", **request_data.GOOD}).status_code,
                         200)
