"""One request after another, alone, by the oracle, and each token drawn the plainest way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

from engine.arithmetic import divide, exp, log_softmax_at
from engine.model import Model
from phases.p0_scheduler import increment as before
from phases.p0_scheduler.increment import Emitted, Request, Served
from phases.p2_engine_serve.hybrid_engine import HybridEngine
from phases.p2_engine_serve.sampling import Sampling, uniform


def serve(engine: HybridEngine, requests: Iterable[Request],
          eos: frozenset[int] = frozenset()) -> list[Served]:
    """Serve the requests in order with `forward_single`; of the engine only the model is used."""
    return before.stack().serial(_SerialEngine(engine.model), requests, eos)


class _SerialEngine:
    """What P0's serial peer asks of an engine."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def run_single(self, request: Request) -> Iterator[Emitted]:
        """Yield the request's tokens without end."""
        state = self.model.new_state(len(request.tokens) + request.limit)
        option = request.sampler if isinstance(request.sampler, Sampling) else Sampling()
        logits, held = self.model.prefill(request.tokens, state), len(request.tokens)
        for number in range(request.limit):
            token = pick(logits, option, number)
            yield Emitted(0, token, log_softmax_at(logits, token), tuple(
                (i, log_softmax_at(logits, i)) for i in ranked(logits)[:option.top]))
            logits = self.model.forward_single(token, state, held + number)


def ranked(logits: Tensor) -> list[int]:
    """Return every token, the likeliest first and the lower id first on ties."""
    values = logits.tolist()
    return sorted(range(len(values)), key=lambda token: (-values[token], token))


def pick(logits: Tensor, option: Sampling, number: int) -> int:
    """Draw token `number` of a request from its logits f32[vocab]."""
    order = ranked(logits)
    if option.temperature == 0:
        return order[0]
    scaled = divide(logits - logits.max(), option.temperature)
    weights = [float(w) for w in exp(scaled).tolist()]
    order = order[:option.top_k or None]
    if option.top_p < 1:
        order = _nucleus(order, weights, option.top_p)
    whole = sum_of(weights[token] for token in sorted(order))
    mark, passed = uniform(option.seed, number) * whole, 0.0
    for token in sorted(order):
        passed += weights[token]
        if passed > mark:
            return token
    return max(token for token in order if weights[token] > 0)


def _nucleus(order: list[int], weights: list[float], share: float) -> list[int]:
    whole = sum_of(weights[token] for token in order)
    kept: list[int] = []
    passed = 0.0
    for token in order:
        kept.append(token)
        passed += weights[token]
        if passed >= share * whole:
            break
    return kept


def sum_of(values: Iterable[float]) -> float:
    """Add in order, rounding each time, which Python's own `sum` of floats no longer does."""
    whole = 0.0
    for value in values:
        whole += value
    return whole
