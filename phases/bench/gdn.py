"""Times of the recurrent ops of a 4B layer on a device, next to the memory floor of the same run.

A figure is the median of graph replays over the states of as many layers as do not fit the L2
cache, in microseconds a layer. The floor is the bytes that an op must read and write over the read
bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from engine.config import CONV_TAPS, STATE_SIZE
from engine.state import Ints, Refs
from falsifiers.gate.benchmark_records import OpTime, OpTimes
from phases.bench.device_timing import (
    BYTES_BEYOND_CACHE,
    conditions,
    measure_bandwidth,
    time_replays,
)
from phases.p5_batched_gdn import kernel_gdn_cuda as kernels

KEY_HEADS, VALUE_HEADS = 16, 32
CHANNELS = (2 * KEY_HEADS + VALUE_HEADS) * STATE_SIZE


@dataclass(frozen=True)
class OpRuns:
    """One op: a run for each layer, and the bytes that one run must move."""

    op: str
    runs: list[Callable[[], object]]
    size: int


def _make_states(m: int, layers: int, *shape: int) -> list[Refs]:
    """Return small random states of m rows for every layer, with their device addresses."""
    states = [torch.randn(m, *shape, device="cuda") * 0.1 for _ in range(layers)]
    plain = [Refs(state, tuple(range(m))) for state in states]
    return [Refs(refs.all_slots, refs.slots, refs.pointers) for refs in plain]


def _make_ops(m: int, tokens: int) -> Iterator[OpRuns]:
    """Yield every op over m rows of `tokens` tokens."""
    layers = max(2, BYTES_BEYOND_CACHE // (m * VALUE_HEADS * STATE_SIZE * STATE_SIZE * 4))
    t, counts = m * tokens, Ints((tokens,) * m)
    x, mixed = (torch.randn(t, CHANNELS, device="cuda") for _ in range(2))
    taps = torch.randn(CHANNELS, CONV_TAPS, device="cuda")
    q, k, v = (head.unflatten(1, (-1, STATE_SIZE)) for head in mixed.split(
        (KEY_HEADS * STATE_SIZE, KEY_HEADS * STATE_SIZE, VALUE_HEADS * STATE_SIZE), 1))
    a, b, alpha, beta = (torch.randn(t, VALUE_HEADS, device="cuda") for _ in range(4))
    neg_exp_a = -torch.rand(VALUE_HEADS, device="cuda")
    dt_bias = torch.zeros(VALUE_HEADS, device="cuda")
    out, y = torch.empty(t, VALUE_HEADS, STATE_SIZE, device="cuda"), torch.empty_like(x)
    windows = _make_states(m, layers, CHANNELS, CONV_TAPS - 1)
    states = _make_states(m, layers, VALUE_HEADS, STATE_SIZE, STATE_SIZE)

    def size(*tensors: Tensor) -> int:
        return sum(tensor.nbytes for tensor in tensors)

    yield OpRuns("conv_step", [partial(kernels.conv_step, x, taps, refs, counts, y)
                               for refs in windows], 2 * size(windows[0].all_slots, x) + size(taps))
    yield OpRuns("gates", [partial(kernels.gates, a, b, neg_exp_a, dt_bias, alpha, beta)] * layers,
                 2 * size(a, b))
    yield OpRuns("delta_step", [
        partial(kernels.delta_step, q, k, v, alpha, beta, refs, counts, out) for refs in states],
        2 * size(states[0].all_slots) + size(mixed, out))


def measure(ms: Sequence[int], tokens: int = 1,
            tell: Callable[[str], None] = lambda line: None) -> OpTimes:
    """Time every op at every width, with `tokens` tokens in each row."""
    bandwidth, figures = measure_bandwidth(), list[OpTime]()
    for m in ms:
        found = [OpTime.model_validate({
            "op": one.op, "m": m, "tokens": tokens, "floor": one.size / bandwidth * 1e6,
            **time_replays(one.runs)}) for one in _make_ops(m, tokens)]
        total, floor = sum(f.microseconds for f in found), sum(f.floor for f in found)
        tell(f"m={m}: " + ", ".join(f"{f.op} {f.microseconds:.2f} ({f.floor:.2f})" for f in found)
             + f", all {total:.2f} us, {total / floor:.2f} of the floor")
        figures += found
    return OpTimes(**conditions("cuda", bandwidth), figures=tuple(figures))
