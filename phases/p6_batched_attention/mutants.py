"""Wrong attention, each with one fault, and the falsifiers that must kill it."""

from __future__ import annotations

from falsifiers.judging.subject import Mutant
from phases.p6_batched_attention import wrong_attention as wa
from phases.p6_batched_attention import wrong_kernels as wk
from phases.p6_batched_attention import wrong_narrow as wn
from phases.p6_batched_attention import wrong_positions as wp
from phases.p6_batched_attention import wrong_rows as wr

TWIN, TRUTH = "rows_equal_alone", "attention_is_true"
PLACEMENT, PADS = "rows_and_slots_may_move", "pads_do_nothing"
BEYOND_LENGTH, NEIGHBOURS = "what_lies_beyond_cannot_reach_a_row", "neighbours_cannot_reach_a_row"
NEW_ROWS, CHUNKS = "only_new_rows_are_written", "chunks_equal_steps"
SOFTMAX, GROUPING = "softmax_is_sound", "heads_are_grouped"
ROTATION, REPEATS = "rotation_is_each_rows_own", "repeats_are_equal"
NORM_ROTATE = "norm_and_rotation_are_true_together"
PRODUCTS = "products_take_what_attention_wrote"
OFFSETS, BOUNDS = "offsets_do_not_wrap", "loads_and_stores_stay_inside"
READ_ONCE, STEPS = "keys_are_read_once", "steps_equal_solo"
MEMBERS, DRIFT = "membership_may_change_every_step", "long_runs_do_not_drift"
KERNEL_STEP = "kernels_run_the_step"
NARROW_TWIN, ROUNDING = "narrow_rows_equal_alone", "narrow_kv_is_rounded_once"
NEAR_F32, NARROW_STEPS = "narrow_kv_stays_near_f32", "narrow_steps_equal_solo"

