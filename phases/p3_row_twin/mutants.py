"""Wrong products, each with one fault, and the falsifiers that must kill it.

A mutant is offered as a candidate would be, with the arithmetic that it claims.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from contracts.schema import Case
from engine.weights import EXACT, ORDERED, Weight
from falsifiers.gate.candidates import Candidate, load_candidate
from falsifiers.judging.subject import Builder, Subject
from phases.p1_looped_step import increment as before
from phases.p3_row_twin import wrong_calls as calls
from phases.p3_row_twin import wrong_products as products
from phases.p3_row_twin.increment import GemvRows
from phases.p3_row_twin.reference import gemv_rows


def _offer(make: Callable[[], Any], arithmetic: str, declines: Callable[[Case], bool]) -> Builder:
    """Return a builder that offers a product as a candidate, built anew if it has state."""
    def build(subject: Subject) -> Subject:
        target = SimpleNamespace(
            gemv_rows=make(), ARITHMETIC=arithmetic, prepare=lambda weight: weight,
            supports=lambda case: "not a case that its fault is about" if declines(case) else None)
        return replace(subject, candidate=Candidate("mutant", target))

    return build


def _with_product(product: GemvRows, arithmetic: str = EXACT) -> Builder:
    """Return a builder of a product in PyTorch, which is slow enough to be run on the CPU alone."""
    return _with_stateful_product(lambda: product, arithmetic)


def _with_stateful_product(make: Callable[[], GemvRows], arithmetic: str = EXACT) -> Builder:
    return _offer(make, arithmetic, lambda case: case.tier != "cpu")


def _with_parts(change: Callable[..., Any]) -> Builder:
    return _with_product(products.with_changed_parts(change))


def _with_weight(wrong: type[Weight], arithmetic: str = EXACT) -> Builder:
    return _with_product(products.with_weight_class(wrong), arithmetic)


def _with_kernel(name: str, kind: str, *given: int, tier: str = "interpret") -> Builder:
    """Return a builder of a wrong kernel for one type; Triton is imported when it is built."""
    def make() -> Any:
        function = getattr(importlib.import_module("phases.p3_row_twin.wrong_kernels"), name)
        return function(*given) if given else function

    return _offer(make, ORDERED, lambda case: case.tier != tier or case["kind"] != kind)


def _with_module(name: str) -> Builder:
    """Return a builder of products offered by name, as another process can find them too."""
    return lambda subject: replace(
        subject, candidate=load_candidate(f"module:phases.p3_row_twin.{name}")
    )


def _with_path(**wrong: Any) -> Builder:
    return lambda subject: replace(subject, path=replace(subject.path, **wrong))


def _project_ordered(weight: Weight, x: Tensor, out: Tensor) -> None:
    gemv_rows(weight.like(ORDERED), x, out)


DECODING = {
    "type_hard_coded": _with_product(products.decode_as_q4),
    "high_scale_bits_dropped": _with_parts(products.low_scale_bits),
    "halves_paired_before_scaling": _with_parts(products.paired_scales),
    "group_left_out_of_the_index": _with_parts(products.first_group_for_all),
    "scale_of_the_next_sub_block": _with_parts(products.next_scales),
    "high_bits_have_a_sign": _with_parts(products.signed_high_bits),
    "quants_without_a_sign": _with_parts(products.unsigned_quants),
    "row_stride_of_scales_is_one": _with_parts(products.scales_one_apart),
    "first_row_of_a_tile_for_all": _with_parts(products.first_of_sixteen),
}
ARITHMETIC = {
    "low_limb_dropped": _with_weight(products.TwoLimbs),
    "limbs_joined_in_f32": _with_weight(products.JoinedInF32),
    "minimum_in_32_bits": _with_weight(products.MinimumIn32Bits),
    "difference_contracted": _with_weight(products.ContractedMinimum),
    "sums_contracted": _with_weight(products.ContractedSums, ORDERED),
    "groups_in_one_order": _with_weight(products.WithoutSegments),
    "infinity_left_out": _with_weight(products.NonFiniteAsZero),
    "eight_bit_activations": _with_product(products.eight_bits, 'own'),
}
WIDTH = {
    "other_kernel_above_eight_rows": _with_product(calls.ordered_above_eight),
    "split_of_k_by_width": _with_product(calls.split_by_width, 'own'),
    "long_rows_cut_by_width": _with_product(calls.long_rows_cut_by_width),
    "lanes_by_width": _with_product(calls.lanes_by_width, 'own'),
    "last_block_lost_at_two_and_three": _with_product(calls.last_block_dropped),
    "rows_in_whole_fours": _with_product(calls.whole_quads_of_rows),
    "scale_of_the_largest_row": _with_product(calls.scale_of_all_rows, 'own'),
    "zero_times_a_neighbour": _with_product(calls.zero_times_the_rest),
    "rows_reversed": _with_product(calls.rows_reversed),
}
LAYOUT = {
    "out_as_if_packed": _with_product(calls.out_as_if_packed),
    "x_as_if_packed": _with_product(calls.x_as_if_packed),
    "out_by_the_stride_of_x": _with_product(calls.out_by_the_stride_of_x),
    "whole_tiles_stored": _with_product(calls.whole_tiles_stored),
    "grid_divided_down": _with_product(calls.whole_tiles_only),
    "grid_has_a_limit": _with_product(calls.limited_grid(272)),
    "padding_times_zero": _with_product(calls.padding_times_zero),
    "added_to_out": _with_product(calls.added_to_out),
}
CALL_STATE = {
    "result_kept_by_address": _with_stateful_product(calls.cache_by_address),
    "weights_kept_by_shape": _with_stateful_product(calls.weights_kept_by_shape),
    "work_put_off": _with_stateful_product(calls.defer_product),
    "input_rounded_in_place": _with_product(calls.round_input),
    "weights_written": _with_product(calls.clear_weights),
    "halves_as_they_come": _with_stateful_product(calls.halves_as_they_come, 'own'),
    "oracle_projects": _with_path(step_rows=before.path().step_rows),
    "other_arithmetic_in_the_step": _with_path(project=_project_ordered),
}
KERNELS = {
    "weights_reread_for_each_row": _with_kernel('f32_rows', 'F32', 4),
    "one_launch_a_row": _with_kernel('launch_of_one_row', 'Q4_K'),
    "second_launch_above_sixteen_rows": _with_kernel('launch_of_sixteen_rows', 'Q6_K'),
    "last_rows_not_masked": _with_kernel('f32_rows', 'F32', 1, 2),
    "last_four_rows_not_masked": _with_kernel('f32_rows', 'F32', 1, 4),
    "columns_not_masked": _with_kernel('f32_rows', 'F32', 2),
    "store_not_masked": _with_kernel('f32_rows', 'F32', 3),
    "strides_taken_for_widths": _with_kernel('f32_rows', 'F32', 5),
    "words_at_odd_blocks": _with_kernel('words_at_odd_blocks', 'Q6_K'),
    "offsets_lose_their_high_bits": _with_kernel('f32_rows', 'F32', 6, tier='cuda'),
    "a_launch_a_row_on_a_device": _with_module('wrong_launches'),
    "chunks_share_their_integers": _with_module('wrong_chunks'),
    "read_on_another_stream": _with_kernel('on_a_stream_of_its_own', 'Q4_K', tier='cuda'),
}
MUTANTS: dict[str, Builder] = DECODING | ARITHMETIC | WIDTH | LAYOUT | CALL_STATE | KERNELS
