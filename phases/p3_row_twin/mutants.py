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
from falsifiers.judging.subject import Mutant, Subject
from phases.p1_looped_step import increment as before
from phases.p3_row_twin import wrong_calls as calls
from phases.p3_row_twin import wrong_products as products
from phases.p3_row_twin.increment import GemvRows
from phases.p3_row_twin.reference import gemv_rows

Builder = Callable[[Subject], Subject]
TWIN, TRUTH = "rows_equal_alone", "products_are_true"
INTEGERS, UNITS = "products_equal_integer_arithmetic", "unit_vectors_return_each_weight"
TAILS, STRIDES = "every_tail_is_written", "strides_and_offsets_do_not_matter"
NEIGHBOURS, CALLS = "neighbours_cannot_reach_a_row", "inputs_are_read_at_the_call"
REPEATS, READ_ONCE = "repeats_are_equal", "weights_are_read_once"
BOUNDS, FAR_OFFSETS = "loads_and_stores_stay_inside", "far_offsets_are_reached"
DEVICE_READS, STEPS = "device_reads_weights_once", "steps_equal_the_looped_step"
SHARED_LAUNCHES = "shared_launches_equal_apart"


def _offer(make: Callable[[], Any], arithmetic: str, declines: Callable[[Case], bool]) -> Builder:
    """Return a builder that offers a product as a candidate, made anew if it keeps state."""
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
        made = getattr(importlib.import_module("phases.p3_row_twin.wrong_kernels"), name)
        return made(*given) if given else made

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


