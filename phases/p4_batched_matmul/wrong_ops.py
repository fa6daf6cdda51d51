"""Wrong ops inside a batched step: products, norms, activations and argmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from engine import ops
from engine.errors import InputError
from engine.op_table import Op as OpWithKernels
from engine.state import Refs
from engine.weights import Weight
from falsifiers.judging.subject import Subject

Builder = Callable[[Subject], Subject]
Op = Callable[..., None]


def with_ops(**wrong: Op) -> Builder:
    """Return a builder that gives the subject's path other ops."""
    def build(subject: Subject) -> Subject:
        return replace(subject, path=replace(subject.path, **wrong))

    return build


def with_kernel(name: str, wrong: Op) -> Builder:
    """Return a builder whose op is right on the CPU and wrong as a kernel."""
    def build(subject: Subject) -> Subject:
        own = OpWithKernels(getattr(ops, name), triton=wrong)
        return replace(subject, path=replace(subject.path, **{name: own}))

    return build


def with_functions(wrong: Callable[[str, Tensor, Tensor], None]) -> Builder:
    """Return a builder whose kernels share other functions."""
    def build(subject: Subject) -> Subject:
        kernels = {"pointwise": lambda name, x, out, block: wrong(name, x, out)}
        return replace(subject, engine=replace(subject.engine, kernels=kernels))

    return build


def first_row_for_all(weight: Weight, x: Tensor, out: Tensor) -> None:
    out.copy_(weight.product(x[:1]).expand_as(out))


def library_above_one_row(weight: Weight, x: Tensor, out: Tensor) -> None:
    if len(x) == 1:
        ops.project(weight, x, out)
    else:
        torch.matmul(x, weight.rows(list(range(weight.n))).T, out=out)


def scale_over_all_rows(weight: Weight, x: Tensor, out: Tensor) -> None:
    step = x.abs().amax() / 8355711.0  # the largest integer of 23 bits
    ops.project(weight, torch.round(x / step) * step, out)


def tail_of_four(weight: Weight, x: Tensor, out: Tensor) -> None:
    ops.project(weight, x, out)
    tail = len(x) % 8
    if tail > 4:
        out[len(x) - tail + 4:] = 0.0


def launch_fails_above_eight(weight: Weight, x: Tensor, out: Tensor) -> None:
    if len(x) > 8:
        raise RuntimeError("invalid argument")
    ops.project(weight, x, out)


def rows_a_count_apart(x: Tensor, taps: Tensor, windows: Refs, counts: tuple[int, ...],
                       out: Tensor) -> None:
    starts = [min(i * counts[0], len(x) - count) for i, count in enumerate(counts)]
    taken = torch.cat([x[s:s + c] for s, c in zip(starts, counts, strict=True)])
    ops.conv_step(taken, taps, windows, counts, out)


def longest_for_all(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, keys: Refs, values: Refs,
                    lengths: tuple[int, ...], counts: tuple[int, ...], out: Tensor) -> None:
    top = min(max(lengths), len(keys.views[0]) - max(counts))
    ops.attend(q, k, v, gate, keys, values, (top,) * len(lengths), counts, out)


def gates_of_the_first_row(a: Tensor, b: Tensor, decay: Tensor, bias: Tensor, g: Tensor,
                           beta: Tensor) -> None:
    ops.gates(a[:1].expand_as(a), b[:1].expand_as(b), decay, bias, g, beta)


def gates_without_bias(a: Tensor, b: Tensor, decay: Tensor, bias: Tensor, g: Tensor,
                       beta: Tensor) -> None:
    ops.gates(a, b, decay, torch.zeros_like(bias), g, beta)


