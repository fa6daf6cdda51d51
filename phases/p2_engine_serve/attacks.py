"""Attacks over HTTP: refusals, disconnects, engine errors, and requests during a step."""

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
"""A token that no other prompt has and that replies are unlikely to contain."""


def check_refusal(harness: Harness, name: str, answer: httpx2.Response, status: int,
                  field: str | None) -> None:
    """Check that a response is an API error with the expected status and field."""
    harness.check_equal("status", answer.status_code, status, request=name)
    error = answer.json().get("error", {})
    harness.check_equal("keys of the error", sorted(error), ["code", "message", "param", "type"],
                        request=name)
    harness.check_equal("param", error["param"], field, request=name)
    message = str(error["message"])
    harness.law(bool(message) and "Traceback" not in message and len(message) < 500,
                f"the refusal of {name} is {message[:600]!r}")


def check_early_refusals(harness: Harness, endpoint: str) -> None:
    """Check the requests that are refused before a body is read."""
    url = f"/v1/{endpoint}"
    good = b'{"model": "nano"}'
    text = harness.http.post(url, content=good, headers={"content-type": "text/plain"})
    check_refusal(harness, "text", text, 415, None)
    check_refusal(harness, "get", harness.http.get(url), 405, None)
    check_refusal(harness, "no-such-route", harness.http.get("/v1/embeddings"), 404, None)
    check_refusal(harness, "trailing-slash", harness.http.post(f"{url}/", content=good), 404, None)
    for page in ("/health", "/metrics", "/v1/models"):
        head = harness.http.head(page)
        harness.check_equal("HEAD", (head.status_code, head.content), (200, b""), page=page)
    start = f"POST {url} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    chunk = "800\r\n" + "x" * 0x800 + "\r\n"
    for name, rest in (("chunked", f"Transfer-Encoding: chunked\r\n\r\n{chunk}{chunk}0\r\n\r\n"),
                       ("announced", f"Content-Length: {10 ** 12}\r\n\r\n")):
        with socket.create_connection(harness.socket.getsockname(), WAIT_SECONDS) as line:
            line.sendall((start + rest).encode())
            status = line.recv(64).split(b" ")[1:2]
        harness.check_equal("status", status, [b"413"], request=f"too-large-{name}")


def check_long_texts(subject: Subject, judge: Judge, endpoint: str) -> None:
    """Check that a text with too many bytes for the context is refused before it is encoded."""
    with Harness(subject, judge, context=8, template=request_data.PLAIN_TEMPLATE) as harness:
        tokenizer = with_template(harness.tokenizer, request_data.PLAIN_TEMPLATE)
        encode, encoded = tokenizer.encode, list[int]()

        def counted(text: str) -> list[int]:
            encoded.append(len(text))
            return encode(text)

        vars(tokenizer)["encode"] = counted
        harness.service.tokenizer = tokenizer
        most, chat = 8 * max(len(token.encode()) for token in tokenizer.tokens), "chat" in endpoint
        for text, want in (("x" * (most + 1), []), ("é" * most, []), ("x" * 9, [9])):
            body = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
            answer = harness.post({"model": "nano", **body}, endpoint)
            check_refusal(harness, "long", answer, 400, "messages" if chat else "prompt")
            harness.check_equal("code", answer.json()["error"]["code"], "context_length_exceeded")
            harness.check_equal("letters encoded", encoded, want, letters=len(text))


# Clients that disconnect.