DECODING = (
    Mutant("type_hard_coded", "Blocks of Q5_K and Q6_K are decoded as Q4_K.", (TRUTH, UNITS),
           _with_product(products.decode_as_q4)),
    Mutant("high_scale_bits_dropped", "Scales 4 to 7 lose their two high bits.",
           (TRUTH, UNITS, INTEGERS), _with_parts(products.low_scale_bits), "B054"),
    Mutant("halves_paired_before_scaling", "Two sub-blocks share the scale of the first.",
           (TRUTH, UNITS), _with_parts(products.paired_scales), "B055"),
    Mutant("group_left_out_of_the_index", "Every sub-block has the quants of the first.",
           (TRUTH, UNITS), _with_parts(products.first_group_for_all), "B058"),
    Mutant("scale_of_the_next_sub_block", "Each sub-block takes its neighbour's scale.",
           (TRUTH, UNITS, INTEGERS), _with_parts(products.next_scales)),
    Mutant("high_bits_have_a_sign", "The two high bits of Q6_K are taken as signed.",
           (TRUTH, UNITS), _with_parts(products.signed_high_bits)),
    Mutant("quants_without_a_sign", "The bytes of Q8_0 are taken as unsigned.", (TRUTH, UNITS),
           _with_parts(products.unsigned_quants)),
    Mutant("row_stride_of_scales_is_one", "Row r takes the scales that begin r further on.",
           (TRUTH, UNITS), _with_parts(products.scales_one_apart), "B071"),
    Mutant("first_row_of_a_tile_for_all", "Sixteen rows of the matrix share the first one's "
           "pointer.", (TRUTH, TAILS), _with_parts(products.first_of_sixteen), "B073"),
)
ARITHMETIC = (
    Mutant("low_limb_dropped", "Activations keep two limbs of three.", (TRUTH, INTEGERS),
           _with_weight(products.TwoLimbs)),
    Mutant("limbs_joined_in_f32", "Limb sums are rounded before they are joined.",
           (TRUTH, INTEGERS), _with_weight(products.JoinedInF32)),
    Mutant("minimum_in_32_bits", "The sum of minima wraps at 2^31.", (TRUTH, INTEGERS),
           _with_weight(products.MinimumIn32Bits)),
    Mutant("difference_contracted", "d P - dmin M is rounded once, as with FMA.",
           (TRUTH, INTEGERS), _with_weight(products.ContractedMinimum)),
    Mutant("sums_contracted", "Each ordered multiply and add is one FMA.", (TRUTH, INTEGERS),
           _with_weight(products.ContractedSums, ORDERED)),
    Mutant("groups_in_one_order", "Groups are added without segments.", (TRUTH, INTEGERS),
           _with_weight(products.WithoutSegments)),
    Mutant("infinity_left_out", "An activation that is not finite counts as zero.", (TRUTH,),
           _with_weight(products.NonFiniteAsZero)),
    Mutant("eight_bit_activations", "Activations are rounded to 8 bits a block.", (TRUTH,),
           _with_product(products.eight_bits, "own")),
)
WIDTH = (
    Mutant("other_kernel_above_eight_rows", "More than eight rows take the ordered product.",
           (TWIN,), _with_product(calls.ordered_above_eight)),
    Mutant("split_of_k_by_width", "K is cut into more parts for more rows.", (TWIN,),
           _with_product(calls.split_by_width, "own")),
    Mutant("long_rows_cut_by_width", "K past 4,096 is cut in two for more than one row.",
           (TWIN, TRUTH), _with_product(calls.long_rows_cut_by_width)),
    Mutant("lanes_by_width", "More than four rows are added in half as many lanes.", (TWIN,),
           _with_product(calls.lanes_by_width, "own")),
    Mutant("last_block_lost_at_two_and_three", "Two and three rows leave out the last block.",
           (TWIN,), _with_product(calls.last_block_dropped), "B076"),
    Mutant("rows_in_whole_fours", "Rows past the last four repeat the first of them.",
           (TWIN, NEIGHBOURS), _with_product(calls.whole_quads_of_rows), "B077"),
    Mutant("scale_of_the_largest_row", "Rows of a batch are rounded by their common maximum.",
           (TWIN, NEIGHBOURS), _with_product(calls.scale_of_all_rows, "own")),
    Mutant("zero_times_a_neighbour", "Other rows are multiplied by zero, not left out.",
           (NEIGHBOURS,), _with_product(calls.zero_times_the_rest)),
    Mutant("rows_reversed", "Row i gets the product of row m - 1 - i.", (TWIN, NEIGHBOURS),
           _with_product(calls.rows_reversed)),
)
LAYOUT = (
    Mutant("out_as_if_packed", "Rows of out are taken to stand N apart.", (STRIDES,),
           _with_product(calls.out_as_if_packed)),
    Mutant("x_as_if_packed", "Rows of x are taken to stand K apart.", (STRIDES,),
           _with_product(calls.x_as_if_packed)),
    Mutant("out_by_the_stride_of_x", "The gap between rows of out is taken from x.", (STRIDES,),
           _with_product(calls.out_by_the_stride_of_x), "B069"),
    Mutant("whole_tiles_stored", "Four values are stored where fewer are left.",
           (STRIDES, TAILS), _with_product(calls.whole_tiles_stored), "B062"),
    Mutant("grid_divided_down", "Rows of the matrix past the last whole tile are not computed.",
           (TAILS, TRUTH), _with_product(calls.whole_tiles_only), "B063"),
    Mutant("grid_has_a_limit", "Rows of the matrix past the 272nd are not computed.", (TAILS, TWIN),
           _with_product(calls.limited_grid(272))),
    Mutant("padding_times_zero", "Values past K are read and multiplied by zero.", (STRIDES,),
           _with_product(calls.padding_times_zero), "B080"),
    Mutant("added_to_out", "The product is added to what out held.", (TAILS, TRUTH),
           _with_product(calls.added_to_out)),
)
CALL_STATE = (
    Mutant("result_kept_by_address", "What an input at this address gave last is given again.",
           (CALLS,), _with_stateful_product(calls.cache_by_address)),
    Mutant("weights_kept_by_shape", "The first matrix of a shape serves all of that shape.",
           (CALLS, TRUTH), _with_stateful_product(calls.weights_kept_by_shape)),
    Mutant("work_put_off", "A call's work is done when the next one comes.", (CALLS, TAILS),
           _with_stateful_product(calls.defer_product)),
    Mutant("input_rounded_in_place", "x is rounded to bfloat16 where it stands.", (STRIDES, TWIN),
           _with_product(calls.round_input)),
    Mutant("weights_written", "A byte of each row of weights is cleared after use.",
           (CALLS, REPEATS), _with_product(calls.clear_weights)),
    Mutant("halves_as_they_come", "Partial sums meet in f16 in the order in which they come.",
           (REPEATS,), _with_stateful_product(calls.halves_as_they_come, "own"), "B082"),
    Mutant("oracle_projects", "P3's step runs the oracle's projections.", (STEPS,),
           _with_path(step_rows=before.path().step_rows)),
    Mutant("other_arithmetic_in_the_step", "The step projects by the ordered product.", (STEPS,),
           _with_path(project=_project_ordered)),
)
KERNELS = (
    Mutant(
        "weights_reread_for_each_row",
        "A loop over rows stands around the loads.",
        (READ_ONCE,),
        _with_kernel("f32_rows", "F32", 4),
    ),
    Mutant(
        "one_launch_a_row",
        "Every row takes a launch of its own.",
        (READ_ONCE,),
        _with_kernel("launch_of_one_row", "Q4_K"),
    ),
    Mutant(
        "second_launch_above_sixteen_rows",
        "Rows past the sixteenth take a second launch.",
        (READ_ONCE,),
        _with_kernel("launch_of_sixteen_rows", "Q6_K"),
    ),
    Mutant(
        "last_rows_not_masked",
        "The last program loads rows past the matrix.",
        (BOUNDS,),
        _with_kernel("f32_rows", "F32", 1, 2),
        "B060",
    ),
    Mutant(
        "last_four_rows_not_masked",
        "The same with four rows a program.",
        (BOUNDS,),
        _with_kernel("f32_rows", "F32", 1, 4),
        "B061",
    ),
    Mutant(
        "columns_not_masked",
        "Columns past K are loaded from the next row.",
        (BOUNDS, TRUTH),
        _with_kernel("f32_rows", "F32", 2),
    ),
    Mutant(
        "store_not_masked",
        "The last program stores past N.",
        (BOUNDS, STRIDES),
        _with_kernel("f32_rows", "F32", 3),
    ),
    Mutant(
        "strides_taken_for_widths",
        "A kernel uses K and N for row strides.",
        (STRIDES,),
        _with_kernel("f32_rows", "F32", 5),
    ),
    Mutant(
        "words_at_odd_blocks",
        "Scales of 210-byte blocks are loaded as 32-bit words.",
        (BOUNDS,),
        _with_kernel("words_at_odd_blocks", "Q6_K"),
        "B067",
    ),
    Mutant(
        "offsets_lose_their_high_bits",
        "A row's offset wraps, as an int32 does.",
        (FAR_OFFSETS,),
        _with_kernel("f32_rows", "F32", 6, tier="cuda"),
        device="cuda",
    ),
    Mutant(
        "a_launch_a_row_on_a_device",
        "On a device every row takes a launch of its own.",
        (DEVICE_READS,),
        _with_module("wrong_launches"),
        device="cuda",
    ),
    Mutant(
        "chunks_share_their_integers",
        "Rows past the 64th are made of the first 64's integers.",
        (SHARED_LAUNCHES,),
        _with_module("wrong_chunks"),
        device="cuda",
    ),
    Mutant(
        "read_on_another_stream",
        "Work waits on a stream that the caller does not know.",
        (CALLS,),
        _with_kernel("on_a_stream_of_its_own", "Q4_K", tier="cuda"),
        device="cuda",
    ),
)
MUTANTS = DECODING + ARITHMETIC + WIDTH + LAYOUT + CALL_STATE + KERNELS
