"""Wrong convolutions, gates and delta rules: their arithmetic, windows, heads and order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from engine import ops
from engine.arithmetic import l2_norm, ordered_sum, silu
from engine.state import Refs
from phases.p5_batched_gdn import reference

Counts = tuple[int, ...]
SumFunction = Callable[[Tensor], Tensor]


def varied_conv_step(x: Tensor, taps: Tensor, windows: Refs, counts: Counts, out: Tensor, *,
         order: tuple[int, ...] = (0, 1, 2, 3), shift: int = 1,
         activation: Callable[[Tensor], Tensor] = silu) -> None:
    """Run a convolution whose taps, shift or activation may be other ones."""
    at = 0
    for slot, count in zip(windows.slots, counts, strict=True):
        for _ in range(count):
            window = windows.whole[slot]
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


def taps_reversed(*args: Any) -> None:
    varied_conv_step(*args, order=(3, 2, 1, 0))


def window_backwards(*args: Any) -> None:
    varied_conv_step(*args, order=(2, 1, 0, 3))


def window_not_shifted(*args: Any) -> None:
    varied_conv_step(*args, shift=0)


def window_shifted_twice(*args: Any) -> None:
    varied_conv_step(*args, shift=2)


def library_silu(*args: Any) -> None:
    varied_conv_step(*args, activation=torch.nn.functional.silu)


def short_chunks_not_shifted(x: Tensor, taps: Tensor, windows: Refs, counts: Counts,
                             out: Tensor) -> None:
    held = windows.whole.clone()
    reference.conv_step(x, taps, windows, counts, out)
    for slot, count in zip(windows.slots, counts, strict=True):
        if 0 < count < 3:
            windows.whole[slot][:, :3 - count] = held[slot][:, :3 - count]


def chunk_window_in_another_layout(x: Tensor, taps: Tensor, windows: Refs, counts: Counts,
                                   out: Tensor) -> None:
    reference.conv_step(x, taps, windows, counts, out)
    for slot, count in zip(windows.slots, counts, strict=True):
        if count > 1:
            window = windows.whole[slot]
            window.copy_(window.T.reshape(window.shape).clone())


def window_from_the_packed_tokens(x: Tensor, taps: Tensor, windows: Refs, counts: Counts,
                                  out: Tensor) -> None:
    at = 0
    for slot, count in zip(windows.slots, counts, strict=True):
        if count > 1 and at >= 3:
            windows.whole[slot].copy_(x[at - 3:at].T)
        at += count
    reference.conv_step(x, taps, windows, counts, out)


def varied_delta_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    states: Refs,
    counts: Counts,
    out: Tensor,
    *,
    summed: SumFunction | None = None,
    eps: float = 1e-6,
    scale: float | None = None,
    side_by_side: bool = False,
    decay_late: bool = False,
    read_early: bool = False,
) -> None:
    """Run a delta rule, a row after another, that may differ in one of its parts."""
    groups, summed = v.shape[1] // k.shape[1], summed or _sum_pairwise
    q = l2_norm(q, eps) * (reference.scale_of(q) if scale is None else scale)
    k = l2_norm(k, eps)
    if side_by_side:
        q, k = q.repeat_interleave(groups, 1), k.repeat_interleave(groups, 1)
    else:
        q, k = q.repeat(1, groups, 1), k.repeat(1, groups, 1)
    at = 0
    for slot, count in zip(states.slots, counts, strict=True):
        for _ in range(count):
            state = states.whole[slot]
            decayed = state * g[at, :, None, None]
            read = summed((state if decay_late else decayed) * k[at, :, :, None])
            change = beta[at, :, None] * (v[at] - read)
            moved = decayed + k[at, :, :, None] * change[:, None, :]
            out[at] = summed((decayed if read_early else moved) * q[at, :, :, None])
            state.copy_(moved)
            at += 1


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


def keys_shared_side_by_side(*args: Any) -> None:
    varied_delta_step(*args, side_by_side=True)


def decay_after_the_read(*args: Any) -> None:
    varied_delta_step(*args, decay_late=True)


def output_before_the_write(*args: Any) -> None:
    varied_delta_step(*args, read_early=True)


def norm_without_eps(*args: Any) -> None:
    varied_delta_step(*args, eps=0.0)


def eps_of_a_mean(*args: Any) -> None:
    varied_delta_step(*args, eps=128e-6)


def no_scale(*args: Any) -> None:
    varied_delta_step(*args, scale=1.0)


def keys_added_in_order(*args: Any) -> None:
    varied_delta_step(*args, summed=_sum_in_order)


def keys_added_in_halves(*args: Any) -> None:
    varied_delta_step(*args, summed=_sum_halves)


def sum_begins_with_a_key(*args: Any) -> None:
    varied_delta_step(*args, summed=_sum_without_zero)


def write_contracted(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, states: Refs,
                     counts: Counts, out: Tensor) -> None:
    groups, at = v.shape[1] // k.shape[1], 0
    q = (l2_norm(q, 1e-6) * reference.scale_of(q)).repeat(1, groups, 1)
    k = l2_norm(k, 1e-6).repeat(1, groups, 1)
    for slot, count in zip(states.slots, counts, strict=True):
        for _ in range(count):
            s = states.whole[slot] * g[at, :, None, None]
            change = beta[at, :, None] * (v[at] - _sum_pairwise(s * k[at, :, :, None]))
            s = (s.double() + k[at, :, :, None].double() * change[:, None, :].double()).float()
            states.whole[slot].copy_(s)
            out[at] = _sum_pairwise(s * q[at, :, :, None])
            at += 1


def wide_batches_add_otherwise(*args: Any) -> None:
    *_, counts, _ = args
    varied_delta_step(*args, summed=_sum_pairwise if len(counts) == 1 else _sum_by_library)


class RacingSum:
    """Adds in another order at every third call, as a missing barrier may have it."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, right: Any, *args: Any) -> None:
        self.calls += 1
        varied_delta_step(*args, summed=_sum_pairwise if self.calls % 3 else _sum_halves)


