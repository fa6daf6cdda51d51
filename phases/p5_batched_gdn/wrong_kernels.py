"""Wrong Triton kernels: a convolution and a delta rule, each with a switch for its fault."""

# ruff: noqa: ANN001, ANN202
# mypy: ignore-errors
from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import launch
from engine.kernels.functions import silu
from engine.state import Refs
from phases.p5_batched_gdn import kernel_conv, kernel_delta, kernel_gates
from phases.p5_batched_gdn.kernel_delta import _l2_normalised, _sum_over_keys
from phases.p5_batched_gdn.reference import scale_of

NONE, ROW_ZERO, ROW_AS_SLOT, PADS, TAIL, BACKWARDS, FIRST_SAVED, HEADS, NEXT_HEAD, REREAD, LATE, \
    ROW_OUT, NEIGHBOUR, ONE_STRIDE = range(14)


@triton.jit
def _conv_kernel(x, taps, windows, starts, out, channels, stride, FAULT: tl.constexpr,
          BLOCK: tl.constexpr):
    row = tl.program_id(1)
    first, end = tl.load(starts + row), tl.load(starts + row + 1)
    stop = end
    if FAULT == 3:
        stop = tl.maximum(end, first + 1)
    if first < stop:
        channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = channel < channels
        base = tl.load(windows + (0 if FAULT == 1 else row))
        if FAULT == 2:
            base = tl.load(windows) + (row * channels * 12).to(tl.uint64)
        window = base.to(tl.pointer_type(tl.float32)) + channel * 3
        a = tl.load(window, mask=inside, other=0.0)
        b = tl.load(window + 1, mask=inside, other=0.0)
        c = tl.load(window + 2, mask=inside, other=0.0)
        w0 = tl.load(taps + channel * 4, mask=inside, other=0.0)
        w1 = tl.load(taps + channel * 4 + 1, mask=inside, other=0.0)
        w2 = tl.load(taps + channel * 4 + 2, mask=inside, other=0.0)
        w3 = tl.load(taps + channel * 4 + 3, mask=inside, other=0.0)
        saved = channel < (channels + 8 if FAULT == 4 else channels)
        for token in range(stop - first):
            at = row if FAULT == 11 else first + token
            if FAULT == 3:
                at = tl.minimum(at, tl.load(starts + tl.num_programs(1)) - 1)
            present = tl.load(x + at * stride + channel, mask=inside, other=0.0)
            if FAULT == 5:
                y = ((w0 * c + w1 * b) + w2 * a) + w3 * present
            else:
                y = ((w0 * a + w1 * b) + w2 * c) + w3 * present
            tl.store(out + at * channels + channel, silu(y),
                     mask=inside & (channel + first < channel + end))
            a, b, c = b, c, present
            if FAULT != 6 or token == 0:
                tl.store(window, a, mask=saved)
                tl.store(window + 1, b, mask=saved)
                tl.store(window + 2, c, mask=saved)


