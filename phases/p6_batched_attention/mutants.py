"""Wrong attention, each with one fault; the contract lists the falsifiers that must kill it."""

from __future__ import annotations

from falsifiers.judging.subject import Builder
from phases import wrong_refs as refs
from phases.p6_batched_attention import wrong_attention as wa
from phases.p6_batched_attention import wrong_kernels as wk
from phases.p6_batched_attention import wrong_narrow as wn
from phases.p6_batched_attention import wrong_positions as wp
from phases.p6_batched_attention import wrong_rows as wr

LENGTHS = {
    "longest_row_sets_the_length": wa.with_token_reads(wa.longest_for_all),
    "length_rounded_up_to_a_page": wa.with_token_reads(wa.up_to_a_page),
    "next_tokens_page_is_read": wa.with_token_reads(wa.one_key_ahead),
    "last_tile_without_a_mask": wa.with_token_reads(wa.no_mask_on_the_last_tile),
    "mask_by_multiplying": wa.with_token_reads(wa.mask_by_zero),
    "newest_key_not_seen": wa.with_token_reads(wa.newest_key_unseen),
    "last_short_split_lost": wa.with_token_reads(wa.last_split_lost),
    "oldest_key_lost_in_a_batch": wa.with_token_reads(wa.oldest_key_lost_in_a_batch),
    "chunk_sees_its_own_future": wa.with_token_reads(wa.chunk_sees_itself_whole),
    "chunk_blind_to_itself": wa.with_token_reads(wa.chunk_blind_to_itself),
}
ADDRESSES = {
    "slot_found_by_the_row": wa.with_slots(refs.row_numbers),
    "offset_added_twice": wa.with_slots(refs.doubled_slots),
    "values_of_the_next_slot": wa.with_slots(refs.next_slots, "values"),
    "slots_sorted_under_the_rows": wa.with_slots(refs.sorted_slots),
    "keys_of_the_last_row": wa.with_token_reads(wa.keys_of_the_last_row),
    "rows_cut_a_count_apart": wa.with_attention(wr.chunks_cut_a_count_apart),
    "appended_at_the_first_rows_length": wa.with_attention(wr.appended_at_the_first_rows_length),
    "chunk_appends_its_last_only": wa.with_attention(wr.chunk_appends_its_last_only),
    "values_stored_as_keys": wa.with_attention(wr.values_stored_as_keys),
    "append_clears_an_octet": wa.with_attention(wr.appended_to_a_full_octet),
    "offset_of_31_bits": wk.with_short_offsets(),
}
PAD_FAULTS = {
    "pad_clamped_to_slot_zero": wa.with_attention(wr.pads_clamped_to_slot_zero),
    "pad_takes_an_idle_slot": wa.with_attention(wr.pads_take_any_slot),
    "pad_takes_the_last_token": wa.with_attention(wr.pads_take_the_last_token),
    "pad_shifts_the_rows_behind": wa.with_attention(wr.pads_shift_the_rows_behind),
    "pad_divides_by_zero": wa.with_attention(wr.empty_row_divides_by_zero),
    "pad_slot_looked_up": wa.with_attention(wr.pad_slots_are_looked_up),
}
ARITHMETIC = {
    "split_by_the_longest_row": wa.with_token_reads(wa.split_by_the_longest),
    "split_by_the_mean_length": wa.with_token_reads(wa.split_by_the_mean),
    "largest_score_over_all_rows": wa.with_attention(wa.largest_over_all_rows),
    "rescale_is_always_one": wa.with_token_reads(wa.rescale_is_always_one),
    "first_split_sets_the_maximum": wa.with_token_reads(wa.first_split_sets_the_maximum),
    "scale_left_out": wa.with_attention(wa.scale_left_out),
    "heads_paired_by_remainder": wa.with_token_reads(wa.heads_by_remainder),
    "first_kv_head_for_all": wa.with_token_reads(wa.first_kv_head_for_all),
    "gate_left_out": wa.with_attention(wa.gate_left_out),
    "gate_of_the_first_row": wa.with_attention(wa.gate_of_the_first_row),
    "scratch_kept_between_calls": refs.with_ops(attend=wa.KeepsScratch),
}
POSITIONS = {
    "positions_from_zero": refs.with_ops(rotate=wp.positions_from_zero),
    "chunk_shares_a_position": refs.with_ops(rotate=wp.chunk_shares_a_position),
    "position_of_the_first_row": refs.with_ops(rotate=wp.position_of_the_first),
    "position_kept_by_the_engine": refs.with_ops(rotate=wp.KeepsOffset),
    "neighbours_are_pairs": refs.with_ops(rotate=wp.neighbours_are_pairs),
    "every_dimension_turns": refs.with_ops(rotate=wp.every_dimension_turns),
}
KERNELS = {
    "kernel_takes_the_token_for_its_row": wk.with_attend_parts(_row_of=wk.row_is_the_token),
    "kernel_keeps_a_chunk_at_its_start": wk.with_attend_parts(
        _visible_keys=wk.chunk_reaches_its_first_token),
    "kernel_adds_halves": wk.with_attend_parts(_sum_columns=wk.halves_for_pairs),
    "kernel_uses_the_librarys_exp": wk.with_attend_parts(exp=wk.library_exp),
    "kernel_gives_a_lane_eight_keys": wk.with_attend_parts(_weighted_values=wk.eight_keys_a_lane),
    "kernel_loads_a_key_too_many": wk.with_attend_parts(_scores=wk.scores_without_a_mask),
    "kernel_has_one_stride": wk.with_attend(wk.values_by_the_strides_of_keys),
    "kernel_reads_pads_pointers": wk.with_attend_parts(wk.every_pointer_is_read),
    "kernel_reads_keys_by_query_head": wk.with_attend_parts(_scores=wk.scores_read_by_each_head),
    "kernel_turns_by_the_first_row": wk.with_rotate_parts(_rotate=wk.rotate_by_the_first),
    "cuda_norm_adds_distant_lanes_first": wk.with_norm_rotate_source(
        "int step = 1; step < 32; step *= 2", "int step = 16; step; step /= 2"),
    "cuda_norm_takes_the_queries_weight": wk.with_norm_rotate_source(
        "set.weight[", "queries.weight["),
    "cuda_heads_taken_side_by_side": wk.with_norm_rotate_source(
        "head * set.head_stride", "head * DIM"),
    "cuda_turns_by_the_first_position": wk.with_norm_rotate_source(
        "positions + token", "positions"),
    "cuda_rotation_contracted": wk.with_norm_rotate_source(
        "__fsub_rn(cosine_term, sine_term)", "__fmaf_rn(v[i], cosine[i], -sine_term)"),
    "cuda_sum_contracted": wk.with_cuda_source(
        "__fadd_rn(acc[h][l], __fmul_rn(weight[h], value))",
        "__fmaf_rn(weight[h], value, acc[h][l])"),
    "cuda_counts_integers_from_a_launchs_first_token": wk.with_cuda_source(
        "quantize_group(group_values, head, token,",
        "quantize_group(group_values, head, blockIdx.y,"),
    "cuda_leaves_integers_of_the_ungated_result": wk.with_cuda_source(
        "result[tid] = value;", "result[tid] = __fdiv_rn(numerator, denominator);"),
    "cuda_reads_the_cache_alone": wk.with_cuda_source(
        "const bool is_cached = key < length;", "const bool is_cached = true;"),
}
UNROUNDED_NEW = "make_float4(from_cache(x.x), from_cache(x.y), from_cache(x.z), from_cache(x.w))"
UNROUNDED_CACHED = "__ldg((const float4*)(new_row + 128 * i))"
"""In `attend.cu`: the value that a lane loads of a cached key, and of a key of this step."""
CACHES = {
    "narrow_kv_truncated": wa.with_attention(wn.append_rounded(wn.round_toward_zero)),
    "narrow_kv_rounds_half_up": wa.with_attention(wn.append_rounded(wn.round_half_up)),
    "narrow_kv_saturates": wa.with_attention(wn.append_rounded(wn.saturate)),
    "narrow_kv_rounded_in_a_batch_alone": wa.with_attention(
        wn.append_rounded(wn.round_toward_zero, lambda counts: len(counts) == 1)),
    "narrow_kv_rounded_twice": wa.with_attention(wn.append_rounded(wn.round_through_bf16)),
    "narrow_kv_read_as_the_other_type": wa.with_token_reads(wn.read_as_the_other_type),
    "narrow_kv_of_this_step_not_rounded": wa.with_token_reads(wn.own_step_unrounded),
    "narrow_kv_of_a_chunk_not_rounded": wa.with_token_reads(wn.chunk_unrounded),
    "narrow_queries_too": wa.with_attention(wn.queries_rounded_too),
    "four_bytes_a_narrow_value": wa.with_attention(wn.four_bytes_a_value),
    "kernel_truncates": wk.with_attend_parts(_to_cache=wk.truncate_to_kv),
    "kernel_rounds_nan_as_a_number": wk.with_attend_parts(_to_cache=wk.nan_rounded_as_a_number),
    "kernel_reads_f16_as_bf16": wk.with_attend_parts(_from_cache=wk.read_as_bf16),
    "cuda_truncates": wk.with_cuda_source("cvt.rn.", "cvt.rz."),
    "cuda_reads_fresh_keys_unrounded": wk.with_cuda_source(
        f"out[i] = {UNROUNDED_NEW}", f"out[i] = is_cached ? {UNROUNDED_NEW} : {UNROUNDED_CACHED}"),
}
MUTANTS: dict[str, Builder] = (
    LENGTHS | ADDRESSES | PAD_FAULTS | ARITHMETIC | POSITIONS | KERNELS | CACHES
)
