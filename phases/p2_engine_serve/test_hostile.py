"""Hostile clients and files: the server limits their cost and refuses them with a message."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from engine.errors import InputError
from phases.p2_engine_serve import api, server
from phases.p2_engine_serve.api_error import ApiError
from phases.p2_engine_serve.client_reply import ClientRequest
from phases.p2_engine_serve.harness import Harness
from phases.p2_engine_serve.request_schema import ChatRequest, CompletionRequest, parse
from phases.p2_engine_serve.sampling import Sampling, draw
from phases.p2_engine_serve.step_barrier import WAIT_SECONDS
from phases.p2_engine_serve.template import Template
from phases.p2_engine_serve.test_witness import make_harness

MANY = 1000
MESSAGE = {"role": "user", "content": "a"}
BODY_OPTIONS: dict[str, Any] = {"max_tokens": 2, "ignore_eos": True}
BODY: dict[str, Any] = {"model": "nano", "prompt": "the", **BODY_OPTIONS}


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (CompletionRequest, {"prompt": [""] * MANY}),
        (CompletionRequest, {"stop": [1] * MANY}),
        (CompletionRequest, {f"key{i}": 1 for i in range(MANY)}),
        (ChatRequest, {"messages": [{}] * MANY}),
        (ChatRequest, {"messages": [{**MESSAGE, "content": [{}] * MANY}]}),
        (ChatRequest, {"messages": [{**MESSAGE, **{f"key{i}": 1 for i in range(MANY)}}]}),
    ],
)
def test_only_the_first_of_a_thousand_errors_in_a_body_is_collected(kind: Any, body: Any) -> None:
    valid = {"model": "a", **({"prompt": "b"} if kind is CompletionRequest
                              else {"messages": [MESSAGE]})}
    with pytest.raises(ValidationError) as faults:
        kind.model_validate_json(json.dumps({**valid, **body}))
    assert faults.value.error_count() < 10


@pytest.mark.parametrize(("name", "shown"), [
    ("top-k", "top-k"), ("str", "str"), ("a b", "a b"), ("", "''"), ("a\nb", r"'a\nb'"),
    ("k" * 5000, "k" * 100)])
def test_unknown_field_is_named_in_the_refusal(name: str, shown: str) -> None:
    for kind, body, place in ((CompletionRequest, {"prompt": "b", name: 1}, ""),
                              (ChatRequest, {"messages": [{**MESSAGE, name: 1}]}, "messages.0.")):
        with pytest.raises(ApiError) as refused:
            parse(kind, json.dumps({"model": "a", **body}).encode())
        assert refused.value.message.endswith(" is an unknown field")
        assert refused.value.message.isprintable()
        assert shown.strip("'") in refused.value.message
        assert refused.value.field == place + name[:100]


def test_null_inside_a_field_counts_as_absent() -> None:
    params = parse(ChatRequest, json.dumps({
        "model": "a", "messages": [{**MESSAGE, "name": None}], "stream": True,
        "stream_options": {"include_usage": None}}).encode())
    assert params.stream_options is not None
    assert not params.stream_options.include_usage


@pytest.fixture
def harness(path: Any) -> Iterator[Harness]:
    """Return a server on the fake path."""
    with make_harness(path, model="") as opened:
        yield opened
        opened.idle()


def open_and_send(harness: Harness, *parts: bytes) -> socket.socket:
    line = socket.create_connection(harness.socket.getsockname(), WAIT_SECONDS)
    for part in parts:
        line.sendall(part)
    return line


def request_head(length: int | str, kind: str = "application/json", **headers: str) -> bytes:
    """Return the head of a completion request; a string `length` is used as a header line."""
    size = length if isinstance(length, str) else f"Content-Length: {length}"
    more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return (f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\n{size}\r\n{more}"
            "\r\n").encode()


def test_large_bodies_are_parsed_off_the_event_loop(harness: Harness,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def watched(*args: Any) -> Any:
        threads.append(threading.current_thread().name)
        return parse(*args)

    monkeypatch.setattr(api, "parse", watched)
    for body in (BODY, {**BODY, "user": "u" * api.LARGE_BODY_BYTES}):
        assert harness.post(body).status_code == 200
    assert (threads[0], threads[1] == threads[0]) == (harness.thread.name, False)


def test_number_of_large_bodies_in_memory_is_limited(harness: Harness,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "MAX_LARGE_BODIES", 1)
    large = {**BODY, "user": "u" * api.LARGE_BODY_BYTES}
    with open_and_send(harness, request_head(2 * api.LARGE_BODY_BYTES),
                       b" " * (api.LARGE_BODY_BYTES + 1)):
        refused = post_until(harness, large, 429)
        assert refused.json()["error"]["code"] == "queue_full"
        assert refused.headers["retry-after"] == "1"
        assert harness.post(BODY).status_code == 200
    assert post_until(harness, large, 200).status_code == 200  # the first large body is gone


def post_until(harness: Harness, body: Any, status: int) -> Any:
    """Post until the response has a status, since other connections take a moment."""
    late = time.monotonic() + WAIT_SECONDS
    while (answer := harness.post(body)).status_code != status and time.monotonic() < late:
        time.sleep(0.01)
    return answer


def test_connection_without_a_request_is_closed(path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 1.0)
    with make_harness(path, model="") as harness:
        idle, slow = open_and_send(harness), open_and_send(harness, b"POST /v1/comp")
        served = open_and_send(harness, request_head(2, Connection="close"), b"{}")
        future = harness.hold([ClientRequest("completions", True,
                                             {**BODY_OPTIONS, "prompt": "the"})])[0]
        for line in (idle, slow):
            with line:
                assert line.recv(1) == b""
        with served:
            assert served.recv(1) == b"H"
        harness.barrier.release()  # the timeout of a head does not end a running request
        assert harness.result(future).usage["completion_tokens"] == 2


def test_garbage_after_an_early_response_only_ends_its_connection(
        harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    head = request_head("Transfer-Encoding: chunked", "text/plain")
    with caplog.at_level(logging.ERROR, "asyncio"), open_and_send(harness, head) as line:
        answer = b""
        while not answer.endswith(b"}}"):
            answer += line.recv(1 << 16)
        assert b" 415 " in answer
        line.sendall(b"no chunk\r\n")
        assert line.recv(1 << 16) == b""
        assert harness.post(BODY).status_code == 200
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []


def test_compressed_bodies_and_long_methods_are_refused(harness: Harness) -> None:
    packed = harness.post(BODY, **{"content-encoding": "gzip"})
    assert (packed.status_code, packed.json()["error"]["message"]) == (
        415, "the body must not be compressed")
    odd = harness.http.request("M" * 5000, "/v1/completions")
    assert (odd.status_code, len(odd.json()["error"]["message"]) < 100) == (405, True)


@pytest.mark.parametrize("logits", [[3e38, -3e38, 0.0], [1e38, -1e38, -3e38]])
@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1.0, 100.0])
def test_log_probs_of_any_finite_logits_are_valid_json(logits: list[float],
                                                       temperature: float) -> None:
    (drawn,) = draw(torch.tensor([logits]), [0], [Sampling(temperature, top=3)], [0])
    assert json.loads(json.dumps(drawn.top, allow_nan=False))[0] == [0, 0.0]
    assert drawn.logprob == 0.0


@pytest.mark.parametrize(("host", "is_public"), [
    ("127.0.0.1", False), ("127.1", False), ("localhost", False), ("0.0.0.0", True)])
def test_is_public_depends_on_the_address_not_on_its_name(host: str, is_public: bool) -> None:
    with server.bound(host, 0) as listening:
        assert server.is_public(listening) is is_public


@pytest.mark.parametrize(("options", "text"), [
    ("ensure_ascii=False", '{"a": "é"}'), ("ensure_ascii=True", r'{"a": "\u00e9"}'),
    ("indent=1", '{\n "a": "é"\n}'), ("separators=(',', ':')", '{"a":"é"}')])
def test_tojson_accepts_the_options_of_chat_templates(options: str, text: str) -> None:
    template = Template("{{ {'a': 'é'}|tojson(" + options + ") }}")
    try:
        assert template.render([]) == text
    finally:
        template.close()


def test_template_process_that_ends_mid_answer_is_refused(
        monkeypatch: pytest.MonkeyPatch) -> None:
    dies = "import sys; sys.stdin.readline(); sys.stdout.write('{\"text\": \"a')"
    popen = subprocess.Popen
    monkeypatch.setattr("phases.p2_engine_serve.template.subprocess.Popen",
                        lambda command, **more: popen([sys.executable, "-c", dies], **more))
    template = Template("a")
    try:
        with pytest.raises(InputError, match="it took more than 5 seconds or more memory"):
            template.render([])
    finally:
        template.close()
