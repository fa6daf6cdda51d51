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
from falsifiers.judging.subject import Mutant, Subject

PRODUCTS, WIDTH = "products_equal_integer_arithmetic", "product_row_does_not_depend_on_width"
FUNCTIONS, EDGE_VALUES = "functions_have_their_known_answers", "functions_keep_their_edges"
KERNELS, CHECKPOINT = "kernels_give_the_reference_bits", "checkpoint_restores_at_every_step"
BROKEN_FILES, FRESH_MEMORY = "files_that_lie_are_refused", "fresh_memory_has_no_effect"
KNOWN_BITS = "logits_have_their_known_bits"


def _replace_parts(**wrong: Any) -> Callable[[Subject], Subject]:
    """Return a builder whose engine has other parts."""
    def build(subject: Subject) -> Subject:
        surface: EngineParts = subject.engine
        return replace(subject, engine=replace(surface, **wrong))

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
        return super()._fields_to_tensors(
            replace(parts, q=parts.q & 15) if self.kind == "Q5_K" else parts
        )


class _FloatSums(Weight):
    """Adds integers up in f32."""

    def _integer_dot(self, weights: Tensor, integers: Tensor) -> Tensor:
        return torch.bmm(weights.float(), integers.float()).double()


class _WrappedSums(Weight):
    """Keeps integer sums in 32 bits."""

    def _integer_dot(self, weights: Tensor, integers: Tensor) -> Tensor:
        whole = super()._integer_dot(weights, integers)
        return torch.remainder(whole + 2.0 ** 31, 2.0 ** 32) - 2.0 ** 31


class _FusedMinimum(Weight):
    """Rounds d * P - dmin * M once, as a fused multiply-add does."""

    def _subtract_minimum(self, value: Tensor, dmin: Tensor, m: Tensor) -> Tensor:
        return (value.double() - dmin.double() * m.double()).float()


class _OneSum(Weight):
    """Adds all groups in one order, without segments."""

    def _sum_groups(self, values: Tensor) -> Tensor:
        whole = torch.zeros_like(values[0])
        for value in values:
            whole = whole + value
        return whole


class _NarrowActivations(Weight):
    """Drops the low limb of every activation."""

    def _integer_dot(self, weights: Tensor, integers: Tensor) -> Tensor:
        return super()._integer_dot(weights, (integers / 256).round() * 256)


class _NoMinimum(Weight):
    """Forgets the minimum term."""

    def _subtract_minimum(self, value: Tensor, dmin: Tensor, m: Tensor) -> Tensor:
        return value


class _MatmulRows(Weight):
    """Multiplies rows by a float matmul, whose bits follow the width."""

    def _ordered_product(self, x: Tensor) -> Tensor:
        return self._dequantised_rows(slice(0, self.n)) @ x

    def product(self, x: Tensor) -> Tensor:
        whole = x @ self._dequantised_rows(slice(0, self.n)).T
        return whole if len(x) > 1 else super().product(x)


class _SpreadsNaN(Weight):
    """Adds zero times the sum of all rows, which is NaN if any value is."""

    def product(self, x: Tensor) -> Tensor:
        return super().product(x) + 0 * x.sum()


def _replace_function(name: str, wrong: Callable[[Tensor], Tensor]) -> Callable[[Subject], Subject]:
    def build(subject: Subject) -> Subject:
        functions = {**subject.engine.functions, name: wrong}
        return replace(subject, engine=replace(subject.engine, functions=functions))

    return build


def _exp_nan_to_zero(x: Tensor) -> Tensor:
    return torch.where(x.isnan(), 0.0, ar.exp(x))


def _fused_rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    out.copy_((x * x.double().pow(2).mean(-1, keepdim=True).add(eps).rsqrt()).float() * weight)


def _gemv_past_the_end(weight: Tensor, x: Tensor, out: Tensor) -> None:
    whole = out.as_strided((out.shape[0] + 4,), (1,))
    out.copy_(Weight("w", "Q4_K", weight.cpu().numpy()).product(x.cpu()[None])[0])
    whole[-4:] = 0.0


def _gemv_in_f32(weight: Tensor, x: Tensor, out: Tensor) -> None:
    out.copy_(Weight("w", "Q4_K", weight.cpu().numpy(), "ordered").product(x.cpu()[None])[0])


def _checkpoint_view(state: State, position: int) -> Checkpoint:
    return Checkpoint(position, state.named(position))


def _restore_without(kind: str) -> Callable[[Checkpoint, State], None]:
    def forgetful(saved: Checkpoint, state: State) -> None:
        kept = {name: view.clone() for name, view in state.named().items()
                if name.endswith(f".{kind}")}
        restore(saved, state)
        for name, view in kept.items():
            state.named()[name].copy_(view)

    return forgetful


def _checkpoint_one_row_short(state: State, position: int) -> Checkpoint:
    saved = checkpoint(state, position)
    for name, view in saved.tensors.items():
        if name.endswith((".k", ".v")):
            view[-1:] = 0.0
    return saved


class _LenientReader(TensorReader):
    """Fills a tensor that is missing with zeros and skips what it does not know."""

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


def _gated_norm_unwritten_tail(
    x: Tensor, z: Tensor, weight: Tensor, eps: float, out: Tensor
) -> None:
    whole = torch.empty_like(out)
    ops.gated_norm(x, z, weight, eps, whole)
    out[..., :-1] = whole[..., :-1]
    spill = torch.empty(1)
    out[..., -1] = torch.where(spill.isnan(), spill, whole[..., -1])


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


