"""Wrong engines below the model: products, functions, kernels, checkpoints and loading."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine import arithmetic as ar
from engine import ops
from engine.blocks import BlockFields
from engine.gguf_file import GgufFile, TensorEntry, open_gguf
from engine.load import TensorReader, load_weights
from engine.model import Model
from engine.parts import EngineParts
from engine.state import Checkpoint, State, checkpoint, restore
from engine.weights import Weight
from falsifiers.judging.subject import Builder, Subject


def _replace_parts(**wrong: Any) -> Builder:
    """Return a builder that replaces fields of `EngineParts`."""
    def build(subject: Subject) -> Subject:
        parts: EngineParts = subject.engine
        return replace(subject, engine=replace(parts, **wrong))

    return build


class _LowScaleBits(Weight):
    """Drops the two high bits of the upper four scales."""

    def _fields_to_tensors(self, parts: BlockFields) -> Any:
        if self.kind in ("Q4_K", "Q5_K") and parts.scale is not None:
            scale = parts.scale.reshape(len(parts.scale), -1, 8).copy()
            scale[:, :, 4:] &= 15
            parts = replace(parts, scale=scale.reshape(parts.scale.shape))
        return super()._fields_to_tensors(parts)


class _NeighbourScale(Weight):
    """Uses the scale of the next sub-block."""

    def _fields_to_tensors(self, parts: BlockFields) -> Any:
        scale = None if parts.scale is None else np.roll(parts.scale, 1, axis=1)
        return super()._fields_to_tensors(replace(parts, scale=scale))


class _NoFifthBit(Weight):
    """Leaves the fifth bit of Q5_K out."""

    def _fields_to_tensors(self, parts: BlockFields) -> Any:
        if self.kind == "Q5_K":
            parts = replace(parts, q=parts.q & 15)
        return super()._fields_to_tensors(parts)


class _FloatSums(Weight):
    """Sums integers in f32."""

    def _integer_dot(self, weights: Tensor, integers: Tensor) -> Tensor:
        return torch.bmm(weights.float(), integers.float()).double()


class _WrappedSums(Weight):
    """Wraps integer sums at 32 bits."""

    def _integer_dot(self, weights: Tensor, integers: Tensor) -> Tensor:
        total = super()._integer_dot(weights, integers)
        return torch.remainder(total + 2.0 ** 31, 2.0 ** 32) - 2.0 ** 31


class _FusedMinimum(Weight):
    """Rounds d * P - dmin * M once, as a fused multiply-add does."""

    def _subtract_minimum(self, value: Tensor, dmin: Tensor, m: Tensor) -> Tensor:
        return (value.double() - dmin.double() * m.double()).float()


class _OneSum(Weight):
    """Adds all groups in one order, without segments."""

    def _sum_groups(self, values: Tensor) -> Tensor:
        total = torch.zeros_like(values[0])
        for value in values:
            total = total + value
        return total


class _NarrowActivations(Weight):
    """Drops the low limb of every activation."""

    def _integer_dot(self, weights: Tensor, integers: Tensor) -> Tensor:
        return super()._integer_dot(weights, (integers / 256).round() * 256)


class _NoMinimum(Weight):
    """Forgets the minimum term."""

    def _subtract_minimum(self, value: Tensor, dmin: Tensor, m: Tensor) -> Tensor:
        return value


class _MatmulRows(Weight):
    """Multiplies rows by a float matmul, whose bits depend on the width."""

    def _ordered_product(self, x: Tensor) -> Tensor:
        return self._dequantised_rows(slice(0, self.n)) @ x

    def product(self, x: Tensor) -> Tensor:
        product = x @ self._dequantised_rows(slice(0, self.n)).T
        return product if len(x) > 1 else super().product(x)


class _SpreadsNaN(Weight):
    """Adds zero times the sum of all rows, which is NaN if any value is."""

    def product(self, x: Tensor) -> Tensor:
        return super().product(x) + 0 * x.sum()


def _replace_function(name: str, wrong: Callable[[Tensor], Tensor]) -> Builder:
    def build(subject: Subject) -> Subject:
        functions = {**subject.engine.functions, name: wrong}
        return replace(subject, engine=replace(subject.engine, functions=functions))

    return build


def _exp_nan_to_zero(x: Tensor) -> Tensor:
    return torch.where(x.isnan(), 0.0, ar.exp(x))


def _fused_rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    out.copy_((x * x.double().pow(2).mean(-1, keepdim=True).add(eps).rsqrt()).float() * weight)


def _gemv_past_the_end(weight: Tensor, x: Tensor, out: Tensor) -> None:
    overrun = out.as_strided((out.shape[0] + 4,), (1,))
    out.copy_(Weight("w", "Q4_K", weight.cpu().numpy()).product(x.cpu()[None])[0])
    overrun[-4:] = 0.0


def _gemv_in_f32(weight: Tensor, x: Tensor, out: Tensor) -> None:
    out.copy_(Weight("w", "Q4_K", weight.cpu().numpy(), "ordered").product(x.cpu()[None])[0])


def _checkpoint_view(state: State, position: int) -> Checkpoint:
    return Checkpoint(position, state.named(position))


def _restore_without(kind: str) -> Callable[[Checkpoint, State], None]:
    def forgetful(saved: Checkpoint, state: State) -> None:
        before = {name: view.clone() for name, view in state.named().items()
                  if name.endswith(f".{kind}")}
        restore(saved, state)
        for name, view in before.items():
            state.named()[name].copy_(view)

    return forgetful


def _checkpoint_one_row_short(state: State, position: int) -> Checkpoint:
    saved = checkpoint(state, position)
    for name, view in saved.tensors.items():
        if name.endswith((".k", ".v")):
            view[-1:] = 0.0
    return saved


class _LenientReader(TensorReader):
    """Replaces a missing tensor by zeros and skips unknown tensors."""

    def take(self, name: str, shape: tuple[int, ...]) -> TensorEntry:
        if name not in self.remaining:
            zeros = np.zeros(shape, "<f4").reshape(1 if len(shape) == 1 else shape[0], -1)
            return TensorEntry(name, "F32", shape, zeros.view(np.uint8))
        return super().take(name, shape)

    def ignore_rest(self, layers: int) -> tuple[str, ...]:
        return tuple(self.remaining)


def _load_leniently(path: str | Path) -> Model:
    return Model.from_weights(*load_weights(open_gguf(path), _LenientReader))


def _load_with_defaults(*keys: tuple[str, object]) -> Callable[[str | Path], Model]:
    def load(path: str | Path) -> Model:
        file: GgufFile = open_gguf(path)
        for key, value in keys:
            file.metadata.setdefault(f"qwen35.{key}", value)
        return Model.from_weights(*load_weights(file))

    return load


def _gated_norm_unwritten_tail(x: Tensor, z: Tensor, weight: Tensor, eps: float,
                               out: Tensor) -> None:
    normed = torch.empty_like(out)
    ops.gated_norm(x, z, weight, eps, normed)
    out[..., :-1] = normed[..., :-1]
    spill = torch.empty(1)
    out[..., -1] = torch.where(spill.isnan(), spill, normed[..., -1])


def _leave_tail_unwritten(subject: Subject) -> Subject:
    def models(name: str) -> Model:
        model: Model = subject.models(name)
        return replace(model, ops=replace(model.ops, gated_norm=_gated_norm_unwritten_tail))

    return replace(subject, models=models)


def _library_silu(subject: Subject) -> Subject:
    def silu_mul(gate: Tensor, up: Tensor, out: Tensor) -> None:
        out.copy_(torch.nn.functional.silu(gate) * up)

    def models(name: str) -> Model:
        model: Model = subject.models(name)
        return replace(model, ops=replace(model.ops, silu_mul=silu_mul))

    return replace(subject, models=models)


LOW_LEVEL_MUTANTS: dict[str, Builder] = {
    "high_scale_bits_dropped": _replace_parts(weight=_LowScaleBits),
    "scale_of_the_neighbour": _replace_parts(weight=_NeighbourScale),
    "fifth_bit_dropped": _replace_parts(weight=_NoFifthBit),
    "limbs_joined_in_f32": _replace_parts(weight=_FloatSums),
    "sums_wrap_at_32_bits": _replace_parts(weight=_WrappedSums),
    "minimum_contracted": _replace_parts(weight=_FusedMinimum),
    "groups_in_one_sum": _replace_parts(weight=_OneSum),
    "low_limb_dropped": _replace_parts(weight=_NarrowActivations),
    "minimum_forgotten": _replace_parts(weight=_NoMinimum),
    "float_matmul": _replace_parts(weight=_MatmulRows),
    "nan_reaches_other_rows": _replace_parts(weight=_SpreadsNaN),
    "library_exp": _replace_function("exp", torch.exp),
    "library_sigmoid": _replace_function("sigmoid", torch.sigmoid),
    "rsqrt_rounded_once": _replace_function("rsqrt", lambda x: x.double().rsqrt().float()),
    "nan_becomes_zero": _replace_function("exp", _exp_nan_to_zero),
    "rms_norm_in_f64": _replace_parts(kernels={"rms_norm": _fused_rms_norm}),
    "kernel_writes_past_its_output": _replace_parts(kernels={"gemv_q4_k": _gemv_past_the_end}),
    "kernel_has_other_arithmetic": _replace_parts(kernels={"gemv_q4_k": _gemv_in_f32}),
    "checkpoint_is_a_view": _replace_parts(checkpoint=_checkpoint_view),
    "window_not_restored": _replace_parts(restore=_restore_without("conv")),
    "recurrent_state_not_restored": _replace_parts(restore=_restore_without("delta")),
    "last_key_not_saved": _replace_parts(checkpoint=_checkpoint_one_row_short),
    "unmatched_tensor_skipped": _replace_parts(load=_load_leniently),
    "block_count_defaulted": _replace_parts(load=_load_with_defaults(("block_count", 2))),
    "rope_keys_defaulted": _replace_parts(
        load=_load_with_defaults(("rope.freq_base", 10000.0), ("rope.dimension_count", 64))
    ),
    "output_left_unwritten": _leave_tail_unwritten,
    "library_silu_in_the_ffn": _library_silu,
}
