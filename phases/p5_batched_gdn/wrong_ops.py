"""Wrong convolutions, gates and delta rules: their arithmetic, windows, heads and order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from engine import ops
from engine.arithmetic import l2_norm, ordered_sum, silu
from engine.state import Refs
from phases.p5_batched_gdn import reference
from phases.wrong_refs import Op

Counts = tuple[int, ...]


def varied_conv_step(x: Tensor, taps: Tensor, windows: Refs, counts: Counts, out: Tensor, *,
                     order: tuple[int, ...] = (0, 1, 2, 3), shift: int = 1,
                     activation: Callable[[Tensor], Tensor] = silu) -> None:
    """Run a convolution with another order of taps, number of shifts or activation."""
    at = 0
    for slot, count in zip(windows.slots, counts, strict=True):
        for _ in range(count):
            window = windows.all_slots[slot]
            values = [*window.unbind(1), x[at]]
            y = taps[:, 0] * values[order[0]]
            for tap in (1, 2, 3):
                y = y + taps[:, tap] * values[order[tap]]
            out[at] = activation(y)
            for _ in range(shift):
                window.copy_(torch.stack([window[:, 1], window[:, 2], x[at]], dim=1))
            if not shift:
                window[:, 2] = x[at]
            at += 1


taps_reversed = partial(varied_conv_step, order=(3, 2, 1, 0))
window_backwards = partial(varied_conv_step, order=(2, 1, 0, 3))
window_not_shifted = partial(varied_conv_step, shift=0)
window_shifted_twice = partial(varied_conv_step, shift=2)
library_silu = partial(varied_conv_step, activation=torch.nn.functional.silu)


def short_chunks_not_shifted(x: Tensor, taps: Tensor, windows: Refs, counts: Counts,
                             out: Tensor) -> None:
    old = windows.all_slots.clone()
    reference.conv_step(x, taps, windows, counts, out)
    for slot, count in zip(windows.slots, counts, strict=True):
        if 0 < count < 3:
            windows.all_slots[slot][:, :3 - count] = old[slot][:, :3 - count]


def chunk_window_in_another_layout(x: Tensor, taps: Tensor, windows: Refs, counts: Counts,
                                   out: Tensor) -> None:
    reference.conv_step(x, taps, windows, counts, out)
    for slot, count in zip(windows.slots, counts, strict=True):
        if count > 1:
            window = windows.all_slots[slot]
            window.copy_(window.T.reshape(window.shape).clone())


def window_from_the_packed_tokens(x: Tensor, taps: Tensor, windows: Refs, counts: Counts,
                                  out: Tensor) -> None:
    at = 0
    for slot, count in zip(windows.slots, counts, strict=True):
        if count > 1 and at >= 3:
            windows.all_slots[slot].copy_(x[at - 3:at].T)
        at += count
    reference.conv_step(x, taps, windows, counts, out)


def _sum_pairwise(x: Tensor) -> Tensor:
    return ordered_sum(x.transpose(1, 2))


def _sum_by_library(x: Tensor) -> Tensor:
    return x.sum(1)


def _sum_in_order(x: Tensor) -> Tensor:
    y = torch.zeros_like(x[:, 0])
    for key in range(x.shape[1]):
        y = y + x[:, key]
    return y


def _sum_halves(x: Tensor) -> Tensor:
    while x.shape[1] > 1:
        x = x[:, :x.shape[1] // 2] + x[:, x.shape[1] // 2:]
    return x[:, 0] + 0.0


def _sum_without_zero(x: Tensor) -> Tensor:
    while x.shape[1] > 1:
        x = x[:, 0::2] + x[:, 1::2]
    return x[:, 0]


def _write(decayed: Tensor, k: Tensor, change: Tensor) -> Tensor:
    return decayed + k * change


def _write_contracted(decayed: Tensor, k: Tensor, change: Tensor) -> Tensor:
    return (decayed.double() + k.double() * change.double()).float()


def varied_delta_step(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, states: Refs, counts: Counts,
        out: Tensor, *, sum_keys: Callable[[Tensor], Tensor] = _sum_pairwise, eps: float = 1e-6,
        scale: float | None = None, side_by_side: bool = False, decay_late: bool = False,
        read_early: bool = False, write: Callable[..., Tensor] = _write) -> None:
    """Run a delta rule, one row after another, that may differ in one step."""
    groups = v.shape[1] // k.shape[1]
    q = l2_norm(q, eps) * (reference.scale_of(q) if scale is None else scale)
    k = l2_norm(k, eps)
    if side_by_side:
        q, k = q.repeat_interleave(groups, 1), k.repeat_interleave(groups, 1)
    else:
        q, k = q.repeat(1, groups, 1), k.repeat(1, groups, 1)
    at = 0
    for slot, count in zip(states.slots, counts, strict=True):
        for _ in range(count):
            state = states.all_slots[slot]
            decayed = state * g[at, :, None, None]
            read = sum_keys((state if decay_late else decayed) * k[at, :, :, None])
            change = beta[at, :, None] * (v[at] - read)
            moved = write(decayed, k[at, :, :, None], change[:, None, :])
            out[at] = sum_keys((decayed if read_early else moved) * q[at, :, :, None])
            state.copy_(moved)
            at += 1


keys_shared_side_by_side = partial(varied_delta_step, side_by_side=True)
decay_after_the_read = partial(varied_delta_step, decay_late=True)
output_before_the_write = partial(varied_delta_step, read_early=True)
norm_without_eps = partial(varied_delta_step, eps=0.0)
eps_of_a_mean = partial(varied_delta_step, eps=128e-6)
no_scale = partial(varied_delta_step, scale=1.0)
keys_added_in_order = partial(varied_delta_step, sum_keys=_sum_in_order)
keys_added_in_halves = partial(varied_delta_step, sum_keys=_sum_halves)
sum_begins_with_a_key = partial(varied_delta_step, sum_keys=_sum_without_zero)
write_contracted = partial(varied_delta_step, write=_write_contracted)


def wide_batches_add_otherwise(*args: Any) -> None:
    *_, counts, _ = args
    varied_delta_step(*args, sum_keys=_sum_pairwise if len(counts) == 1 else _sum_by_library)


class RacingSum:
    """Adds in another order at every third call, as a missing barrier may do."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *args: Any) -> None:
        self.calls += 1
        varied_delta_step(*args, sum_keys=_sum_pairwise if self.calls % 3 else _sum_halves)


