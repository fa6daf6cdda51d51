"""For any response a witness is written, and one sentence states the error."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from falsifiers.judging.errors import SuiteError
from falsifiers.meta.witness.stub_server import (
    MODEL_NAME,
    SSE_HEADER,
    StubServer,
    answer_forever,
    answer_once,
    format_sse,
    serve_stub,
)
from falsifiers.witness import file
from falsifiers.witness.run import WitnessRequest, run
from falsifiers.witness.sources import SourceOptions
from falsifiers.witness.stream import BadResponse, EventReader, Stream, parse_tokens
from falsifiers.witness.take import Plan

LOW = "HTTP/1.1 {} X\r\nContent-Type: {}\r\nConnection: close\r\n{}\r\n"


def response(status: int, kind: str, body: str, extra: str = "") -> bytes:
    return (LOW.format(status, kind, extra) + body).encode()


def events(*data: Any) -> bytes:
    return SSE_HEADER + b"".join(
        format_sse(d if isinstance(d, str) else json.dumps(d)) for d in data
    )


def choice(text: Any = "a", **more: Any) -> dict[str, Any]:
    return {"choices": [{"text": text, **more}]}


ANSWERS: dict[str, tuple[bytes, str]] = {
    "an error": (response(500, "application/json", '{"error": {"message": "out of memory"}}'),
                 'the server answered 500: "out of memory"'),
    "an error's page": (response(502, "text/html", "<h1>bad\x1b[2J</h1>"),
                        r'the server answered 502: "<h1>bad\u001b[2J</h1>"'),
    "an empty refusal": (response(429, "text/plain", ""), 'the server answered 429: ""'),
    "another address": (response(302, "text/plain", "", "Location: http://127.0.0.1:1/\r\n"),
                        "the server answered 302"),
    "no stream": (response(200, "application/json", '{"choices": []}'),
                  'the server sent "application/json", not an event stream'),
    "compressed": (response(200, "text/event-stream", "", "Content-Encoding: gzip\r\n"),
                   "the server sent a compressed stream"),
    "no JSON": (events("{'choices': 1}"), "an event is not JSON"),
    "deep JSON": (events("[" * 100_000), "an event is not JSON"),
    "no object": (events([1]), "an event is not an object"),
    "odd choices": (events({"choices": {"text": "a"}}), "choices are not a list of objects"),
    "odd text": (events(choice(7)), "text or finish_reason is not a string"),
    "odd reason": (events(choice(finish_reason=3)), "text or finish_reason is not a string"),
    "huge logprobs": (events(choice(logprobs={"tokens": ["a"], "token_logprobs": [10 ** 400],
                                              "top_logprobs": [{"b": -10 ** 400}]})),
                      "the stream broke off after 1 tokens"),
    "a huge count": (events(choice(finish_reason="stop"),
                            {"usage": {"completion_tokens": 10 ** 400}}, "[DONE]"),
                     "the server sends neither its tokens nor their number"),
    "a wordless error": (events({"error": {"message": [[[3]]]}}),
                         'the server reported an error: ""'),
    "odd logprobs": (events(choice(logprobs={"tokens": 3})), "logprobs are malformed"),
    "an error on the way": (events(choice(), {"error": {"message": "slot lost"}}),
                            'the server reported an error: "slot lost"'),
    "a break": (events(choice()), "the stream broke off after 1 tokens"),
    "nothing": (SSE_HEADER, "the stream broke off after 0 tokens"),
    "too much": (events(*[choice()] * 25), "more than the 24 tokens it was asked for"),
    "a wrong count": (events(choice(finish_reason="stop"),
                             {"usage": {"completion_tokens": 9}}, "[DONE]"),
                      "the stream shows 1 tokens, but the server counts 9"),
    "no count": (events(choice(finish_reason="stop"), "[DONE]"),
                 "the server sends neither its tokens nor their number"),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n", "the connection failed: "),
    "a closed door": (b"", "the connection failed: "),
}


def take_from(stub: StubServer, out: Path, **more: Any) -> dict[str, Any]:
    """Take a short witness and read the file that is left."""
    plan = Plan(widths=(1,), n_predict=24, declared_min=20)
    with serve_stub(stub) as url:
        run(
            WitnessRequest(url, out, plan, SourceOptions(), **{"timeout": 20, **more}),
            lambda line: None,
        )
    return file.read_witness(out)


def hold_unmeasured(witness: dict[str, Any], sentence: str) -> None:
    """Assert that nothing was measured, and that the reason is this one line."""
    for band in witness["bands"]:
        assert band["result"] == "UNMEASURABLE"
        assert sentence in band["reason"]
        assert band["reason"].isprintable()
        assert len(band["reason"]) < 250


@pytest.mark.parametrize("name", ANSWERS)
def test_odd_answer_ends_in_a_sentence(name: str, tmp_path: Path) -> None:
    raw, sentence = ANSWERS[name]
    witness = take_from(StubServer(answer=answer_once(raw)), tmp_path / "witness.json")
    hold_unmeasured(witness, sentence)
    assert witness["reference"]["stable"] is None


@pytest.mark.parametrize(("part", "sentence"), [
    (b"data: " + b"x" * 5000, "an event is longer than 256 KiB"),
    (b": still here\n\n" * 10_000, "the stream is longer than 2 MiB"),
    (b"data: a\n" * 1000, "an event is longer than 256 KiB")])
def test_endless_answer_is_cut_off(part: bytes, sentence: str, tmp_path: Path,
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("falsifiers.witness.stream.MAX_STREAM_BYTES", 2 << 20)
    hold_unmeasured(
        take_from(StubServer(answer=answer_forever(part)), tmp_path / "witness.json"), sentence
    )


def test_server_that_never_ends_its_answer_is_left(tmp_path: Path) -> None:
    witness = take_from(StubServer(step=30.0), tmp_path / "witness.json", timeout=0.2)
    hold_unmeasured(witness, "the request did not end within 0.2 s")


def test_server_that_is_not_there_leaves_an_honest_witness(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url, out = f"http://127.0.0.1:{closed.getsockname()[1]}/v1/", tmp_path / "witness.json"
        run(
            WitnessRequest(url, out, Plan(widths=(1,), n_predict=64), SourceOptions()),
            lambda line: None,
        )
    hold_unmeasured(file.read_witness(out), "the connection failed: ")
    assert file.read_witness(out)["model"] == {"path": None, "sha256": None, "served": ""}


@pytest.mark.parametrize("page", [
    b"rowtwin_batch_size_bucket{le=\"1\" 3\n", b"rowtwin_batch_size_bucket{le=\"x\"} 3\n",
    b"vllm:num_requests_running NaN\n", b"vllm:num_requests_running 1.5\n", b"\xff\xfe\n",
    b"vllm:num_requests_running -1\n", b"vllm:num_requests_running 1e300\n",
    b"".join(b'vllm:num_requests_running{e="%d"} 1\n' % i for i in range(10_001)),
    b"rowtwin_batch_size_bucket{} 3\n"])
def test_malformed_metrics_are_no_evidence(page: bytes, tmp_path: Path) -> None:
    witness = take_from(StubServer(page=page), tmp_path / "witness.json")
    assert [(band["result"], band["m_formed"]) for band in witness["bands"]] == [
        ("UNMEASURABLE", None)]


@pytest.mark.parametrize("listed", ["{}", "[]", '{"data": []}', '{"data": [{"id": 3}]}', "nonsense",
                                    '{"data": [{"id": "%s"}]}' % ("x" * 1001),
                                    '{"data": [{"id": "\\ud800"}]}', '{"data": [{"id": " "}]}'])
def test_server_that_names_no_model_is_asked_without(listed: str, tmp_path: Path) -> None:
    stub = StubServer(models=listed.encode())
    witness = take_from(stub, tmp_path / "witness.json")
    assert [band["result"] for band in witness["bands"]] == ["PASS"]
    assert witness["model"]["path"] is None
    assert "model" not in stub.requests[0]


def test_choice_among_models_is_the_user_s(tmp_path: Path) -> None:
    models = b'{"data": [{"id": "one"}, {"id": "two"}]}'
    with pytest.raises(SuiteError, match='the server offers 2 models, such as "one"'):
        take_from(StubServer(models=models), tmp_path / "witness.json")
    witness = take_from(StubServer(models=models), tmp_path / "witness.json", model="two")
    assert witness["model"]["path"] == "two"


def test_wait_option_waits_for_a_server_that_still_loads(tmp_path: Path) -> None:
    for wait, named in ((20, MODEL_NAME), (0, None)):
        stub = StubServer(loading=3)
        assert take_from(stub, tmp_path / "witness.json", wait=wait)["model"]["path"] == named
        assert ("model" in stub.requests[0]) == (named is not None)


def test_key_is_sent_only_to_the_server(tmp_path: Path) -> None:
    stub, other, shown = StubServer(), StubServer(), "Authorization: Bearer s3cret"
    plan = Plan(widths=(1,), n_predict=24, declared_min=20)
    with serve_stub(stub) as url, serve_stub(other) as metrics:
        run(
            WitnessRequest(
                url,
                tmp_path / "witness.json",
                plan,
                SourceOptions(metrics_url=f"{metrics}/metrics"),
                api_key="s3cret",
            ),
            lambda line: None,
        )
    assert stub.header_lines.count(shown) == 1 + len(stub.requests)
    assert any("/metrics" in line for line in other.header_lines)
    assert not any("s3cret" in line for line in other.header_lines)


def read(*data: bytes, limit: int = 4) -> Stream:
    """Return what a reader makes of an event stream that comes in these parts."""
    reader = EventReader(Stream(), limit)
    for now, part in enumerate(data):
        reader.feed(part, float(now))
    reader.end()
    return reader.stream


def test_events_are_read_however_they_are_cut_and_ended() -> None:
    raw = b": hello\r\nevent: x\r\n" + format_sse(json.dumps(choice("a"))) + \
        b'data: {"choices":\r\ndata: [{"text": "b", "finish_reason": "stop"}],\r\n' \
        b'data: "usage": {"completion_tokens": 2}}\r\n\r\n' + format_sse("[DONE]")
    for size in (1, 2, 7, len(raw)):
        stream = read(*[raw[i:i + size] for i in range(0, len(raw), size)])
        assert (stream.names, stream.finish_reason, stream.reported_count) == (
            ["a", "b"],
            "stop",
            2,
        )


def test_both_forms_of_logprobs_are_read() -> None:
    (old,) = parse_tokens({"tokens": ["a"], "token_logprobs": [-0.1], "top_logprobs": [
        {"a": -0.1, "b": -0.2, "c": None, "d": float("-inf")}]})
    assert (old.name, old.logprob, old.top) == ("a", -0.1, {"a": -0.1, "b": -0.2})
    (new,) = parse_tokens({"content": [{"id": 7, "token": "a", "logprob": -0.1, "top_logprobs": [
        {"id": 7, "token": "a", "logprob": -0.1}, {"id": 8, "token": "a", "logprob": -0.3}]}]})
    assert (new.name, new.logprob, new.top) == ("#7", -0.1, {"#7": -0.1, "#8": -0.3})
    assert [t.name for t in parse_tokens({"content": [{"token": "x"}]})] == ["x"]
    assert list(parse_tokens(None)) == []


@pytest.mark.parametrize("logprobs", [
    {"tokens": "abc"}, {"tokens": ["a"], "token_logprobs": []}, {"content": [3]}, {"content": 3},
    {"tokens": [["a"]]}, {"tokens": [None]}, {"content": [{}]}, {"content": [{"token": [3]}]},
    {"content": [{"token": "a", "top_logprobs": [{"token": None, "logprob": -1}]}]},
    {"tokens": ["a"], "top_logprobs": [["a"]]}, {"tokens": ["a", "b"], "top_logprobs": [{}]}])
def test_malformed_logprobs_are_refused(logprobs: Any) -> None:
    with pytest.raises(BadResponse, match="logprobs are malformed"):
        list(parse_tokens(logprobs))


def test_end_token_may_be_counted_and_not_sent() -> None:
    logprobs = {"tokens": ["a"], "token_logprobs": [-0.1]}
    event = {**choice(logprobs=logprobs, finish_reason="stop"), "usage": {"completion_tokens": 2}}
    assert read(format_sse(json.dumps(event))).names == ["a"]
    event["usage"]["completion_tokens"] = 3
    with pytest.raises(BadResponse, match="shows 1 tokens, but the server counts 3"):
        read(format_sse(json.dumps(event)))


def test_pieces_are_tokens_only_where_they_are_as_many() -> None:
    raw = format_sse(json.dumps(choice("ab"))) + format_sse(
        json.dumps(choice("c", finish_reason="length"))
    )
    assert read(raw, limit=2).names == ["ab", "c"]
    with pytest.raises(BadResponse, match="shows 2 tokens, but the server counts 3"):
        read(raw, limit=3)