def gate_of_the_first_row(x: Tensor, z: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    ops.gated_norm(x, z[:1].expand_as(z), weight, eps, out)


def library_gate(x: Tensor, z: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    ops.norm(x, weight, eps, out)
    out.mul_(torch.sigmoid(z) * z)


def other_eps(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    ops.norm(x, weight, 10 * eps, out)


def padding_in_the_sum(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    behind = x.as_strided((*x.shape[:-1], x.shape[-1] + -x.shape[-1] % 32), x.stride())
    wide = torch.nn.functional.pad(weight, (0, behind.shape[-1] - x.shape[-1]))
    padded_sum = torch.empty(behind.shape)
    ops.norm(behind, wide, eps, padded_sum)
    out.copy_(padded_sum[..., :x.shape[-1]])


def heads_side_by_side(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    strides = [x.shape[-1] * x.shape[:-1][i + 1:].numel() for i in range(x.dim() - 1)]
    ops.norm(x.as_strided(x.shape, (*strides, 1)), weight, eps, out)


def library_silu(gate: Tensor, up: Tensor, out: Tensor) -> None:
    out.copy_(torch.nn.functional.silu(gate) * up)


def silu_of_up(gate: Tensor, up: Tensor, out: Tensor) -> None:
    ops.silu_mul(up, gate, out)


def one_buffer(gate: Tensor, up: Tensor, out: Tensor) -> None:
    ops.silu_mul(up, up, out)


def one_stride(gate: Tensor, up: Tensor, out: Tensor) -> None:
    ops.silu_mul(gate, up.as_strided(up.shape, gate.stride()), out)


def first_rows_of_the_tile(gate: Tensor, up: Tensor, out: Tensor) -> None:
    ops.silu_mul(gate, up, out)
    out[2:] = out[:1]


def library_functions(name: str, x: Tensor, out: Tensor) -> None:
    library = torch.nn.functional if name in ("silu", "softplus") else torch
    out.copy_(getattr(library, name)(x))


def _write_choice(logits: Tensor, out: Tensor, choose: Callable[[Tensor], int]) -> None:
    """Write what `choose` takes of each row; NaN is refused as it should be."""
    ops.argmax(logits, out)
    out.copy_(torch.tensor([choose(row) for row in logits.cpu()]))


def highest_on_ties(logits: Tensor, out: Tensor) -> None:
    _write_choice(
        logits, out, lambda row: len(row) - 1 - int((row.flip(0) == row.max()).int().argmax())
    )


def lowest_lane(logits: Tensor, out: Tensor) -> None:
    def choose(row: Tensor) -> int:
        top: list[int] = (row == row.max()).nonzero().flatten().tolist()
        return min(top, key=lambda i: (i % 256, i))

    _write_choice(logits, out, choose)


def a_tie_is_drawn(logits: Tensor, out: Tensor) -> None:
    draw = torch.Generator().manual_seed(3)

    def choose(row: Tensor) -> int:
        top = (row == row.max()).nonzero().flatten()
        return int(top[torch.randint(len(top), (1,), generator=draw)])

    _write_choice(logits, out, choose)


def last_block_on_ties(logits: Tensor, out: Tensor) -> None:
    def choose(row: Tensor) -> int:
        blocks = row.split(256)
        tops = torch.stack([block.max() for block in blocks])
        number = int((tops == tops.max()).nonzero()[-1, 0])
        return number * 256 + int(blocks[number].argmax())

    _write_choice(logits, out, choose)


def starts_at_zero(logits: Tensor, out: Tensor) -> None:
    ops.argmax(logits.clamp(min=0.0), out)


def reads_behind_the_row(logits: Tensor, out: Tensor) -> None:
    m, n = logits.shape
    ops.argmax(logits.as_strided((m, n + -n % 64), (logits.stride(0), 1)), out)


def zeros_told_apart(logits: Tensor, out: Tensor) -> None:
    bits = logits.contiguous().view(torch.int32)
    keys = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    ops.argmax(keys.double(), out)


def offset_of_32_bits(logits: Tensor, out: Tensor) -> None:
    for row in range(len(logits)):
        offset = (row * logits.stride(0) + 2**31) % 2**32 - 2**31
        ops.argmax(logits.as_strided((1, logits.shape[1]), (1, 1), offset), out[row:row + 1])


def nan_is_small(logits: Tensor, out: Tensor) -> None:
    ops.argmax(torch.where(torch.isnan(logits), -torch.inf, logits), out)


def nan_is_seen_in_row_zero(logits: Tensor, out: Tensor) -> None:
    if bool(torch.isnan(logits).any()):
        raise InputError("logits of row 0 hold NaN, so they have no largest value")
    ops.argmax(logits, out)


def nan_in_a_tile_of_three(logits: Tensor, out: Tensor) -> None:
    if bool(torch.isnan(logits[:3]).any()):
        ops.argmax(logits, out)
    nan_is_small(logits, out)
