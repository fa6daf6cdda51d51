"""Weight matrices and the two products registered for them: exact-23 and ordered.

A matrix stores integers, not f32 values: int16 `scale * q` for K-quants (2 bytes a weight), widened
to f64 a few rows at a time, so that integer sums of up to 2^43 are exact in any order [7].
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from engine import arithmetic
from engine.blocks import TYPES, BlockFields, dequantize, unpack_blocks
from engine.errors import InputError

EXACT = "exact-23"
ORDERED = "ordered"
EXACT_KINDS = ("Q4_K", "Q5_K", "Q6_K", "Q8_0")
_MAX_WIDENED_WEIGHTS = 1 << 21
"""Matrices of at most this many weights are stored widened to f64."""
_CHUNK, _DEVICE_CHUNK = 1 << 19, 1 << 26
"""Weights of a larger matrix that are widened at a time: a CPU cache's worth, or half a gigabyte on
a device, where each time is a launch. No bit depends on it."""


def tensor_of(array: np.ndarray) -> Tensor:
    """Return a tensor over a private copy of an array: read-only maps are not writable tensors."""
    return torch.from_numpy(np.array(array, order="C", copy=True))


class Weight:
    """One matrix W[N, K] of a file, by its GGUF name, type and raw block bytes [N, bytes]."""

    def __init__(self, name: str, kind: str, raw: np.ndarray, arithmetic_name: str = EXACT,
                 device: str = "cpu") -> None:
        if arithmetic_name not in (EXACT, ORDERED):
            raise InputError(f"arithmetic {arithmetic_name!r} is unknown: {EXACT} or {ORDERED}")
        block = TYPES[kind]
        self.name, self.kind, self.raw = name, kind, raw
        self.n, self.k = raw.shape[0], raw.shape[1] // block.bytes * block.weights
        self.arithmetic = arithmetic_name if kind in EXACT_KINDS else ORDERED
        self.device = device

    def like(self, arithmetic_name: str | None = None, device: str | None = None) -> Weight:
        """Return the same matrix in another arithmetic or on another device."""
        return type(self)(self.name, self.kind, self.raw, arithmetic_name or self.arithmetic,
                          device or self.device)

    def rows(self, tokens: list[int]) -> Tensor:
        """Return the dequantised rows f32[t, K] [9], as an embedding reads them."""
        rows = torch.from_numpy(dequantize(self.kind, np.ascontiguousarray(self.raw[tokens])))
        if self.device == "cpu":
            return rows
        return rows.pin_memory().to(self.device, non_blocking=True)  # asynchronous copy

    def product(self, x: Tensor) -> Tensor:
        """Return x f32[t, K] times the transposed matrix: f32[t, N], in the matrix's arithmetic."""
        if self.arithmetic == ORDERED:
            return torch.stack([self._ordered_product(row) for row in x])
        a, s = arithmetic.fixed_point(x)
        blocks = self._q8_values if self.kind == "Q8_0" else self._k_quant_values
        values = torch.cat([blocks(rows, a) for rows in self._chunks()], dim=1)
        return self._sum_groups(values * s.T.unsqueeze(1)).T

    def _k_quant_values(self, rows: slice, a: Tensor) -> Tensor:
        """Return a K-quant's super-block values before their activation scale: [G, rows, t]."""
        integers = a.permute(1, 2, 0)  # [G, 256, t]
        value = (
            self._d[:, rows, None] * self._integer_dot(self._rows_as_f64(rows), integers).float()
        )
        if self._minimum is None:
            return value
        sums = integers.unflatten(1, (8, 32)).sum(2)  # [G, 8, t]
        m = self._integer_dot(self._minimum[:, rows].double(), sums).float()
        return self._subtract_minimum(value, self._dmin[:, rows, None], m)

    def _q8_values(self, rows: slice, a: Tensor) -> Tensor:
        """Return Q8_0's group values before their activation scale: [G, rows, t]."""
        t, groups, _ = a.shape
        blocks = self.k // 32
        integers = a.reshape(t, groups * 8, 32)[:, :blocks].permute(1, 2, 0)  # [J, 32, t]
        value = (
            self._d[:, rows, None] * self._integer_dot(self._rows_as_f64(rows), integers).float()
        )
        short = groups * 8 - blocks
        if short:
            value = torch.cat([value, value.new_zeros(short, *value.shape[1:])])
        return arithmetic.pairwise_sum(value.unflatten(0, (groups, 8)).movedim(1, -1))

    def _integer_dot(self, weights: Tensor, integers: Tensor) -> Tensor:
        """Return integer sums in f64, exact in any order: [G, rows, n] by [G, n, t]."""
        return torch.bmm(weights, integers)

    def _subtract_minimum(self, value: Tensor, dmin: Tensor, m: Tensor) -> Tensor:
        return value - dmin * m

    def _sum_groups(self, values: Tensor) -> Tensor:
        return arithmetic.segment_sum(values)

    def _ordered_product(self, x: Tensor) -> Tensor:
        """Return the ordered product of one row x f32[K]: f32[N] [10]."""
        step = max(1, self._chunk_weights // self.k)
        return torch.cat(
            [
                arithmetic.ordered_dot(x, self._dequantised_rows(slice(i, min(i + step, self.n))))
                for i in range(0, self.n, step)
            ]
        )

    def _dequantised_rows(self, rows: slice) -> Tensor:
        if self._all_as_f32 is not None:
            return self._all_as_f32[rows]
        return self._dequantise(self.raw[rows])

    def _dequantise(self, raw: np.ndarray) -> Tensor:
        return torch.from_numpy(dequantize(self.kind, np.ascontiguousarray(raw))).to(self.device)

    def _chunks(self) -> list[slice]:
        step = (
            self.n
            if self.n * self.k <= _MAX_WIDENED_WEIGHTS
            else max(1, self._chunk_weights // self.k)
        )
        return [slice(i, min(i + step, self.n)) for i in range(0, self.n, step)]

    @property
    def _chunk_weights(self) -> int:
        return _CHUNK if self.device == "cpu" else _DEVICE_CHUNK

    def _rows_as_f64(self, rows: slice) -> Tensor:
        if self._all_as_f64 is not None:
            return self._all_as_f64[:, rows]
        return self._integers[:, rows].double()

    @cached_property
    def _all_as_f32(self) -> Tensor | None:
        if self.n * self.k > _MAX_WIDENED_WEIGHTS:
            return None
        return self._dequantise(self.raw)

    @cached_property
    def _fields(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Integers [G, N, block], d [G, N], minimum [G, N, 8] and dmin [G, N], group first."""
        step = max(1, (1 << 24) // self.k)
        chunks = [
            self._fields_to_tensors(
                unpack_blocks(self.kind, np.ascontiguousarray(self.raw[i : i + step]))
            )
            for i in range(0, self.n, step)
        ]
        integers, d, minimum, dmin = ([c[i] for c in chunks] for i in range(4))
        joined = [torch.cat(c, dim=1).to(self.device) if c[0] is not None else None  # type: ignore[arg-type]
                  for c in (integers, d, minimum, dmin)]
        return joined[0], joined[1], joined[2], joined[3]  # type: ignore[return-value]

    def _fields_to_tensors(
        self, parts: BlockFields
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        rows = parts.q.shape[0]
        block = TYPES[self.kind].weights
        q = parts.q
        if parts.scale is not None:
            sub = self.k // parts.scale.shape[1]
            q = (q.reshape(rows, -1, sub) * parts.scale[:, :, None]).reshape(rows, self.k)
        integers = tensor_of(q.reshape(rows, -1, block).transpose(1, 0, 2))
        d = tensor_of(parts.d.T)
        if parts.minimum is None or parts.dmin is None:
            return integers, d, None, None
        minimum = tensor_of(parts.minimum.reshape(rows, -1, 8).transpose(1, 0, 2))
        return integers, d, minimum, tensor_of(parts.dmin.T)

    @property
    def _integers(self) -> Tensor:
        return self._fields[0]

    @property
    def _d(self) -> Tensor:
        return self._fields[1]

    @property
    def _minimum(self) -> Tensor | None:
        return self._fields[2]

    @property
    def _dmin(self) -> Tensor:
        dmin = self._fields[3]
        assert dmin is not None
        return dmin

    @cached_property
    def _all_as_f64(self) -> Tensor | None:
        return self._integers.double() if self.n * self.k <= _MAX_WIDENED_WEIGHTS else None