@triton.jit
def _delta_kernel(q, k, v, alpha, beta, states, starts, out, key_heads, heads, scale, size,
           q_stride, k_stride, v_stride, FAULT: tl.constexpr, KEYS: tl.constexpr,
           STEPS: tl.constexpr):
    head, row = tl.program_id(0), tl.program_id(1)
    first, end = tl.load(starts + row), tl.load(starts + row + 1)
    stop = end
    if FAULT == 3:
        stop = tl.maximum(end, first + 1)
    if first < stop:
        key = tl.arange(0, KEYS)
        shared = head // (heads // key_heads) if FAULT == 7 else head % key_heads
        base = tl.load(states + (0 if FAULT == 1 else row))
        if FAULT == 2:
            base = tl.load(states) + (row * size).to(tl.uint64)
        pointer = base.to(tl.pointer_type(tl.float32))
        inside = key[None, :] * KEYS + key[:, None]
        place = pointer + head * KEYS * KEYS + inside
        saved = place
        if FAULT == 8:
            saved = pointer + ((head + 1) % heads) * KEYS * KEYS + inside
        if FAULT == 12:
            saved = place + size // 4
        state = tl.load(place)
        for token in range(stop - first):
            at = first + token
            if FAULT == 3:
                at = tl.minimum(at, tl.load(starts + tl.num_programs(1)) - 1)
            if FAULT == 9:
                state = tl.load(place)
            k_unit = _l2_normalised(tl.load(k + at * k_stride + shared * KEYS + key), KEYS, STEPS)
            q_unit = _l2_normalised(tl.load(q + at * q_stride + shared * KEYS + key), KEYS, STEPS)
            q_unit = q_unit * scale
            decayed = state * tl.load(alpha + at * heads + head)
            seen = state if FAULT == 10 else decayed
            read = _sum_over_keys(seen * k_unit[None, :], KEYS, KEYS, STEPS)
            value = tl.load(v + at * v_stride + head * KEYS + key)
            v_new = tl.load(beta + at * heads + head) * (value - read)
            state = decayed + k_unit[None, :] * v_new[:, None]
            result = _sum_over_keys(state * q_unit[None, :], KEYS, KEYS, STEPS)
            into = row if FAULT == 11 else at
            tl.store(out + (into * heads + head) * KEYS + key, result,
                     mask=key + first < key + end)
            if FAULT == 9 or (FAULT == 6 and token == 0):
                tl.store(place, state)
        if FAULT != 6 and FAULT != 9:
            tl.store(saved, state)


def faulty_conv_step(fault: int) -> Any:
    """Return a convolution whose kernel has one fault, or none."""
    def conv_step(x: Tensor, taps: Tensor, windows: Refs, counts: Any, out: Tensor) -> None:
        channels = x.shape[1]
        launch(_conv_kernel, (triton.cdiv(channels, 256), len(counts)), x, taps,
               windows.pointers, counts.starts.on(x.device), out, channels, x.stride(0),
               FAULT=fault, BLOCK=256)

    return conv_step


def faulty_delta_step(fault: int) -> Any:
    """Return a delta rule whose kernel has one fault, or none."""
    def delta_step(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, states: Refs,
                   counts: Any, out: Tensor) -> None:
        heads, width = v.shape[1:]
        launch(_delta_kernel, (heads, len(counts)), q, k, v, alpha, beta,
               states.pointers, counts.starts.on(q.device), out, k.shape[1], heads,
               scale_of(q), states.all_slots[0].nbytes, q.stride(0), k.stride(0),
               (k if fault == ONE_STRIDE else v).stride(0), FAULT=fault, KEYS=width,
               STEPS=width.bit_length() - 1)

    return delta_step


def a_launch_for_each_row(*args: Any) -> None:
    *inputs, refs, counts, out = args
    starts = counts.starts
    for row, count in enumerate(counts):
        at = slice(starts[row], starts[row] + count)
        cut = [x[at] if len(x) == len(out) else x for x in inputs]
        run = kernel_conv.conv_step if len(inputs) == 2 else kernel_delta.delta_step
        run(*cut, Refs(refs.all_slots, refs.slots[row:row + 1]), (count,), out[at])


def gates_of_one_block(a: Tensor, b: Tensor, neg_exp_a: Tensor, dt_bias: Tensor, alpha: Tensor,
                       beta: Tensor) -> None:
    old = [x.clone() for x in (alpha, beta)]
    kernel_gates.gates(a, b, neg_exp_a, dt_bias, alpha, beta)
    for x, before in zip((alpha, beta), old, strict=True):
        x.view(-1)[128:] = before.view(-1)[128:]


def gates_without_strides(a: Tensor, b: Tensor, neg_exp_a: Tensor, dt_bias: Tensor, alpha: Tensor,
                          beta: Tensor) -> None:
    packed = [x.as_strided(x.shape, (x.shape[1], 1)) for x in (a, b)]
    kernel_gates.gates(*packed, neg_exp_a, dt_bias, alpha, beta)


def gates_with_one_stride(a: Tensor, b: Tensor, neg_exp_a: Tensor, dt_bias: Tensor, alpha: Tensor,
                          beta: Tensor) -> None:
    kernel_gates.gates(a, b.as_strided(b.shape, a.stride()), neg_exp_a, dt_bias, alpha, beta)
