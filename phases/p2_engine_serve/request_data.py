"""The data of the attacks: prompts, options, texts with stop strings, and bad bodies."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from engine.tokenizer import Tokenizer
from engine.vocabulary import PAD_TOKEN
from phases.p2_engine_serve.client_reply import ClientRequest

PLAIN_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""A chat template that adds nothing, so that both endpoints have the same prompt."""
SAMPLING_OPTIONS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 0.8, "seed": 8, "top_p": 0.9, "top_k": 20},
    {"temperature": 5.0, "seed": 9, "top_k": 1, "stop": ["e"]},
)
TOP_COUNTS = (None, 0, 3, 20)
PROMPTS = ("the", "one of", " and", "time")


def make_body(endpoint: str, prompt: str, top: int | None = None, **more: Any) -> dict[str, Any]:
    """Return a body that requests log-probs with the endpoint's fields."""
    logprobs: dict[str, Any] = {}
    if top is not None:
        logprobs = {"logprobs": top} if endpoint == "completions" else \
            {"logprobs": True, "top_logprobs": top}
    return {"prompt": prompt, "return_token_ids": True, **logprobs, **more}


def four_requests(endpoint: str, stream: str, tokens: int) -> list[ClientRequest]:
    """Return four different requests; `mixed` uses both endpoints, or both ways of replying."""
    kinds = itertools.cycle(itertools.product(
        ("completions", "chat") if endpoint == "mixed" else (endpoint,),
        {"mixed": (False, True), "whole": (False,), "stream": (True,)}[stream]))
    return [ClientRequest(where, streamed,
                          make_body(where, prompt, top, max_tokens=tokens + number, **options))
            for number, ((where, streamed), prompt, top,
                         options) in enumerate(zip(kinds, PROMPTS, TOP_COUNTS, SAMPLING_OPTIONS,
                                                   strict=False))]


def expected_prompt(request: ClientRequest) -> str:
    """Return the prompt of a request by the template of the test models, written by hand."""
    prompt: str = request.body["prompt"]
    if request.endpoint == "completions":
        return prompt
    return f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"


# Texts that the fake path emits unchanged, with stop strings.

STOP_CASES: dict[str, tuple[str, list[str]]] = {
    "inside-a-token": ("one time there", ["h"]),
    "a-whole-token": ("one time there", ["e"]),
    "across-tokens": ("one time there", ["me the"]),
    "at-the-start": ("one time there", ["one"]),
    "at-the-end": ("one time there", ["re"]),
    "never": ("one time there", ["there!", "x"]),
    "begins-and-fails": ("zzzq zzq", ["zzq"]),
    "first-to-end-wins": ("one time there", ["time there", "me"]),
    "of-two-the-earlier": ("one time there", ["ere", "th"]),
    "over-characters": ("né 😀 日本 fin", ["😀 日"]),
    "twenty-held-back": ("one time there was a little", ["time there was a little more"]),
}


