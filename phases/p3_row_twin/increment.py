"""What P3 changes: a projection runs `gemv_rows`, still one row at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engine.errors import InputError
from engine.model import Model
from engine.op_table import Choice, op_table, runs
from engine.path import Path, Rows, Sink
from engine.quantised import Activations, QuantisedActivations, rows_of
from engine.state import Pool
from engine.weights import EXACT, ORDERED, Weight
from phases.p1_looped_step import increment as before
from phases.p3_row_twin import reference

GemvRows = Callable[[Weight, Tensor, Tensor], None]
WIDEST = 64
"""Rows that a launch takes."""
op = op_table(__name__)
PRODUCTS = Choice({
    EXACT: op(reference.gemv_rows, triton="kernel_exact.gemv_rows",
              cuda="kernel_exact_mma.gemv_rows"),
    ORDERED: op(reference.gemv_rows, triton="kernel_ordered.gemv_rows")})
"""The product of up to 64 rows, by the arithmetic of the matrix."""


def path() -> Path:
    """Return P1's path with its projections through `gemv_rows`."""
    return replace(before.path(), name="p3", step_rows=step_rows, project=project)


def step_rows(path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
              sink: Sink | None) -> Tensor:
    """Run P1's step with the path's projections in place of the oracle's."""
    mine = replace(model, ops=replace(model.ops, project=path.project))
    return before.path().step_rows(path, mine, pool, tokens, rows, sink)


@runs(PRODUCTS)
def project(weight: Weight, x: Tensor, out: Tensor) -> None:
    """Write W x for every row of x f32[t, K] into out f32[t, N], one row at a time."""
    check(weight, x, out)
    for row, into in zip(x.split(1), out.split(1), strict=True):
        gemv_rows(weight, row, into)


@runs(PRODUCTS)
def gemv_rows(weight: Weight, x: Tensor, out: Tensor) -> None:
    """Write W x for every row of x f32[m, K] into out f32[m, N]: kernels on a device, else torch.

    Rows may have any stride; values of a row are neighbours. Each weight byte is read once for 64
    rows.
    """
    check(weight, x, out)
    for row in range(0, len(x), WIDEST):
        PRODUCTS(weight, x[row:row + WIDEST], out[row:row + WIDEST])


@runs(PRODUCTS)
def gemv_rows_on_device(weight: Weight, x: Activations, out: Tensor) -> None:
    """Write W x for every row of x f32[t, K], on a device, into out f32[t, N]."""
    gemv_rows_all([weight], x, [out])


@runs(PRODUCTS)
def gemv_rows_all(weights: Sequence[Weight], x: Activations, outs: Sequence[Tensor]) -> None:
    """Write W x for every row of x f32[m, K], on a device, and each matrix into its own out.

    The exact products share one quantisation of x, which the op that wrote x may
    have done already. Matrices of one type share a launch.
    """
    rows = rows_of(x)
    for weight, out in zip(weights, outs, strict=True):
        check(weight, rows, out)
        if weight.arithmetic != EXACT:
            gemv_rows(weight, rows, out)
    exact = [pair for pair in zip(weights, outs, strict=True) if pair[0].arithmetic == EXACT]
    if exact:
        from phases.p3_row_twin import kernel_exact_mma as mma
        quantised = x.take() if isinstance(x, QuantisedActivations) else None
        if quantised is None or (quantised.m, quantised.k) != tuple(rows.shape):
            quantised = mma.quantize(rows)
        mma.multiply_all([weight for weight, _ in exact], quantised, [out for _, out in exact])


def quantising_kernels() -> Any:
    """Return the module of the layout of quantised activations, and of the source that makes it."""
    from phases.p3_row_twin import kernel_exact_mma
    return kernel_exact_mma


def kernel(arithmetic: str, device: str = "cpu") -> GemvRows:
    """Return the product of an arithmetic for a device, or for Triton's interpreter on the CPU."""
    return PRODUCTS.ops[arithmetic].on("interpret" if device == "cpu" else "cuda")


def check(weight: Weight, x: Tensor, out: Tensor) -> None:
    """Refuse operands that do not fit the matrix, before anything is written."""
    for name, given, width in (("x", x, weight.k), ("out", out, weight.n)):
        if given.dtype != torch.float32 or given.ndim != 2 or given.shape[1] != width:
            raise InputError(f"{name} of a product with {weight.name} must be f32[m, {width}], "
                             f"but is {str(given.dtype).removeprefix('torch.')}"
                             f"{list(given.shape)}")
        if width > 1 and given.stride(1) != 1:
            raise InputError(f"values of a row of {name} must be neighbours, but stand "
                             f"{given.stride(1)} apart")
    if len(x) != len(out):
        raise InputError(f"x has {len(x)} rows, but out has {len(out)}")
    if x.device != out.device:
        raise InputError(f"x is on {x.device}, but out is on {out.device}")
