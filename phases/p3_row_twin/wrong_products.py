"""Wrong products in PyTorch: each decodes, multiplies or adds with one fault, a row at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine import arithmetic as ar
from engine.blocks import TYPES, BlockFields
from engine.weights import Weight
from phases.p3_row_twin.increment import GemvRows
from phases.p3_row_twin.reference import gemv_rows


def with_weight_class(wrong: type[Weight]) -> GemvRows:
    """Return a product that makes its own, wrong matrix of the right one's bytes."""
    return lambda weight, x, out: gemv_rows(
        wrong(weight.name, weight.kind, weight.raw, weight.arithmetic), x, out)


def with_changed_parts(change: Callable[[str, BlockFields], BlockFields]) -> GemvRows:
    """Return a product whose blocks' integers and scales are changed as they are taken apart."""
    class Wrong(Weight):
        def _fields_to_tensors(self, parts: BlockFields) -> Any:
            return super()._fields_to_tensors(change(self.kind, parts))

    return with_weight_class(Wrong)


def decode_as_q4(weight: Weight, x: Tensor, out: Tensor) -> None:
    if weight.kind in ("Q5_K", "Q6_K"):
        size = TYPES[weight.kind].bytes
        raw = weight.raw.reshape(weight.n, -1, size)[:, :, :144].reshape(weight.n, -1)
        weight = Weight(weight.name, "Q4_K", raw, weight.arithmetic)
    gemv_rows(weight, x, out)


def low_scale_bits(kind: str, parts: BlockFields) -> BlockFields:
    if kind not in ("Q4_K", "Q5_K") or parts.scale is None:
        return parts
    scale = parts.scale.reshape(len(parts.scale), -1, 8).copy()
    scale[:, :, 4:] &= 15
    return replace(parts, scale=scale.reshape(parts.scale.shape))


def paired_scales(kind: str, parts: BlockFields) -> BlockFields:
    if parts.scale is None:
        return parts
    return replace(parts, scale=parts.scale[:, ::2].repeat(2, axis=1))


def next_scales(kind: str, parts: BlockFields) -> BlockFields:
    scale = None if parts.scale is None else np.roll(parts.scale, -1, axis=1)
    return replace(parts, scale=scale, d=np.roll(parts.d, -1, 1) if scale is None else parts.d)


def first_group_for_all(kind: str, parts: BlockFields) -> BlockFields:
    q = parts.q.reshape(len(parts.q), -1, TYPES[kind].weights)
    group = q[:, :, :32].repeat(q.shape[2] // 32, axis=1).reshape(parts.q.shape)
    return replace(parts, q=group)


def signed_high_bits(kind: str, parts: BlockFields) -> BlockFields:
    if kind != "Q6_K":
        return parts
    q = parts.q + np.int16(32)
    return replace(parts, q=np.where(q >= 32, q - 64, q).astype(np.int16))


def unsigned_quants(kind: str, parts: BlockFields) -> BlockFields:
    return replace(parts, q=parts.q & 255) if kind == "Q8_0" else parts


def scales_one_apart(kind: str, parts: BlockFields) -> BlockFields:
    groups, rows = parts.d.shape[1], np.arange(len(parts.d))[:, None]
    flat = parts.d.ravel()
    return replace(parts, d=flat[np.minimum(rows + np.arange(groups), flat.size - 1)])


def first_of_sixteen(kind: str, parts: BlockFields) -> BlockFields:
    rows = np.arange(len(parts.q)) // 16 * 16
    scale, minimum = (None if part is None else part[rows]
                      for part in (parts.scale, parts.minimum))
    return BlockFields(parts.q[rows], scale, minimum, parts.d[rows],
                 None if parts.dmin is None else parts.dmin[rows])


class TwoLimbs(Weight):
    def _integer_dot(self, weights: Tensor, integers: Tensor) -> Tensor:
        return super()._integer_dot(weights, (integers / 256).round() * 256)


class JoinedInF32(Weight):
    def _integer_dot(self, weights: Tensor, integers: Tensor) -> Tensor:
        low = torch.remainder(integers + 128, 256) - 128
        rest = super()._integer_dot(weights, (integers - low) / 256).float() * 256
        return (rest + super()._integer_dot(weights, low).float()).double()


class MinimumIn32Bits(Weight):
    def _subtract_minimum(self, value: Tensor, dmin: Tensor, m: Tensor) -> Tensor:
        wrapped = torch.remainder(m.double() + 2.0 ** 31, 2.0 ** 32) - 2.0 ** 31
        return super()._subtract_minimum(value, dmin, wrapped.float())


class ContractedMinimum(Weight):
    def _subtract_minimum(self, value: Tensor, dmin: Tensor, m: Tensor) -> Tensor:
        return (value.double() - dmin.double() * m.double()).float()


class WithoutSegments(Weight):
    def _sum_groups(self, values: Tensor) -> Tensor:
        total = torch.zeros_like(values[0])
        for value in values:
            total = total + value
        return total


class NonFiniteAsZero(Weight):
    def product(self, x: Tensor) -> Tensor:
        return super().product(torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0))


class ContractedSums(Weight):
    def _ordered_product(self, x: Tensor) -> Tensor:
        lanes = torch.zeros(self.n, 256, dtype=torch.float64)
        terms = x.double() * self._dequantised_rows(slice(0, self.n)).double()
        for part in torch.nn.functional.pad(terms, (0, -self.k % 256)).split(256, dim=1):
            lanes = (lanes + part).float().double()
        return ar.pairwise_sum(lanes.float())


def dense_weights(weight: Weight) -> Tensor:
    """Return the weights as f32[N, K]."""
    return weight.rows(list(range(weight.n)))


def eight_bits(weight: Weight, x: Tensor, out: Tensor) -> None:
    width = 256 if weight.k % 256 == 0 else 32 if weight.k % 32 == 0 else weight.k
    groups = x.float().unflatten(1, (-1, width))
    step = groups.abs().amax(-1, keepdim=True) / 127
    total = torch.where(step > 0, (groups / step).round() * step, groups)
    gemv_rows(weight, total.flatten(1), out)


def ordered_product(x: Tensor, w: Tensor, lanes: int) -> Tensor:
    """Return x f32[K] times w f32[N, K] with so many lanes, then pairs."""
    return ar.pairwise_sum(ar.lane_sums(x * w, lanes))