def cut_at_stop(text: str, stops: Sequence[str]) -> str | None:
    """Return the text before the stop string whose last character comes first, or None."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[:end - len(stop)]
    return None


def tokens_to_stop(tokenizer: Tokenizer, tokens: Sequence[int], stops: Sequence[str]) -> int | None:
    """Return how many tokens are emitted until a stop string is complete."""
    for count in range(1, len(tokens) + 1):
        text = tokenizer.decode(tokens[:count]).rstrip("\ufffd")
        if cut_at_stop(text, stops) is not None:
            return count
    return None


def echo_body(endpoint: str, text: str, **more: Any) -> dict[str, Any]:
    """Return a body that makes the fake path emit a text."""
    return make_body(endpoint, text + PAD_TOKEN, **more)


# Refused bodies, with the status and the field that the error must name.

GOOD: dict[str, Any] = {"prompt": "the", "max_tokens": 2}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "the"}], "max_tokens": 2}
BadCase = tuple[Any, int, str | None]
EVERYWHERE: dict[str, BadCase] = {
    "unknown-field": ({"best_off": 2}, 400, "best_off"),
    "unknown-unicode-field": ({"größe": 2}, 400, "größe"),
    "model-is-another": ({"model": "gpt-9"}, 404, "model"),
    "model-is-no-text": ({"model": 4}, 400, "model"),
    "max-tokens-is-text": ({"max_tokens": "4"}, 400, "max_tokens"),
    "max-tokens-is-true": ({"max_tokens": True}, 400, "max_tokens"),
    "max-tokens-is-a-fraction": ({"max_tokens": 1.5}, 400, "max_tokens"),
    "max-tokens-is-zero": ({"max_tokens": 0}, 400, "max_tokens"),
    "max-tokens-is-huge": ({"max_tokens": 10 ** 30}, 400, "max_tokens"),
    "max-tokens-do-not-fit": ({"max_tokens": 100000}, 400, "max_tokens"),
    "temperature-is-negative": ({"temperature": -0.1}, 400, "temperature"),
    "temperature-is-text": ({"temperature": "hot"}, 400, "temperature"),
    "top-p-is-zero": ({"top_p": 0}, 400, "top_p"),
    "top-p-is-above-one": ({"top_p": 1.01}, 400, "top_p"),
    "top-k-is-negative": ({"top_k": -2}, 400, "top_k"),
    "seed-is-text": ({"seed": "7"}, 400, "seed"),
    "stop-is-empty": ({"stop": ""}, 400, "stop"),
    "stop-has-a-number": ({"stop": ["a", 3]}, 400, "stop"),
    "stop-has-too-many": ({"stop": ["a"] * 17}, 400, "stop"),
    "two-choices": ({"n": 2}, 400, "n"),
    "choices-are-true": ({"n": True}, 400, "n"),
    "choices-are-a-fraction": ({"n": 1.0}, 400, "n"),
    "stream-is-text": ({"stream": "yes"}, 400, "stream"),
    "usage-without-stream": ({"stream_options": {"include_usage": True}}, 400, "stream_options"),
    "option-of-the-stream-unknown": (
        {"stream": True, "stream_options": {"usage": True}}, 400, "stream_options.usage"),
}
COMPLETIONS: dict[str, BadCase] = {
    "prompt-is-missing": ({"prompt": ...}, 400, "prompt"),
    "prompt-is-empty": ({"prompt": ""}, 400, "prompt"),
    "prompt-is-an-empty-list": ({"prompt": []}, 400, "prompt"),
    "prompt-is-many": ({"prompt": ["a", "b"]}, 400, "prompt"),
    "token-outside-the-vocabulary": ({"prompt": [1, 509]}, 400, "prompt"),
    "token-is-negative": ({"prompt": [-1]}, 400, "prompt"),
    "prompt-does-not-fit": ({"prompt": [1] * 129, "max_tokens": 1}, 400, "prompt"),
    "logprobs-are-too-many": ({"logprobs": 21}, 400, "logprobs"),
    "logprobs-are-true": ({"logprobs": True}, 400, "logprobs"),
}
CHATS: dict[str, BadCase] = {
    "messages-are-missing": ({"messages": ...}, 400, "messages"),
    "messages-are-empty": ({"messages": []}, 400, "messages"),
    "messages-are-text": ({"messages": "hello"}, 400, "messages"),
    "role-is-unknown": (
        {"messages": [{"role": "king", "content": "a"}]}, 400, "messages.0.role"),
    "content-is-missing": ({"messages": [{"role": "user"}]}, 400, "messages.0.content"),
    "second-content-is-a-number": (
        {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": 1}]},
        400, "messages.1.content"),
    "message-has-an-unknown-field": (
        {"messages": [{"role": "user", "content": "a", "colour": "red"}]}, 400,
        "messages.0.colour"),
    "top-without-logprobs": ({"top_logprobs": 2}, 400, "top_logprobs"),
    "two-limits": ({"max_completion_tokens": 3}, 400, "max_tokens"),
}
RAW_BODIES: dict[str, tuple[bytes, int, str | None]] = {
    "nothing": (b"", 400, None),
    "half-an-object": (b'{"model": "nano", "prompt": "a"', 400, None),
    "a-list": (b"[]", 400, None),
    "null": (b"null", 400, None),
    "no-utf-8": (b'{"model": "nano", "prompt": "\xff"}', 400, None),
    "half-a-surrogate-pair": (b'{"model": "nano", "prompt": "\\ud800"}', 400, None),
    "deep": (b'{"model":' + b"[" * 1000, 400, None),
    "not-a-number": (b'{"model": "nano", "temperature": NaN}', 400, "temperature"),
    "long-number": (b'{"model": "nano", "seed": ' + b"9" * 1000 + b"}", 400, "seed"),
    "too-large": (b'{"model": "nano", "prompt": "' + b"a" * 3000 + b'"}', 413, None),
}
HOSTILE_TEMPLATES: dict[str, str] = {
    "reaches-classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "reaches-globals": "{{ cycler.__init__.__globals__.os.mkdir(messages[0].content) }}",
    "reaches-by-attr": "{{ (messages|attr('append'))({}) }}",
    "changes-its-input": "{% set _ = messages.append({}) %}{{ messages }}",
    "wide-range": "{% for i in range(100001) %}x{% endfor %}",
    "writes-too-much": "{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
    "takes-too-long": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}"
                      "{% endfor %}",
    "takes-too-much": "{{ ('x' * 4000000000)|length }}",
    "one-huge-number": "{{ (9 ** (9 ** 9))|string|length }}",
    "opens-a-file": "{% include '/etc/hostname' %}",
    "no-template": "{% for message in messages %}",
    "does-not-exist": "{{ messages|undefined_filter }}",
}
BROKEN_TEMPLATES = ("no-template", "does-not-exist")
"""Templates that fail for any messages."""
CHAT_FAILURES: dict[str, str] = {
    "time": "{% for i in m %}{% for j in m %}{% for k in m %}{% endfor %}{% endfor %}{% endfor %}",
    "memory": "{{ (m * 4000000)|length }}",
    "size": "{% for i in m %}{{ m * 9 }}{% endfor %}",
    "undefined": "{{ messages[0].nothing.more }}",
    "raised": "{{ raise_exception('no more') }}",
}
"""Templates that fail for some messages; `m` is a message of a thousand letters or more."""
CHAT_TURNS: tuple[tuple[list[dict[str, Any]], str], ...] = (
    ([{"role": "user", "content": "the"}], "<|im_start|>user\nthe<|im_end|>\n"),
    ([{"role": "user", "content": "one"}], "<|im_start|>user\none<|im_end|>\n"),
    ([{"role": "system", "content": "of"}, {"role": "user", "content": "the"}],
     "<|im_start|>system\nof<|im_end|>\n<|im_start|>user\nthe<|im_end|>\n"),
    ([{"role": "user", "content": [{"type": "text", "text": "o"}, {"type": "text", "text": "ne"}]},
      {"role": "assistant", "content": ""}, {"role": "user", "content": "😀"}],
     "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n"
     "<|im_start|>user\n😀<|im_end|>\n"),
)
