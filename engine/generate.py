"""Greedy decoding of one sequence, with log-probabilities, and teacher-forced logits."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.arithmetic import log_softmax_at
from engine.errors import InputError
from engine.model import Model


@dataclass(frozen=True)
class Token:
    """One generated token."""

    id: int
    logprob: float
    """Natural logarithm, an f32 value."""


def check_prompt(model: Model, tokens: Sequence[int], limit: int) -> None:
    """Raise `InputError` if a prompt is empty, out of vocabulary, or too long with `limit`."""
    if not tokens:
        raise InputError("the prompt is empty: pass at least one token")
    if limit < 1:
        raise InputError(f"a limit of {limit} new tokens is refused: use at least 1")
    if len(tokens) + limit > model.config.context:
        raise InputError(f"a prompt of {len(tokens)} tokens and {limit} new ones do not fit the "
                         f"model's context of {model.config.context}")
    for token in tokens:
        if not 0 <= token < model.config.vocab:
            raise InputError(f"token {token} is outside the vocabulary of {model.config.vocab}")


def generate_greedy(model: Model, tokens: Sequence[int], limit: int,
                    ends: Collection[int] = ()) -> Iterator[Token]:
    """Yield up to `limit` greedy tokens after the prompt; an end token is yielded last."""
    check_prompt(model, tokens, limit)
    state = model.new_state(len(tokens) + limit)
    logits = model.prefill(tokens, state)
    choice = torch.empty(1, dtype=torch.int64)
    for position in range(len(tokens), len(tokens) + limit):
        model.ops.argmax(logits[None], choice)
        token = int(choice)
        yield Token(token, log_softmax_at(logits, token))
        if token in ends or position + 1 == len(tokens) + limit:
            return
        logits = model.forward_single(token, state, position)


def forced_logits(model: Model, tokens: Sequence[int]) -> Tensor:
    """Return logits f32[t, vocab] after each of the given tokens."""
    check_prompt(model, tokens, 1)
    state = model.new_state(len(tokens))
    return torch.stack([model.forward_single(token, state, position)
                        for position, token in enumerate(tokens)])


def write_logits(model: Model, tokens: Sequence[int], out: Path) -> None:
    """Write `tokens` i64[t] and `logits` f32[t, vocab] to a new safetensors file."""
    if os.path.lexists(out):
        raise InputError(f"{out}: exists already; choose a new file")
    if not out.parent.is_dir():
        raise InputError(f"{out.parent}: is not a folder")
    check_prompt(model, tokens, 1)
    try:  # fail before anything is computed
        with out.open("xb"):
            pass
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error.strerror}") from None
    try:
        save_file({"tokens": torch.tensor(list(tokens)), "logits": forced_logits(model, tokens)},
                  out, metadata={"model": str(model.path and model.path.name),
                                 "arithmetic": "exact-23"})
    except BaseException:
        out.unlink(missing_ok=True)
        raise