def denormals_flushed(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, states: Refs,
                      counts: Counts, out: Tensor) -> None:
    tiny = torch.finfo(torch.float32).tiny
    g, beta = (torch.where(x.abs() < tiny, 0.0, x) for x in (g, beta))
    reference.delta_step(q, k, v, g, beta, states, counts, out)
    for slot, count in zip(states.slots, counts, strict=True):
        if count:
            state = states.all_slots[slot]
            state.copy_(torch.where(state.abs() < tiny, 0.0, state))


def norm_of_the_next_token(q: Tensor, k: Tensor, *args: Any) -> None:
    following = torch.cat([k[1:], k[-1:]])
    mixed = torch.cat([k[..., :64], following[..., 64:]], dim=-1)
    norm = (mixed * mixed).sum(-1, keepdim=True).sqrt()
    reference.delta_step(q, torch.where(norm > 0, k / norm, l2_norm(k, 1e-6)), *args)


def _with_gates(change: Callable[[Tensor, Tensor, Counts], None]) -> Op:
    """Return a delta rule that changes copies of g and beta first."""
    def delta_step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, states: Refs,
                   counts: Counts, out: Tensor) -> None:
        g, beta = g.clone(), beta.clone()
        change(g, beta, counts)
        reference.delta_step(q, k, v, g, beta, states, counts, out)

    return delta_step


@_with_gates
def strength_of_the_first_row(g: Tensor, beta: Tensor, counts: Counts) -> None:
    beta[sum(counts[:2]):] = beta[:1].clone()


@_with_gates
def decode_rounds_its_strength(g: Tensor, beta: Tensor, counts: Counts) -> None:
    if max(counts) == 1:
        beta.copy_(beta.bfloat16())


@_with_gates
def last_decay_of_the_padded_chunk(g: Tensor, beta: Tensor, counts: Counts) -> None:
    at = 0
    for count in counts:
        at += count
        if count > 1 and count % 4:
            g[at - 1] = 1.0


def strength_twice_through_sigmoid(*args: Any) -> None:
    ops.gates(*args)
    args[-1].copy_(torch.sigmoid(args[-1]))


def strength_through_bfloat16(*args: Any) -> None:
    ops.gates(*args)
    args[-1].copy_(args[-1].bfloat16())


def decay_with_the_other_sign(a: Tensor, b: Tensor, decay: Tensor, *args: Tensor) -> None:
    ops.gates(a, b, -decay, *args)


def gates_without_bias(a: Tensor, b: Tensor, decay: Tensor, bias: Tensor, *out: Tensor) -> None:
    ops.gates(a, b, decay, torch.zeros_like(bias), *out)


def library_gates(a: Tensor, b: Tensor, decay: Tensor, bias: Tensor, g: Tensor,
                  beta: Tensor) -> None:
    g.copy_(torch.exp(decay * torch.nn.functional.softplus(a + bias)))
    beta.copy_(torch.sigmoid(b))


def nan_gates_are_zero(*args: Any) -> None:
    ops.gates(*args)
    for x in args[-2:]:
        x.copy_(torch.nan_to_num(x))