def run_client_wave(harness: Harness, draw: random.Random, clients: int,
                    alone: dict[str, str]) -> None:
    """Start clients at once, disconnect some after a few steps, and check the other replies."""
    stay: list[tuple[ClientRequest, Future[Any]]] = []
    leave: list[socket.socket] = []
    harness.barrier.hold()
    for number in range(clients):
        if number and draw.random() < 0.6:
            request = random_request(draw)
            stay.append((request, harness.accepted(partial(harness.ask, request))))
        else:
            leave.append(
                harness.ask_over_socket(ClientRequest("completions", draw.random() < 0.5,
                                                      LONG_BODY)))
    harness.law(harness.barrier.allow_steps(draw.randrange(6)), "the allowed steps did not run")
    for line in leave:
        line.close()
    cancelled = harness.barrier.wait_for(lambda: harness.barrier.cancelled >= len(leave))
    harness.law(cancelled,
                f"{len(leave)} clients disconnected, but {harness.barrier.cancelled} requests "
                f"were cancelled before the next step")
    harness.barrier.release()
    replies = [(request, harness.result(future)) for request, future in stay]
    for request, got in replies:  # solo requests start only after all others ended
        key = repr(request)
        if key not in alone:
            alone[key] = harness.ask(request).raw
        harness.check_equal("reply", got.raw, alone[key], request=key)


def random_request(draw: random.Random) -> ClientRequest:
    """Return one of a few hundred short requests."""
    endpoint, prompt = draw.choice(["completions", "chat"]), draw.choice(request_data.PROMPTS)
    return ClientRequest(endpoint, draw.random() < 0.5, request_data.make_body(
        endpoint, prompt, draw.choice(request_data.TOP_COUNTS), max_tokens=draw.randint(1, 6),
        seed=draw.randrange(5)))


def check_during_step(harness: Harness) -> None:
    """Check that handlers answer during a step, and that disconnects take effect after it."""
    requests = [random_request(random.Random(f"short {i}")) for i in range(3)]
    alone = [harness.ask(request).raw for request in requests]
    harness.barrier.hold()
    harness.barrier.release()
    harness.steps.entered.clear()
    harness.steps.resume.clear()
    line = harness.ask_over_socket(ClientRequest("completions", True, LONG_BODY))
    harness.law(harness.steps.entered.wait(WAIT_SECONDS), "the engine does not step")
    before = len(harness.steps.widths)
    for path in ("/health", "/metrics", "/v1/models"):
        _check_status(harness, path, partial(harness.http.get, path), 200)
    for endpoint in ("completions", "chat/completions"):
        _check_status(harness, f"a bad request to {endpoint}", partial(harness.post, {}, endpoint),
                      400)
    futures = [harness.accepted(partial(harness.ask, request)) for request in requests]
    waiting = harness.ask_over_socket(ClientRequest("completions", False, LONG_BODY))
    for one in (line, waiting):
        one.close()
    harness.law(harness.barrier.wait_for(lambda: harness.barrier.cancelled == 2),
                "a disconnect during a step does not cancel the request")
    harness.steps.resume.set()
    for future, want in zip(futures, alone, strict=True):
        harness.check_equal("reply", harness.result(future).raw, want)
    harness.check_equal("rows of the widest step since", max(harness.steps.widths[before + 1 :]),
                        len(requests))
    harness.check_equal("disconnects",
                        harness.read_metric('rowtwin_ended_total{reason="disconnect"}'), 2.0)


def _check_status(harness: Harness, name: str, call: Callable[[], httpx2.Response],
                  status: int) -> None:
    try:
        got = call().status_code
    except httpx2.TimeoutException:
        got = 0
    harness.law(got == status, f"{name} returns status {got} during a step (0: no answer)")


def check_drain(harness: Harness, requests: Sequence[ClientRequest], alone: Sequence[str]) -> None:
    """Check that a shutdown serves the accepted requests and refuses further ones."""
    harness.barrier.hold()
    futures = [harness.accepted(partial(reply_or_error, harness, request)) for request in requests]
    closing = harness.executor.submit(harness.service.close)
    is_closing = harness.barrier.wait_for(lambda: bool(harness.service.scheduler.close_reason))
    harness.law(is_closing, "the service does not close")
    check_refusal(harness, "too-late", harness.post({"model": "nano", **request_data.GOOD}), 503,
                  None)
    harness.check_equal("health", harness.http.get("/health").status_code, 503)
    harness.barrier.release()
    for number, future in enumerate(futures):
        harness.check_equal("outcome", future.result(60.0), alone[number], request=number)
    closing.result(60.0)
    harness.check_equal("where the pool is", harness.engine.pool.device, "meta")
    harness.check_equal("the engine's thread runs", harness.service.driver._thread.is_alive(),
                        False)


