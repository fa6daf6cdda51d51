"""Draws the next token of every row of a step, each only from its own row, options and seed.

Weights are EXP [14] of (x - M) / T in f32, so a row's draw is the same on every device. Their sums
are computed on the host, where thousands of additions in order need no kernel launches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.arithmetic import NORM_LANES, exp, pairwise_sum
from engine.errors import InputError

MAX_TOP = 20
SEED_COUNT = 1 << 64


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one request's tokens are drawn; raises `InputError` for values out of range."""

    temperature: float = 0.0
    """0 picks the most likely token and ignores the other options."""
    top_k: int = 0
    """Draw among the k most likely tokens, the lower id first on ties; 0 means no limit."""
    top_p: float = 1.0
    """Draw among the fewest most likely tokens with this much probability in sum."""
    seed: int = 0
    """Determines every draw, together with the token's number."""
    top: int = 0
    """How many of the most likely tokens to report with each token."""

    def __post_init__(self) -> None:
        for name, value, fine in (
                ("temperature", self.temperature, 0 <= self.temperature < math.inf),
                ("top_k", self.top_k, self.top_k >= 0), ("top_p", self.top_p, 0 < self.top_p <= 1),
                ("seed", self.seed, 0 <= self.seed < SEED_COUNT),
                ("top", self.top, 0 <= self.top <= MAX_TOP)):
            if not fine:
                raise InputError(f"{name} is {value}, which is out of range")


@dataclass(frozen=True, slots=True)
class DrawnToken:
    """A drawn token, with log-probabilities of the model's logits, before any option."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def uniform(seed: int, number: int) -> float:
    """Return a number in [0, 1) that depends only on the seed and the token's number."""
    raw = np.random.Philox(key=seed, counter=number).random_raw()
    return float(raw >> 11) * 2.0 ** -53


def draw(logits: Tensor, choices: Sequence[int], options: Sequence[Sampling],
         numbers: Sequence[int]) -> list[DrawnToken]:
    """Draw a token for each row of logits f32[m, vocab].

    choices[m] are the most likely tokens, options[m] say how to draw, and numbers[m] are the counts
    of tokens drawn before.
    """
    top = logits.amax(-1)
    sums = row_sums(exp(logits - top.unsqueeze(-1)))
    tokens = list(choices)
    sampled = [row for row, option in enumerate(options) if option.temperature > 0]
    if sampled:
        picks = _sample(logits[sampled], top[sampled], [options[row] for row in sampled],
                        [numbers[row] for row in sampled])
        for row, token in zip(sampled, picks, strict=True):
            tokens[row] = token
    reported = [[token, *line] for token, line in zip(
        tokens, _top_tokens(logits, [option.top for option in options]), strict=True)]
    return [DrawnToken(line[0], logprobs[0], tuple(zip(line[1:], logprobs[1:], strict=True)))
            for line, logprobs in zip(reported, _logprobs(logits, top, sums, reported),
                                      strict=True)]


def _logprobs(logits: Tensor, top: Tensor, sums: Sequence[float],
              reported: Sequence[Sequence[int]]) -> list[list[float]]:
    """Return the log-probability [26] of each row's tokens; -inf becomes the least f32 for JSON."""
    rows = [row for row, line in enumerate(reported) for _ in line]
    values = iter((logits[rows, [t for line in reported for t in line]] - top[rows]).tolist())
    return [[max(float(np.float32(next(values) - log_sum)), _MIN_F32) for _ in line]
            for line, log_sum in zip(reported, map(math.log, sums), strict=True)]


def row_sums(weights: Tensor) -> list[float]:
    """Return SUM [11] of each row of f32[m, n]: 128 lanes in order, then adjacent pairs."""
    m, n = weights.shape
    padded = torch.empty(m, n + -n % NORM_LANES, pin_memory=weights.is_cuda)
    padded[:, :n], padded[:, n:] = weights, 0.0
    # numpy adds in order along every axis but the last
    lanes = np.add.reduce(padded.view(m, -1, NORM_LANES).numpy(), axis=1)
    sums: list[float] = pairwise_sum(torch.from_numpy(lanes)).tolist()
    return sums


def _top_tokens(logits: Tensor, counts: Sequence[int]) -> list[list[int]]:
    """Return each row's most likely tokens, best first, the lower id first on ties."""
    found: list[list[tuple[float, int]]] = [[] for _ in counts]
    most = min(max(counts), logits.shape[-1])
    if most:
        near = (logits >= logits.topk(most).values[:, -1:]).nonzero(as_tuple=True)
        for row, token, value in zip(*(x.tolist() for x in (*near, logits[near])), strict=True):
            found[row].append((-value, token))
    return [[token for _, token in sorted(line)[:count]]
            for line, count in zip(found, counts, strict=True)]


def _sample(logits: Tensor, top: Tensor, options: Sequence[Sampling],
            numbers: Sequence[int]) -> list[int]:
    """Invert each row's cumulative weights, in order of id, at the row's uniform number."""
    heat = top.new_tensor([max(option.temperature, _TINY_F32) for option in options])
    scaled = (logits - top.unsqueeze(-1)) / heat.unsqueeze(-1)
    every, values = exp(scaled).double().cpu().numpy(), logits.cpu().numpy()
    return [_invert_cdf(_filter_weights(*row), option, number)
            for *row, option, number in zip(every, values, options, options, numbers, strict=True)]


def _filter_weights(weights: NDArray[np.float64], values: NDArray[np.float32],
                    option: Sampling) -> NDArray[np.float64]:
    """Return the weights, zero for tokens that top_k or top_p excludes."""
    if option.top_k:
        weights = np.where(_top_k_mask(values, option.top_k), weights, 0.0)
    if option.top_p < 1:
        weights = np.where(_top_p_mask(values, weights, option.top_p), weights, 0.0)
    return weights


def _invert_cdf(weights: NDArray[np.float64], option: Sampling, number: int) -> int:
    sums = np.cumsum(weights)
    at = int(np.searchsorted(sums, uniform(option.seed, number) * sums[-1], side="right"))
    return min(at, int(weights.nonzero()[0][-1]))  # the product may round up to the sum


_MIN_F32 = float(np.finfo(np.float32).min)
_TINY_F32 = float(np.finfo(np.float32).tiny)
"""Replaces temperatures that f32 rounds to zero."""


def _top_k_mask(values: NDArray[np.float32], count: int) -> NDArray[np.bool_]:
    """Return a mask of the `count` largest values, the earlier first on ties."""
    if count >= len(values):
        return np.ones(len(values), dtype=np.bool_)
    least = np.partition(values, -count)[-count]
    above: NDArray[np.bool_] = values > least
    ties = np.flatnonzero(values == least)[:count - int(above.sum())]
    above[ties] = True
    return above


def _top_p_mask(values: NDArray[np.float32], weights: NDArray[np.float64],
                share: float) -> NDArray[np.bool_]:
    """Return a mask of the fewest top tokens whose weights reach the share; ties by id."""
    order = np.argsort(-values, kind="stable")
    sums = np.cumsum(weights[order])
    keep = int(np.searchsorted(sums, share * sums[-1])) + 1
    marked = np.zeros(len(weights), dtype=np.bool_)
    marked[order[:keep]] = True
    return marked
