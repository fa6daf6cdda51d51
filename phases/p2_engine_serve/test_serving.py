"""The `serve` command, and unit tests of the server's parts."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fastapi import Request

from engine.arithmetic import exp, ordered_sum
from engine.errors import InputError
from engine.testmodels import load, model_path
from falsifiers.judging.subject import Subject
from falsifiers.meta.console.command import Main, command_entry, make_main
from phases.p2_engine_serve import cli
from phases.p2_engine_serve.api import Api
from phases.p2_engine_serve.api_error import ApiError
from phases.p2_engine_serve.cli import _check_api_key, app
from phases.p2_engine_serve.harness import load_tokenizer
from phases.p2_engine_serve.hybrid_engine import LastSlot
from phases.p2_engine_serve.request_schema import ChatRequest, CompletionRequest, parse
from phases.p2_engine_serve.sampling import Sampling, draw, row_sums, uniform
from phases.p2_engine_serve.server import bound
from phases.p2_engine_serve.service import SerialWorker, Terms
from phases.p2_engine_serve.stop_text import StreamedText
from phases.p2_engine_serve.template import Template

ROOT = Path(__file__).parent.parent.parent
SERVE = [sys.executable, str(ROOT / "rowtwin.py"), "serve"]


def test_help_has_an_example_and_imports_no_server() -> None:
    code = """if True:
        import sys, rowtwin
        sys.argv = ["rowtwin", "serve", "--help"]
        try:
            rowtwin.main()
        except SystemExit as end:
            imported = [name for name in ("torch", "fastapi", "uvicorn") if name in sys.modules]
            sys.exit(end.code or imported or 0)
    """
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True,
                            timeout=120)
    assert result.returncode == 0, result.stderr
    assert "Example: rowtwin serve" in result.stdout


@contextmanager
def busy_port() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        yield str(busy.getsockname()[1])


@pytest.fixture
def serve(path: Any, stack: Any, monkeypatch: pytest.MonkeyPatch,
          capsys: pytest.CaptureFixture[str]) -> Main:
    """Return a function that runs the command in this process: exit code, stdout, stderr."""
    monkeypatch.setattr(cli, "_log_to_stderr", lambda: None)  # a handler would outlive the test
    monkeypatch.setattr("rowtwin.assemble", lambda **parts: Subject("in-tree", load, path, stack))
    return make_main(command_entry(app, InputError), monkeypatch, capsys, "app", "serve")


def test_bad_arguments_exit_with_2_and_a_message(serve: Main) -> None:
    model = str(model_path("nano"))
    with busy_port() as port:
        for arguments, message in ((["nothing.gguf", "--port", "0"], "nothing.gguf"),
                                   ([model, "--api-key", ""], "--api-key"),
                                   ([model, "--port", port], "cannot listen"),
                                   ([model, "--port", "0", "--memory", "0.001"], "budget"),
                                   ([model, "--port", "0", "--memory", "inf"], "1048576")):
            code, out, err = serve(*arguments)
            assert (code, out) == (2, ""), err
            assert message in err


def disconnect_mid_body(url: str) -> None:
    parts = urllib.parse.urlsplit(url)
    assert parts.port is not None
    for _ in range(3):
        with socket.create_connection((parts.hostname or "", parts.port)) as line:
            line.sendall(f"POST {parts.path}/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9"
                         "\r\nContent-Type: application/json\r\n\r\n{".encode())


def test_served_model_answers_logs_its_batch_and_ends_on_a_signal() -> None:
    process = subprocess.Popen([*SERVE, str(model_path("nano")), "--port", "0", "--slots", "2",
                                "--context", "64", "--name", "nano"], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("nano at http://127.0.0.1:")
        body = {"model": "nano", "prompt": "the", "max_tokens": 3, "temperature": 0}
        request = urllib.request.Request(f"{line.split()[2]}/completions",
                                         json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        disconnect_mid_body(line.split()[2])
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 3
        process.send_signal(signal.SIGINT)
        out, log = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (0, "")
    assert "Batch m=1" in log
    assert "Traceback" not in log


def accepts_key(key: str, header: bytes) -> bool:
    """Return whether a server with a key accepts an Authorization header."""
    service: Any = SimpleNamespace(terms=Terms("nano", key=key))
    try:
        Api(service)._check_key(Request({"type": "http", "headers": [(b"authorization", header)]}))
    except ApiError as refused:
        return refused.status != 401
    return True


@pytest.mark.parametrize("header", ["Bearer clé".encode(), "Bearer clé".encode("latin-1"),
                                    "bearer  clé".encode(), "BEARER clé".encode()])
def test_key_beyond_ascii_is_accepted(header: bytes) -> None:
    assert accepts_key("clé", header)
    assert not accepts_key("cle", header)
    assert not accepts_key("鍵", header)


@pytest.mark.parametrize("header", [b"", b"Bearer", b"Basic key", b"key", b"Bearer key2",
                                    b"Bearer\xff key", b"Bearer ke\xff"])
def test_other_authorization_headers_are_refused(header: bytes) -> None:
    assert accepts_key("key", b"Bearer key")
    assert not accepts_key("key", header)


@pytest.mark.parametrize("key", ["", " ", "a\nb", "a\x00", " a", "a ", "\udcff"])
def test_key_that_clients_cannot_send_is_refused(key: str) -> None:
    with pytest.raises(InputError, match="--api-key must be printable"):
        _check_api_key(key)


def test_port_and_host_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="cannot listen on no such host port 1"):
        bound("no such host", 1)


@pytest.mark.parametrize(("body", "field"), [
    (b'{"model": "a", "prompt": "b", "stop": [""]}', "stop"),
    (b'{"model": "a", "prompt": [1, "b"]}', "prompt"),
    (b'{"model": "a", "prompt": {}}', "prompt")])
def test_refusal_names_the_clients_field(body: bytes, field: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse(CompletionRequest, body)
    assert (refused.value.status, refused.value.field) == (400, field)


@pytest.mark.parametrize(("change", "message"), [
    ({"stop": ""}, "stop: String should have at least 1 character"),
    ({"stop": ["a", 3]}, "stop.1: Input should be a valid string"),
    ({"stop": ["a"] * 17}, "stop: List should have at most 16 items"),
    ({"stop": 3}, "stop: Input should be a valid string or a valid array"),
    ({"prompt": []}, "prompt: List should have at least 1 item"),
    ({"prompt": ["a"]}, "prompt.0: Input should be a valid integer"),
    ({"prompt": 3}, "prompt: Input should be a valid string or a valid array"),
    ({"n": True}, "n: Input should be a valid integer"),
    ({"n": 1.0}, "n: Input should be a valid integer"),
    ({"prompt": None}, "prompt: Input should be a valid string or a valid array"),
    ({"größe": None}, "größe is an unknown field")])
def test_refusal_message_names_the_cause(change: dict[str, object], message: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse(CompletionRequest, json.dumps({"model": "a", "prompt": "b", **change}).encode())
    assert refused.value.message.startswith(message)


def test_null_counts_as_absent() -> None:
    nothing = dict.fromkeys(set(CompletionRequest.model_fields) - {"model", "prompt"})
    bodies = [json.dumps({"model": "a", "prompt": "b", **more}).encode() for more in (nothing, {})]
    assert parse(CompletionRequest, bodies[0]) == parse(CompletionRequest, bodies[1])
    assert "temperature" in nothing


def test_chat_contents_in_parts_are_joined() -> None:
    params = parse(ChatRequest,
                   b'{"model": "a", "messages": [{"role": "user", "name": "n", "content":'
                   b'[{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]}]}')
    assert params.messages[0].as_template_input() == {"role": "user", "content": "bc", "name": "n"}
    assert (params.limit, params.top, params.stops) == (None, None, ())


def test_text_after_a_stop_is_never_sent() -> None:
    tokenizer = load_tokenizer(model_path("nano"))
    text = StreamedText(tokenizer, ["ne t"])
    shown = [text.push(token) for token in tokenizer.encode("one time")]
    assert "".join(shown) + text.finish() == "o"
    assert text.stopped


def test_serial_worker_runs_one_task_at_a_time_and_skips_disconnected_clients() -> None:
    inside, seen, ran = [0], list[int](), list[int]()

    def work(number: int) -> int:
        inside[0] += 1
        seen.append(inside[0])
        time.sleep(0.01)
        inside[0] -= 1
        ran.append(number)
        return number

    async def left(number: int) -> bool:
        return number % 2 == 1

    async def all_at_once() -> list[int | BaseException]:
        worker = SerialWorker()
        return await asyncio.gather(*(worker.run(partial(work, n), partial(left, n))
                                      for n in range(6)), return_exceptions=True)

    got = asyncio.run(all_at_once())
    assert (got[::2], ran, seen) == ([0, 2, 4], [0, 2, 4], [1, 1, 1])
    assert [one.status for one in got[1::2] if isinstance(one, ApiError)] == [499] * 3


def test_last_slot_is_extended_only_by_a_longer_prompt_with_its_tokens() -> None:
    turn = LastSlot(0, [1, 2])
    assert turn.is_extended_by((1, 2, 3))
    assert not any(turn.is_extended_by(prompt) for prompt in ((1, 2), (1, 3, 2), (2, 1, 2), (1,)))
    assert not LastSlot().is_extended_by((1, 2))


def test_uniform_numbers_fill_the_unit_interval() -> None:
    drawn = [uniform(seed, number) for seed in range(40) for number in range(40)]
    assert len(set(drawn)) == len(drawn)
    assert all(0 <= value < 1 for value in drawn)
    assert uniform((1 << 64) - 1, 0) != uniform(0, 0)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (2, 127), (3, 128), (1, 129), (16, 1021), (2, 99999)])
def test_sums_on_the_host_equal_the_engines(m: int, n: int) -> None:
    weights = exp(4.0 * torch.randn(m, n, generator=torch.Generator().manual_seed(n)) - 2.0)
    assert row_sums(weights) == ordered_sum(weights).tolist()


def test_likely_tokens_are_ordered_by_id_on_ties() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, -0.0, 0.0], [2.0, 2.0, 2.0, 2.0, 2.0],
                           [0.0, 9.0, 1.0, 2.0, 3.0]])
    options = [Sampling(top=20), Sampling(top=2), Sampling(top=0)]
    drawn = draw(logits, [1, 0, 1], options, [0, 0, 0])
    assert [[token for token, _ in one.top] for one in drawn] == [[1, 2, 0, 3, 4], [0, 1], []]


def test_template_renders_after_its_own_refusal() -> None:
    template = Template("{% if messages|length > 1 %}{{ raise_exception('one at a time') }}"
                        "{% endif %}{{ messages[0].content|tojson }}")
    try:
        with pytest.raises(InputError, match="refuses these messages: one at a time"):
            template.render([{"content": "a"}, {"content": "b"}])
        assert template.render([{"content": "<é>"}]) == '"<é>"'
    finally:
        template.close()


def test_message_of_a_template_is_valid_utf8() -> None:
    template = Template(r"{{ raise_exception('a\ud800\nb') }}")
    try:
        with pytest.raises(InputError, match=r"these messages: a\? b$"):
            template.render([])
    finally:
        template.close()


def test_file_without_a_template_serves_no_chat() -> None:
    with pytest.raises(InputError, match="has no chat template"):
        Template(None).render([])