# Engine errors.

def check_engine_errors(harness: Harness, kind: str) -> None:
    """Make steps fail in one way while five requests run; check the end of each."""
    requests = [random_request(random.Random(f"trouble {i}")) for i in range(4)]
    requests.insert(2, ClientRequest("completions", kind == "row",
                                     {"prompt": [50, CULPRIT_TOKEN], "max_tokens": 3, "seed": 5}))
    alone = [reply_or_error(harness, request) for request in requests]
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
        harness.engine.reset = no_reset
    harness.steps.fail_step = trouble
    harness.barrier.hold()
    futures = [harness.accepted(partial(reply_or_error, harness, request)) for request in requests]
    harness.barrier.release()
    got = [future.result(60.0) for future in futures]
    for number, (one, want) in enumerate(zip(got, alone, strict=True)):
        fails = kind in ("always", "dead") or (kind in ("row", "nan") and number == 2)
        harness.check_equal("outcome", one[:6] if fails else one, "error:" if fails else want,
                            request=number)
    harness.steps.fail_step = lambda tokens: False
    after = reply_or_error(harness, requests[0])
    harness.check_equal("outcome afterwards", after[:6] if kind == "dead" else after, "error:"
                        if kind == "dead" else alone[0])
    harness.check_equal("health", harness.http.get("/health").status_code, 503 if kind == "dead"
                        else 200)
    if kind != "dead":
        harness.idle()


def reply_or_error(harness: Harness, request: ClientRequest) -> str:
    """Return a reply, or `error:` with the message that the official client raises."""
    try:
        return harness.ask(request).raw
    except openai.APITimeoutError:
        return "nothing"
    except openai.APIError as error:
        return f"error: {error.message}"


def check_hostile_template(judge: Judge, template: Any, trap: str, *, broken: bool) -> None:
    """Check that a template is refused with a one-line message, and a broken one is run once."""
    query, lines = template._query_process, list[str]()

    def counted(line: str) -> Any:
        lines.append(line)
        return query(line)

    template._query_process = counted
    for _ in range(2):
        try:
            text = template.render([{"role": "user", "content": trap}])
        except InputError as refusal:
            message = str(refusal)
            judge.law("\n" not in message and len(message) < 700, f"the refusal is {message!r}")
        else:
            judge.law(False, f"the template rendered {text[:100]!r}")
    judge.law(len(lines) < 2 or not broken, "a template that is broken is run again")


def check_next_chat(subject: Subject, judge: Judge) -> None:
    """Check that a template that fails on one chat renders the next one."""
    for name, source in request_data.CHAT_FAILURES.items():
        template = subject.stack.template("{% set m = messages[0].content %}{% if m|length > 9 %}"
                                          f"{source}{{% endif %}}ok", seconds=1.5)
        try:
            message = ""
            try:
                template.render([{"role": "user", "content": "x" * 2000}])
            except InputError as refusal:
                message = str(refusal)
            judge.law(bool(message), f"a template that fails by {name} was served")
            text = _render_or_error(template)
        finally:
            template.close()
        judge.law(text == "ok", f"the chat after one that failed by {name} got {text!r}")


def _render_or_error(template: Any) -> str:
    try:
        return str(template.render([{"role": "user", "content": "x"}]))
    except InputError as refusal:
        return str(refusal)


def check_bad_template_server(subject: Subject, judge: Judge) -> None:
    """Check that a server with a broken template refuses chats and serves completions."""
    with Harness(subject, judge, template=request_data.HOSTILE_TEMPLATES["no-template"]) as harness:
        for _ in range(2):
            answer = harness.post({"model": "nano", **request_data.CHAT}, "chat/completions")
            check_refusal(harness, "chat", answer, 400, "messages")
        harness.check_equal("status", harness.post({"model": "nano",
                                                    **request_data.GOOD}).status_code, 200)