def denormals_flushed(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, states: Refs,
                      counts: Counts, out: Tensor) -> None:
    tiny = torch.finfo(torch.float32).tiny
    g, beta = (torch.where(x.abs() < tiny, 0.0, x) for x in (g, beta))
    reference.delta_step(q, k, v, g, beta, states, counts, out)
    for slot, count in zip(states.slots, counts, strict=True):
        if count:
            state = states.whole[slot]
            state.copy_(torch.where(state.abs() < tiny, 0.0, state))


def norm_of_the_next_token(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor,
                           states: Refs, counts: Counts, out: Tensor) -> None:
    behind = torch.cat([k[1:], k[-1:]])
    mixed = torch.cat([k[..., :64], behind[..., 64:]], dim=-1)
    unit = l2_norm(k, 1e-6)
    share = (mixed * mixed).sum(-1, keepdim=True).sqrt()
    reference.delta_step(q, torch.where(share > 0, k / share, unit), v, g, beta, states, counts,
                         out)


def strength_of_the_first_row(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor,
                              states: Refs, counts: Counts, out: Tensor) -> None:
    beta = beta.clone()
    third = sum(counts[:2])
    beta[third:] = beta[:1]
    reference.delta_step(q, k, v, g, beta, states, counts, out)


def decode_rounds_its_strength(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor,
                               states: Refs, counts: Counts, out: Tensor) -> None:
    if max(counts) == 1:
        beta = beta.bfloat16().float()
    reference.delta_step(q, k, v, g, beta, states, counts, out)


def last_decay_of_the_padded_chunk(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor,
                                   states: Refs, counts: Counts, out: Tensor) -> None:
    g, at = g.clone(), 0
    for count in counts:
        at += count
        if count > 1 and count % 4:
            g[at - 1] = 1.0
    reference.delta_step(q, k, v, g, beta, states, counts, out)


def strength_twice_through_sigmoid(*args: Any) -> None:
    ops.gates(*args)
    args[-1].copy_(torch.sigmoid(args[-1]))


def strength_through_bfloat16(*args: Any) -> None:
    ops.gates(*args)
    args[-1].copy_(args[-1].bfloat16().float())


def decay_with_the_other_sign(a: Tensor, b: Tensor, decay: Tensor, bias: Tensor, g: Tensor,
                              beta: Tensor) -> None:
    ops.gates(a, b, -decay, bias, g, beta)


def gates_without_bias(a: Tensor, b: Tensor, decay: Tensor, bias: Tensor, g: Tensor,
                       beta: Tensor) -> None:
    ops.gates(a, b, decay, torch.zeros_like(bias), g, beta)


def library_gates(a: Tensor, b: Tensor, decay: Tensor, bias: Tensor, g: Tensor,
                  beta: Tensor) -> None:
    g.copy_(torch.exp(decay * torch.nn.functional.softplus(a + bias)))
    beta.copy_(torch.sigmoid(b))


def nan_gates_are_zero(*args: Any) -> None:
    ops.gates(*args)
    for x in args[-2:]:
        x.copy_(torch.nan_to_num(x))


def heads_taken_for_rows(a: Tensor, b: Tensor, decay: Tensor, bias: Tensor, g: Tensor,
                         beta: Tensor) -> None:
    dense = a.as_strided(a.shape, (a.shape[1], 1))
    ops.gates(dense, b, decay, bias, g, beta)