LENGTHS = (
    Mutant("longest_row_sets_the_length", "The longest row's length is used for all.",
           (TWIN, TRUTH, NEIGHBOURS), wa.with_token_reads(wa.longest_for_all), "B158"),
    Mutant("length_rounded_up_to_a_page", "Keys are read to the end of a page of 16.",
           (TRUTH, BEYOND_LENGTH, MEMBERS), wa.with_token_reads(wa.up_to_a_page), "B143"),
    Mutant("next_tokens_page_is_read", "At a page's end the page of the next token is read too.",
           (TRUTH, BEYOND_LENGTH), wa.with_token_reads(wa.one_key_ahead), "B143"),
    Mutant("last_tile_without_a_mask", "The lanes behind the last key enter the denominator.",
           (TRUTH, SOFTMAX), wa.with_token_reads(wa.no_mask_on_the_last_tile), "B145"),
    Mutant("mask_by_multiplying", "Absent keys are multiplied by 0, which keeps a NaN.",
           (TRUTH, BEYOND_LENGTH), wa.with_token_reads(wa.mask_by_zero)),
    Mutant("newest_key_not_seen", "A token does not see itself.", (TRUTH, SOFTMAX, STEPS),
           wa.with_token_reads(wa.newest_key_unseen)),
    Mutant("last_short_split_lost", "A split of fewer than 64 keys behind whole ones is dropped.",
           (TRUTH, SOFTMAX), wa.with_token_reads(wa.last_split_lost)),
    Mutant("oldest_key_lost_in_a_batch", "Beside others a row of over 64 keys loses its first.",
           (TWIN, DRIFT), wa.with_token_reads(wa.oldest_key_lost_in_a_batch)),
    Mutant("chunk_sees_its_own_future", "A chunk's tokens see all of the chunk.", (CHUNKS, STEPS),
           wa.with_token_reads(wa.chunk_sees_itself_whole)),
    Mutant("chunk_blind_to_itself", "A chunk's tokens see what was cached before, and themselves.",
           (CHUNKS, STEPS), wa.with_token_reads(wa.chunk_blind_to_itself)),
)
ADDRESSES = (
    Mutant("slot_found_by_the_row", "Row i attends in slot i, whatever slot it has.",
           (PLACEMENT, MEMBERS), wa.with_attention(wr.slot_by_the_row)),
    Mutant("offset_added_twice", "A row's base already holds the offset that is added again.",
           (PLACEMENT, TRUTH, STEPS), wa.with_attention(wr.offset_added_twice), "B149"),
    Mutant("values_of_the_next_slot", "Values are found one slot further than keys.",
           (TRUTH, NEW_ROWS), wa.with_attention(wr.values_of_the_next_slot)),
    Mutant("slots_sorted_under_the_rows", "Slots are worked in order, rows are not.",
           (PLACEMENT, MEMBERS), wa.with_attention(wr.rows_in_slot_order)),
    Mutant("keys_of_the_last_row", "Every row is scored against the last row's keys.",
           (TWIN, NEIGHBOURS), wa.with_token_reads(wa.keys_of_the_last_row)),
    Mutant("rows_cut_a_count_apart", "Row i's queries begin at i times the widest count.",
           (CHUNKS, STEPS), wa.with_attention(wr.chunks_cut_a_count_apart), "B034"),
    Mutant("appended_at_the_first_rows_length", "New keys are stored where the first row's go.",
           (NEW_ROWS, STEPS), wa.with_attention(wr.appended_at_the_first_rows_length)),
    Mutant("chunk_appends_its_last_only", "Of a chunk only the last token's key is kept.",
           (NEW_ROWS, STEPS), wa.with_attention(wr.chunk_appends_its_last_only)),
    Mutant("values_stored_as_keys", "Values are appended to both caches.", (NEW_ROWS, STEPS),
           wa.with_attention(wr.values_stored_as_keys)),
    Mutant("append_clears_an_octet", "Rows up to the next multiple of 8 are cleared.", (NEW_ROWS,),
           wa.with_attention(wr.appended_to_a_full_octet)),
    Mutant("offset_of_31_bits", "A cache row's offset loses its upper bits.", (OFFSETS,),
           wk.with_short_offsets(), "B141", device="cuda"),
)
PAD_FAULTS = (
    Mutant("pad_clamped_to_slot_zero", "A pad's slot becomes 0, which is somebody's.", (PADS,),
           wa.with_attention(wr.pads_clamped_to_slot_zero), "B194"),
    Mutant("pad_takes_an_idle_slot", "A pad writes into a slot that looks free.", (PADS,),
           wa.with_attention(wr.pads_take_any_slot), "B192"),
    Mutant("pad_takes_the_last_token", "A pad works on the last token over again.", (PADS,),
           wa.with_attention(wr.pads_take_the_last_token), "B193"),
    Mutant("pad_shifts_the_rows_behind", "Lengths are packed without the pads, rows are not.",
           (PADS,), wa.with_attention(wr.pads_shift_the_rows_behind)),
    Mutant("pad_divides_by_zero", "An empty softmax is divided by its sum.", (PADS,),
           wa.with_attention(wr.empty_row_divides_by_zero), "B162"),
    Mutant("pad_slot_looked_up", "A pad's slot is looked up before it is known to be one.",
           (PADS,), wa.with_attention(wr.pad_slots_are_looked_up)),
)
ARITHMETIC = (
    Mutant("split_by_the_longest_row", "The split's size is chosen by the longest row.",
           (TWIN, NEIGHBOURS), wa.with_token_reads(wa.split_by_the_longest), "B158"),
    Mutant("split_by_the_mean_length", "The split's size is chosen by the mean length.",
           (TWIN, NEIGHBOURS), wa.with_token_reads(wa.split_by_the_mean), "B159"),
    Mutant("largest_score_over_all_rows", "Scores are taken from the largest of all rows.",
           (TWIN, NEIGHBOURS), wa.with_attention(wa.largest_over_all_rows)),
    Mutant("rescale_is_always_one", "Splits are merged as if their maxima were equal.",
           (TRUTH, SOFTMAX), wa.with_token_reads(wa.rescale_is_always_one), "B164"),
    Mutant("first_split_sets_the_maximum", "Later maxima are measured against the first one.",
           (TRUTH, SOFTMAX), wa.with_token_reads(wa.first_split_sets_the_maximum)),
    Mutant("scale_left_out", "Scores are not divided by the root of the width.", (TRUTH, SOFTMAX),
           wa.with_attention(wa.scale_left_out)),
    Mutant("heads_paired_by_remainder", "Query head h reads KV head h mod G.", (GROUPING, TRUTH),
           wa.with_token_reads(wa.heads_by_remainder)),
    Mutant("first_kv_head_for_all", "Every query head reads KV head 0.", (GROUPING, STEPS),
           wa.with_token_reads(wa.first_kv_head_for_all)),
    Mutant("gate_left_out", "The output gate is open.", (TRUTH, STEPS),
           wa.with_attention(wa.gate_left_out)),
    Mutant("gate_of_the_first_row", "Every row is gated as the first one is.", (TWIN, STEPS),
           wa.with_attention(wa.gate_of_the_first_row)),
    Mutant("scratch_kept_between_calls", "Partial results of the last call are added.",
           (REPEATS,), wa.with_ops(attend=wa.KeepsScratch)),
)
POSITIONS = (
    Mutant("positions_from_zero", "Tokens are turned by their place in the step.",
           (ROTATION, STEPS), wa.with_ops(rotate=wp.positions_from_zero), "B153"),
    Mutant("chunk_shares_a_position", "A chunk's tokens all turn by its first position.",
           (ROTATION, STEPS), wa.with_ops(rotate=wp.chunk_shares_a_position), "B154"),
    Mutant("position_of_the_first_row", "Every row turns by the first row's position.",
           (ROTATION, STEPS), wa.with_ops(rotate=wp.position_of_the_first), "B155"),
    Mutant("position_kept_by_the_engine", "A row turns by an offset that another row left.",
           (ROTATION, STEPS), wa.with_ops(rotate=wp.KeepsOffset), "B152"),
    Mutant("neighbours_are_pairs", "Dimensions 2i and 2i + 1 turn together.", (ROTATION,),
           wa.with_ops(rotate=wp.neighbours_are_pairs)),
    Mutant("every_dimension_turns", "Dimensions that should pass are turned.", (ROTATION,),
           wa.with_ops(rotate=wp.every_dimension_turns), "B217"),
)
KERNELS = (
    Mutant(
        "kernel_takes_the_token_for_its_row",
        "The kernel was made for one token a row.",
        (CHUNKS, PADS),
        wk.with_attend_parts(_row_of=wk.row_is_the_token),
    ),
    Mutant(
        "kernel_keeps_a_chunk_at_its_start",
        "All tokens of a chunk reach as far as its first.",
        (CHUNKS, NEW_ROWS, KERNEL_STEP),
        wk.with_attend_parts(_reach=wk.chunk_reaches_its_first_token),
    ),
    Mutant(
        "kernel_adds_halves",
        "Sums are taken of halves instead of adjacent pairs.",
        (TRUTH, KERNEL_STEP),
        wk.with_attend_parts(_pairs_of_columns=wk.halves_for_pairs),
    ),
    Mutant(
        "kernel_uses_the_librarys_exp",
        "Weights come from the library's exponential.",
        (TRUTH,),
        wk.with_attend_parts(exp=wk.library_exp),
    ),
    Mutant(
        "kernel_gives_a_lane_eight_keys",
        "Key j is added to lane j div 8.",
        (TRUTH,),
        wk.with_attend_parts(_sums=wk.eight_keys_a_lane),
    ),
    Mutant(
        "kernel_loads_a_key_too_many",
        "Keys are loaded without a mask and thrown away.",
        (BOUNDS,),
        wk.with_attend_parts(_scores=wk.scores_without_a_mask),
        "B143",
    ),
    Mutant(
        "kernel_has_one_stride",
        "New values are read by the strides of new keys.",
        (NEW_ROWS, TRUTH),
        wk.with_attend(wk.values_by_the_strides_of_keys),
    ),
    Mutant(
        "kernel_reads_pads_pointers",
        "Pointers of pads are read.",
        (BOUNDS,),
        wk.with_attend_parts(wk.every_pointer_is_read),
    ),
    Mutant(
        "kernel_reads_keys_by_query_head",
        "Each query head loads the keys again.",
        (READ_ONCE,),
        wk.with_attend_parts(_scores=wk.scores_read_by_each_head),
    ),
    Mutant(
        "kernel_turns_by_the_first_row",
        "The rotation reads one position.",
        (ROTATION, KERNEL_STEP),
        wk.with_rotate_parts(_rotate=wk.rotate_by_the_first),
        "B155",
    ),
    Mutant(
        "cuda_norm_adds_distant_lanes_first",
        "Sums are taken of halves, not adjacent pairs.",
        (NORM_ROTATE,),
        wk.with_norm_rotate_source(
            "int step = 1; step < 32; step *= 2", "int step = 16; step; step /= 2"
        ),
        device="cuda",
    ),
    Mutant(
        "cuda_norm_takes_the_queries_weight",
        "Keys are weighted as queries are.",
        (NORM_ROTATE,),
        wk.with_norm_rotate_source("part.weight[", "queries.weight["),
        device="cuda",
    ),
    Mutant(
        "cuda_heads_taken_side_by_side",
        "A head's stride is taken to be its width.",
        (NORM_ROTATE,),
        wk.with_norm_rotate_source("head * part.head", "head * DIM"),
        device="cuda",
    ),
    Mutant(
        "cuda_turns_by_the_first_position",
        "Every token turns by the first one's position.",
        (NORM_ROTATE, STEPS),
        wk.with_norm_rotate_source("positions + token", "positions"),
        device="cuda",
    ),
    Mutant(
        "cuda_rotation_contracted",
        "A turned value is a fused multiply-add.",
        (NORM_ROTATE,),
        wk.with_norm_rotate_source("__fsub_rn(own, other)", "__fmaf_rn(v[i], cosine[i], -other)"),
        device="cuda",
    ),
    Mutant(
        "cuda_sum_contracted",
        "Weighted values are added by fused multiply-adds.",
        (TRUTH,),
        wk.with_cuda_source(
            "__fadd_rn(acc[h][l], __fmul_rn(weight[h], value))",
            "__fmaf_rn(weight[h], value, acc[h][l])",
        ),
        device="cuda",
    ),
    Mutant(
        "cuda_counts_integers_from_a_launchs_first_token",
        "A launch's integers start at row 0.",
        (PRODUCTS,),
        wk.with_cuda_source(
            "store_group(eight, head, token,", "store_group(eight, head, blockIdx.y,"
        ),
        device="cuda",
    ),
    Mutant(
        "cuda_leaves_integers_of_the_ungated_result",
        "Integers are made before the gate.",
        (PRODUCTS,),
        wk.with_cuda_source("made[tid] = value;", "made[tid] = __fdiv_rn(whole, bottom);"),
        device="cuda",
    ),
    Mutant(
        "cuda_reads_the_cache_alone",
        "Keys of this very step are read before they are there.",
        (CHUNKS,),
        wk.with_cuda_source("const bool old = key < length;", "const bool old = true;"),
        device="cuda",
    ),
)
UNROUNDED_NEW = "make_float4(widened(x.x), widened(x.y), widened(x.z), widened(x.w))"
UNROUNDED_CACHED = "__ldg((const float4*)(own + 128 * i))"
"""What a lane of the CUDA kernel reads of a cached key, and what it is given of a new one."""
CACHES = (
    Mutant(
        "narrow_kv_truncated",
        "What joins a narrow cache loses its low bits.",
        (ROUNDING,),
        wa.with_attention(wn.append_rounded(wn.round_toward_zero)),
    ),
    Mutant(
        "narrow_kv_rounds_half_up",
        "Of two values as near the larger is stored.",
        (ROUNDING,),
        wa.with_attention(wn.append_rounded(wn.round_half_up)),
    ),
    Mutant(
        "narrow_kv_saturates",
        "What is too large becomes the largest value.",
        (ROUNDING,),
        wa.with_attention(wn.append_rounded(wn.saturate)),
    ),
    Mutant(
        "narrow_kv_rounded_in_a_batch_alone",
        "A row alone has its low bits cut off.",
        (NARROW_TWIN,),
        wa.with_attention(wn.append_rounded(wn.round_toward_zero, lambda counts: len(counts) == 1)),
    ),
    Mutant(
        "narrow_kv_rounded_twice",
        "f16 is rounded to bf16 before.",
        (ROUNDING,),
        wa.with_attention(wn.append_rounded(wn.round_through_bf16)),
    ),
    Mutant(
        "narrow_kv_read_as_the_other_type",
        "f16 is read as bf16, and bf16 as f16.",
        (ROUNDING, NEAR_F32, NARROW_STEPS),
        wa.with_token_reads(wn.read_as_the_other_type),
    ),
    Mutant(
        "narrow_kv_of_this_step_not_rounded",
        "Tokens see the keys of their own step in f32.",
        (NARROW_TWIN, ROUNDING, NARROW_STEPS),
        wa.with_token_reads(wn.own_step_unrounded),
    ),
    Mutant(
        "narrow_kv_of_a_chunk_not_rounded",
        "Prefill reads its own chunk in f32.",
        (NARROW_TWIN, ROUNDING, NARROW_STEPS),
        wa.with_token_reads(wn.chunk_unrounded),
    ),
    Mutant(
        "narrow_queries_too",
        "Queries are rounded as keys are.",
        (ROUNDING, NARROW_STEPS),
        wa.with_attention(wn.queries_rounded_too),
    ),
    Mutant(
        "four_bytes_a_narrow_value",
        "A narrow cache is addressed by the size of f32.",
        (ROUNDING, NEAR_F32),
        wa.with_attention(wn.four_bytes_a_value),
    ),
    Mutant(
        "kernel_truncates",
        "The kernel cuts low bits off.",
        (ROUNDING,),
        wk.with_attend_parts(_rounded=wk.truncate_to_kv),
    ),
    Mutant(
        "kernel_rounds_nan_as_a_number",
        "Rounding to bf16 carries NaN over into -0.",
        (ROUNDING,),
        wk.with_attend_parts(_rounded=wk.nan_rounded_as_a_number),
    ),
    Mutant(
        "kernel_reads_f16_as_bf16",
        "The kernel takes every narrow cache for bf16.",
        (ROUNDING,),
        wk.with_attend_parts(_widened=wk.read_as_bf16),
    ),
    Mutant(
        "cuda_truncates",
        "The CUDA kernel rounds towards 0.",
        (ROUNDING,),
        wk.with_cuda_source("cvt.rn.", "cvt.rz."),
        device="cuda",
    ),
    Mutant(
        "cuda_reads_fresh_keys_unrounded",
        "Keys of this very step are read in f32.",
        (NARROW_TWIN, ROUNDING),
        wk.with_cuda_source(
            f"to[i] = {UNROUNDED_NEW}", f"to[i] = old ? {UNROUNDED_NEW} : {UNROUNDED_CACHED}"
        ),
        device="cuda",
    ),
)
MUTANTS = LENGTHS + ADDRESSES + PAD_FAULTS + ARITHMETIC + POSITIONS + KERNELS + CACHES