LOW_LEVEL_MUTANTS = (
    Mutant(
        "high_scale_bits_dropped",
        "The upper four scales lose their two high bits.",
        (PRODUCTS,),
        _replace_parts(weight=_LowScaleBits),
        "B054",
    ),
    Mutant(
        "scale_of_the_neighbour",
        "A sub-block uses the scale beside its own.",
        (PRODUCTS,),
        _replace_parts(weight=_NeighbourScale),
        "B055",
    ),
    Mutant(
        "fifth_bit_dropped",
        "Q5_K is read as Q4_K.",
        (PRODUCTS,),
        _replace_parts(weight=_NoFifthBit),
    ),
    Mutant(
        "limbs_joined_in_f32",
        "Integer sums are added up in f32.",
        (PRODUCTS,),
        _replace_parts(weight=_FloatSums),
    ),
    Mutant(
        "sums_wrap_at_32_bits",
        "Integer sums overflow int32.",
        (PRODUCTS,),
        _replace_parts(weight=_WrappedSums),
    ),
    Mutant(
        "minimum_contracted",
        "The minimum is subtracted by a fused multiply-add.",
        (PRODUCTS,),
        _replace_parts(weight=_FusedMinimum),
    ),
    Mutant(
        "groups_in_one_sum",
        "Groups are added in one order, without segments.",
        (PRODUCTS,),
        _replace_parts(weight=_OneSum),
    ),
    Mutant(
        "low_limb_dropped",
        "Activations have two limbs.",
        (PRODUCTS,),
        _replace_parts(weight=_NarrowActivations),
    ),
    Mutant(
        "minimum_forgotten",
        "Q4_K and Q5_K have no minimum.",
        (PRODUCTS,),
        _replace_parts(weight=_NoMinimum),
    ),
    Mutant(
        "float_matmul",
        "Rows go through a float matmul.",
        (PRODUCTS, WIDTH),
        _replace_parts(weight=_MatmulRows),
    ),
    Mutant(
        "nan_reaches_other_rows",
        "A NaN in one row reaches every row of the step.",
        (WIDTH,),
        _replace_parts(weight=_SpreadsNaN),
    ),
    Mutant(
        "library_exp", "exp is the library's.", (FUNCTIONS,), _replace_function("exp", torch.exp)
    ),
    Mutant(
        "library_sigmoid",
        "sigmoid is the library's.",
        (FUNCTIONS,),
        _replace_function("sigmoid", torch.sigmoid),
    ),
    Mutant(
        "rsqrt_rounded_once",
        "rsqrt is rounded once instead of twice.",
        (FUNCTIONS,),
        _replace_function("rsqrt", lambda x: x.double().rsqrt().float()),
    ),
    Mutant(
        "nan_becomes_zero",
        "A comparison turns NaN into zero.",
        (EDGE_VALUES,),
        _replace_function("exp", _exp_nan_to_zero),
    ),
    Mutant(
        "rms_norm_in_f64",
        "The norm's sum has another order and width.",
        (KERNELS,),
        _replace_parts(kernels={"rms_norm": _fused_rms_norm}),
    ),
    Mutant(
        "kernel_writes_past_its_output",
        "Four values past the last row are stored.",
        (KERNELS,),
        _replace_parts(kernels={"gemv_q4_k": _gemv_past_the_end}),
        "B062",
    ),
    Mutant(
        "kernel_has_other_arithmetic",
        "The kernel multiplies in f32.",
        (KERNELS,),
        _replace_parts(kernels={"gemv_q4_k": _gemv_in_f32}),
    ),
    Mutant(
        "checkpoint_is_a_view",
        "A checkpoint shares memory with its slot.",
        (CHECKPOINT,),
        _replace_parts(checkpoint=_checkpoint_view),
    ),
    Mutant(
        "window_not_restored",
        "Restoring leaves the conv window.",
        (CHECKPOINT,),
        _replace_parts(restore=_restore_without("conv")),
        "B171",
    ),
    Mutant(
        "recurrent_state_not_restored",
        "Restoring leaves the recurrent state.",
        (CHECKPOINT,),
        _replace_parts(restore=_restore_without("delta")),
        "B169",
    ),
    Mutant(
        "last_key_not_saved",
        "A checkpoint misses its last KV row.",
        (CHECKPOINT,),
        _replace_parts(checkpoint=_checkpoint_one_row_short),
    ),
    Mutant(
        "unmatched_tensor_skipped",
        "A missing tensor is zeros, an unknown one is skipped.",
        (BROKEN_FILES,),
        _replace_parts(load=_load_leniently),
        "B213",
    ),
    Mutant(
        "block_count_defaulted",
        "A file without a block count gets one.",
        (BROKEN_FILES,),
        _replace_parts(load=_load_with_defaults(("block_count", 2))),
        "B218",
    ),
    Mutant(
        "rope_keys_defaulted",
        "Missing rope keys are taken as 10,000 and 64.",
        (BROKEN_FILES,),
        _replace_parts(
            load=_load_with_defaults(("rope.freq_base", 10000.0), ("rope.dimension_count", 64))
        ),
    ),
    Mutant(
        "output_left_unwritten",
        "One value of an output is whatever memory held.",
        (FRESH_MEMORY,),
        _leave_tail_unwritten,
    ),
    Mutant(
        "library_silu_in_the_ffn", "The FFN's SiLU is the library's.", (KNOWN_BITS,), _library_silu
    ),
)
