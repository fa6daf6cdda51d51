"""The weights of `nano` give streams that vary and that change when the state is damaged.

With a test model that repeats one token, or whose tokens ignore its state, every broken kernel
would pass. `python -m engine.test_alive NAME` measures another test model.
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
DAMAGE_AFTER, AGE, DETECT_STEPS = 12, 4, 8
"""State is damaged after 12 tokens, or set back by 4, and tokens must change within 8."""
NamedTensors = dict[str, Tensor]


@dataclass(frozen=True)
class Stream:
    """One prompt's greedy tokens, and its state at two positions."""

    tokens: list[int]
    position: int
    """Tokens that `state` has consumed."""
    state: NamedTensors
    earlier_state: NamedTensors
    """The state `AGE` tokens earlier."""


def random_prompt(model: Model, number: int) -> list[int]:
    """Return a random prompt of 3 to 10 tokens."""
    raw = draw.random_bytes(f"prompt {number}", 2 * (3 + number)).view("<u2")
    return [int(word) % model.config.vocab for word in raw]


def decode_stream(model: Model, number: int) -> Stream:
    """Decode one prompt greedily for LENGTH tokens."""
    start = random_prompt(model, number)
    state = model.new_state(len(start) + LENGTH)
    logits, tokens, states = model.prefill(start, state), [], {}
    for step in range(LENGTH):
        tokens.append(int(logits.argmax()))
        if step in (DAMAGE_AFTER - AGE, DAMAGE_AFTER):
            states[step] = {name: view.clone() for name, view in state.named().items()}
        logits = model.forward_single(tokens[-1], state, len(start) + step)
    return Stream(tokens, len(start) + DAMAGE_AFTER, states[DAMAGE_AFTER],
                  states[DAMAGE_AFTER - AGE])


@cache
def decode_streams(name: str) -> tuple[Stream, ...]:
    """Return the streams of every prompt of one test model."""
    return tuple(decode_stream(testmodels.load(name), number) for number in range(PROMPTS))


def damaged_tensors(stream: Stream, other: Stream) -> Iterator[tuple[str, str, Tensor]]:
    """Yield the name of every tensor of a state, each damage, and the damaged tensor."""
    for name, value in stream.state.items():
        yield name, "cleared", value * 0
        rows = min(len(value), len(other.state[name]))
        swapped = value.clone()
        swapped[:rows] = other.state[name][:rows]
        yield name, "swapped", swapped
        yield name, "aged", stream.earlier_state[name]


def changes_tokens(model: Model, stream: Stream, name: str, value: Tensor) -> bool:
    """Return whether a damaged tensor changes a token within DETECT_STEPS steps."""
    state = model.new_state(stream.position + DETECT_STEPS)
    write_state(state, stream.state | {name: value})
    token = stream.tokens[DAMAGE_AFTER]
    for step in range(DETECT_STEPS):
        token = int(model.forward_single(token, state, stream.position + step).argmax())
        if token != stream.tokens[DAMAGE_AFTER + 1 + step]:
            return True
    return False


def write_state(state: State, named: NamedTensors) -> None:
    """Write tensors into a state, KV rows up to its capacity."""
    for name, view in state.named().items():
        view.copy_(named[name][:len(view)])


def longest_run(tokens: list[int]) -> int:
    """Return the longest run of one repeated token."""
    return max(len(list(group)) for _, group in groupby(tokens))


def count_undetected(name: str) -> dict[str, int]:
    """Count, for each tensor and damage of a test model, the prompts whose tokens stay equal."""
    model = testmodels.load(name)
    counts: dict[str, int] = {}
    for number, stream in enumerate(decode_streams(name)):
        for tensor, damage, value in damaged_tensors(stream, decode_streams(name)[number - 1]):
            key = f"{tensor} {damage}"
            counts[key] = counts.get(key, 0) + (not changes_tokens(model, stream, tensor, value))
    return counts


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Run on one thread, which is many times faster for small products."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_streams_vary_and_do_not_stick_to_a_token() -> None:
    for stream in decode_streams("nano"):
        assert longest_run(stream.tokens) <= 4
        assert len(set(stream.tokens)) >= 64


def test_no_two_prompts_give_the_same_stream() -> None:
    assert len({tuple(stream.tokens[-8:]) for stream in decode_streams("nano")}) == PROMPTS


def test_damage_to_any_state_changes_a_token_within_eight() -> None:
    counts = count_undetected("nano")
    assert len(counts) == 4 * 3
    # A token is the largest of hundreds of logits, so one prompt in eight may not change.
    assert {key: count for key, count in counts.items() if count > 1} == {}


def test_undamaged_state_changes_no_token() -> None:
    model, stream = testmodels.load("nano"), decode_streams("nano")[0]
    assert not changes_tokens(model, stream, "0.conv", stream.state["0.conv"])


def main(name: str) -> None:
    """Print what the tests check for one test model."""
    for stream in decode_streams(name):
        print(f"{name}: run {longest_run(stream.tokens)}, distinct {len(set(stream.tokens))}")
    print({key: count for key, count in count_undetected(name).items() if count}
          or "all damage changes a token")


if __name__ == "__main__":
    main(sys.argv[1])
