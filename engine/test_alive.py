"""Holds the weights of `nano` to be alive: streams that vary, state whose damage is heard.

A test model that repeats one token, or whose tokens ignore its state, would let every broken
kernel pass. The other test models are held to the same by `python -m engine.test_alive NAME`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby

import pytest
import torch
from torch import Tensor

from engine import draw, testmodels
from engine.model import Model
from engine.state import State

PROMPTS, LENGTH = 8, 128
DAMAGED, AGE, HEARD = 12, 4, 8
"""State is damaged after 12 tokens, or set back by 4, and must be heard within 8."""
Named = dict[str, Tensor]


@dataclass(frozen=True)
class Stream:
    """One prompt's greedy tokens, and the state it had at two moments."""

    tokens: list[int]
    position: int
    """Tokens the state `now` holds."""
    now: Named
    before: Named
    """The state `AGE` tokens earlier."""


def prompt(model: Model, number: int) -> list[int]:
    """Return a random prompt of 3 to 10 tokens."""
    raw = draw.raw_bytes(f"prompt {number}", 2 * (3 + number)).view("<u2")
    return [int(word) % model.config.vocab for word in raw]


def follow(model: Model, number: int) -> Stream:
    """Decode one prompt greedily for LENGTH tokens."""
    start = prompt(model, number)
    state = model.new_state(len(start) + LENGTH)
    logits, tokens, kept = model.prefill(start, state), [], {}
    for step in range(LENGTH):
        tokens.append(int(logits.argmax()))
        if step in (DAMAGED - AGE, DAMAGED):
            kept[step] = {name: view.clone() for name, view in state.named().items()}
        logits = model.forward_single(tokens[-1], state, len(start) + step)
    return Stream(tokens, len(start) + DAMAGED, kept[DAMAGED], kept[DAMAGED - AGE])


@cache
def streams(name: str) -> tuple[Stream, ...]:
    """Follow every prompt of one test model."""
    return tuple(follow(testmodels.load(name), number) for number in range(PROMPTS))


def damages(stream: Stream, other: Stream) -> Iterator[tuple[str, str, Tensor]]:
    """Yield every tensor of a state with each damage: its name, the damage, what it becomes."""
    for name, value in stream.now.items():
        yield name, "cleared", value * 0
        rows = min(len(value), len(other.now[name]))
        swapped = value.clone()
        swapped[:rows] = other.now[name][:rows]
        yield name, "swapped", swapped
        yield name, "aged", stream.before[name]


def heard(model: Model, stream: Stream, name: str, value: Tensor) -> bool:
    """Tell whether a damaged tensor changes a token within HEARD steps."""
    state = model.new_state(stream.position + HEARD)
    restore(state, stream.now | {name: value})
    token = stream.tokens[DAMAGED]
    for step in range(HEARD):
        token = int(model.forward_single(token, state, stream.position + step).argmax())
        if token != stream.tokens[DAMAGED + 1 + step]:
            return True
    return False


def restore(state: State, named: Named) -> None:
    """Write tensors into a state, KV rows as far as it goes."""
    for name, view in state.named().items():
        view.copy_(named[name][:len(view)])


def longest_run(tokens: list[int]) -> int:
    """Return how often one token stands in a row at most."""
    return max(len(list(group)) for _, group in groupby(tokens))


def unheard(name: str) -> dict[str, int]:
    """Count, for each tensor and damage of one test model, the prompts that did not hear it."""
    model = testmodels.load(name)
    counts: dict[str, int] = {}
    for number, stream in enumerate(streams(name)):
        for tensor, damage, value in damages(stream, streams(name)[number - 1]):
            key = f"{tensor} {damage}"
            counts[key] = counts.get(key, 0) + (not heard(model, stream, tensor, value))
    return counts


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small products are many times faster on one thread than on several that wait."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_streams_vary_and_do_not_stick_to_a_token() -> None:
    for stream in streams("nano"):
        assert longest_run(stream.tokens) <= 4
        assert len(set(stream.tokens)) >= 64


def test_no_two_prompts_give_the_same_stream() -> None:
    assert len({tuple(stream.tokens[-8:]) for stream in streams("nano")}) == PROMPTS


def test_damage_to_any_state_is_heard_within_eight_tokens() -> None:
    counts = unheard("nano")
    assert len(counts) == 4 * 3
    # A token is the largest of hundreds of logits, so one prompt in eight may not notice.
    assert {key: count for key, count in counts.items() if count > 1} == {}


def test_state_that_is_whole_changes_no_token() -> None:
    model, stream = testmodels.load("nano"), streams("nano")[0]
    assert not heard(model, stream, "0.conv", stream.now["0.conv"])


def main(name: str) -> None:
    """Print what the tests hold for one test model."""
    for stream in streams(name):
        print(f"{name}: run {longest_run(stream.tokens)}, distinct {len(set(stream.tokens))}")
    print({key: count for key, count in unheard(name).items() if count} or "all damage heard")


if __name__ == "__main__":
    main(sys.argv[1])
