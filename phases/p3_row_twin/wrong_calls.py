"""Wrong ways to make a product: by the width, by the layout, by what an earlier call left."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine import arithmetic as ar
from engine.blocks import TYPES
from engine.weights import ORDERED, Weight
from phases.p3_row_twin.increment import GemvRows
from phases.p3_row_twin.reference import gemv_rows
from phases.p3_row_twin.wrong_products import dense_weights, ordered_product


def ordered_above_eight(weight: Weight, x: Tensor, out: Tensor) -> None:
    gemv_rows(weight.like(ORDERED) if len(x) > 8 else weight, x, out)


def split_by_width(weight: Weight, x: Tensor, out: Tensor) -> None:
    parts, w = 1 if len(x) == 1 else 2 if len(x) <= 8 else 4, dense_weights(weight)
    step = -(-weight.k // parts)
    for row, into in zip(x, out, strict=True):
        sums = [
            ordered_product(a, b, 256)
            for a, b in zip(row.split(step), w.split(step, 1), strict=True)
        ]
        into.copy_(torch.stack(sums).sum(0))


def lanes_by_width(weight: Weight, x: Tensor, out: Tensor) -> None:
    w, lanes = dense_weights(weight), 256 if len(x) <= 4 else 128
    for row, into in zip(x, out, strict=True):
        into.copy_(ordered_product(row, w, lanes))


def last_block_dropped(weight: Weight, x: Tensor, out: Tensor) -> None:
    if len(x) in (2, 3):
        x = x.clone()
        x[:, -TYPES[weight.kind].weights:] = 0.0
    gemv_rows(weight, x, out)


def long_rows_cut_by_width(weight: Weight, x: Tensor, out: Tensor) -> None:
    gemv_rows(weight, x, out)
    half = weight.k // 512 * 256
    if len(x) > 1 and weight.k > 4096:
        for part in (slice(0, half), slice(half, None)):
            some = torch.zeros_like(x)
            some[:, part] = x[:, part]
            more = torch.empty_like(out)
            gemv_rows(weight, some, more)
            out.copy_(more if part.start == 0 else out + more)


def whole_quads_of_rows(weight: Weight, x: Tensor, out: Tensor) -> None:
    gemv_rows(weight, x, out)
    if len(x) > 1 and len(x) % 4:
        first = len(x) // 4 * 4
        out[first:] = out[first].clone()


def scale_of_all_rows(weight: Weight, x: Tensor, out: Tensor) -> None:
    largest = x.abs().amax(0, keepdim=True).amax(1, keepdim=True)
    together = torch.cat([largest.expand(len(x), 1), x[:, 1:]], dim=1)
    gemv_rows(weight, x, out)
    _, mine = ar.fixed_point(x)
    _, shared = ar.fixed_point(together)
    step = shared.amax(1, keepdim=True) if len(x) > 1 else mine.amax(1, keepdim=True)
    out.copy_((out / step).round() * step)


def zero_times_the_rest(weight: Weight, x: Tensor, out: Tensor) -> None:
    gemv_rows(weight, x, out)
    out.add_(0 * x.sum())


def rows_reversed(weight: Weight, x: Tensor, out: Tensor) -> None:
    gemv_rows(weight, x.flip(0), out)


def _with_strides(x: Tensor, width: int, stride: int) -> Tensor:
    return x.as_strided((len(x), width), (stride, 1))


def out_as_if_packed(weight: Weight, x: Tensor, out: Tensor) -> None:
    gemv_rows(weight, x, _with_strides(out, weight.n, weight.n))


def x_as_if_packed(weight: Weight, x: Tensor, out: Tensor) -> None:
    gemv_rows(weight, _with_strides(x, weight.k, weight.k), out)


def out_by_the_stride_of_x(weight: Weight, x: Tensor, out: Tensor) -> None:
    gap = x.stride(0) - weight.k if len(x) > 1 else 0
    gemv_rows(weight, x, _with_strides(out, weight.n, weight.n + gap))


def whole_tiles_stored(weight: Weight, x: Tensor, out: Tensor) -> None:
    result = torch.empty(len(x), weight.n)
    gemv_rows(weight, x, result)
    wide = torch.nn.functional.pad(result, (0, -weight.n % 4))
    for into, row in zip(_with_strides(out, wide.shape[1], out.stride(0)), wide, strict=True):
        into.copy_(row)


def whole_tiles_only(weight: Weight, x: Tensor, out: Tensor) -> None:
    covered = weight.n // 16 * 16
    if covered:
        part = Weight(weight.name, weight.kind, weight.raw[:covered], weight.arithmetic)
        gemv_rows(part, x, out[:, :covered])


def limited_grid(rows: int) -> GemvRows:
    """Return a product whose grid ends at so many rows of the matrix."""
    def product(weight: Weight, x: Tensor, out: Tensor) -> None:
        part = Weight(weight.name, weight.kind, weight.raw[:rows], weight.arithmetic)
        gemv_rows(part, x, out[:, :rows])

    return product


def padding_times_zero(weight: Weight, x: Tensor, out: Tensor) -> None:
    gemv_rows(weight, x, out)
    short = -weight.k % 256
    past = x.as_strided((len(x), short), x.stride(), x.storage_offset() + weight.k)
    out.add_((past * 0).sum(1, keepdim=True))


def added_to_out(weight: Weight, x: Tensor, out: Tensor) -> None:
    result = torch.empty_like(out)
    gemv_rows(weight, x, result)
    out.add_(result)


def round_input(weight: Weight, x: Tensor, out: Tensor) -> None:
    gemv_rows(weight, x, out)
    x.copy_(x.bfloat16().float())


def clear_weights(weight: Weight, x: Tensor, out: Tensor) -> None:
    gemv_rows(weight.like(), x, out)
    weight.raw[:, -1] = 0


def cache_by_address() -> GemvRows:
    """Return a product that remembers what an input at this address gave last."""
    known: dict[tuple[int, int, int], Tensor] = {}

    def product(weight: Weight, x: Tensor, out: Tensor) -> None:
        key = (id(weight), x.data_ptr(), len(x))
        if key not in known:
            result = torch.empty(len(x), weight.n)
            gemv_rows(weight, x, result)
            known[key] = result
        out.copy_(known[key])

    return product


def weights_kept_by_shape() -> GemvRows:
    """Return a product that prepares the first matrix of a shape for all of that shape."""
    known: dict[tuple[str, int, int], Weight] = {}
    return lambda weight, x, out: gemv_rows(
        known.setdefault((weight.kind, weight.n, weight.k), weight), x, out)


def defer_product() -> GemvRows:
    """Return a product that does the work of a call when the next one comes."""
    waiting: list[Callable[[], None]] = []

    def product(weight: Weight, x: Tensor, out: Tensor) -> None:
        for work in waiting:
            work()
        waiting[:] = [lambda: gemv_rows(weight, x, out)]

    return product


def halves_as_they_come() -> GemvRows:
    """Return a product whose partial sums meet in f16, in another order at every second call."""
    calls: list[int] = []

    def product(weight: Weight, x: Tensor, out: Tensor) -> None:
        calls.append(1)
        w, order = dense_weights(weight), 1 - 2 * (len(calls) % 2)
        for row, into in zip(x, out, strict=True):
            total = torch.zeros(weight.n, dtype=torch.float16)
            parts = zip(row.split(64), w.split(64, 1), strict=True)
            for a, b in list(parts)[::order]:
                total = total + ordered_product(a, b, 256).half()
            into.copy_(total)

    return product
