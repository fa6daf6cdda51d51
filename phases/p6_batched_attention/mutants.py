"""Wrong attention, each with one fault, and the falsifiers that must kill it."""

from __future__ import annotations

from falsifiers.judging.subject import Mutant
from phases.p6_batched_attention import wrong_attention as wa
from phases.p6_batched_attention import wrong_kernels as wk
from phases.p6_batched_attention import wrong_narrow as wn
from phases.p6_batched_attention import wrong_positions as wp
from phases.p6_batched_attention import wrong_rows as wr

ALONE, TRUE = "rows_equal_alone", "attention_is_true"
MOVE, PADS = "rows_and_slots_may_move", "pads_do_nothing"
BEYOND, NEIGHBOURS = "what_lies_beyond_cannot_reach_a_row", "neighbours_cannot_reach_a_row"
WRITTEN, CHUNKS = "only_new_rows_are_written", "chunks_equal_steps"
SOUND, GROUPED = "softmax_is_sound", "heads_are_grouped"
ROTATION, REPEATS = "rotation_is_each_rows_own", "repeats_are_equal"
TOGETHER = "norm_and_rotation_are_true_together"
PRODUCTS = "products_take_what_attention_wrote"
OFFSETS, INSIDE = "offsets_do_not_wrap", "loads_and_stores_stay_inside"
ONCE, STEPS = "keys_are_read_once", "steps_equal_solo"
MEMBERS, DRIFT = "membership_may_change_every_step", "long_runs_do_not_drift"
RUN = "kernels_run_the_step"
NARROW, ROUNDED = "narrow_rows_equal_alone", "narrow_kv_is_rounded_once"
NEAR, NARROW_STEPS = "narrow_kv_stays_near_f32", "narrow_steps_equal_solo"

LENGTHS = (
    Mutant("longest_row_sets_the_length", "The longest row's length is used for all.",
           (ALONE, TRUE, NEIGHBOURS), wa.each(wa.longest_for_all), "B158"),
    Mutant("length_rounded_up_to_a_page", "Keys are read to the end of a page of 16.",
           (TRUE, BEYOND, MEMBERS), wa.each(wa.up_to_a_page), "B143"),
    Mutant("next_tokens_page_is_read", "At a page's end the page of the next token is read too.",
           (TRUE, BEYOND), wa.each(wa.one_key_ahead), "B143"),
    Mutant("last_tile_without_a_mask", "The lanes behind the last key enter the denominator.",
           (TRUE, SOUND), wa.each(wa.no_mask_on_the_last_tile), "B145"),
    Mutant("mask_by_multiplying", "Absent keys are multiplied by 0, which keeps a NaN.",
           (TRUE, BEYOND), wa.each(wa.masked_by_zero)),
    Mutant("newest_key_not_seen", "A token does not see itself.", (TRUE, SOUND, STEPS),
           wa.each(wa.newest_key_unseen)),
    Mutant("last_short_split_lost", "A split of fewer than 64 keys behind whole ones is dropped.",
           (TRUE, SOUND), wa.each(wa.last_split_lost)),
    Mutant("oldest_key_lost_in_a_batch", "Beside others a row of over 64 keys loses its first.",
           (ALONE, DRIFT), wa.each(wa.oldest_key_lost_in_a_batch)),
    Mutant("chunk_sees_its_own_future", "A chunk's tokens see all of the chunk.", (CHUNKS, STEPS),
           wa.each(wa.chunk_sees_itself_whole)),
    Mutant("chunk_blind_to_itself", "A chunk's tokens see what was cached before, and themselves.",
           (CHUNKS, STEPS), wa.each(wa.chunk_blind_to_itself)),
)
ADDRESSES = (
    Mutant("slot_found_by_the_row", "Row i attends in slot i, whatever slot it has.",
           (MOVE, MEMBERS), wa.attending(wr.slot_by_the_row)),
    Mutant("offset_added_twice", "A row's base already holds the offset that is added again.",
           (MOVE, TRUE, STEPS), wa.attending(wr.offset_added_twice), "B149"),
    Mutant("values_of_the_next_slot", "Values are found one slot further than keys.",
           (TRUE, WRITTEN), wa.attending(wr.values_of_the_next_slot)),
    Mutant("slots_sorted_under_the_rows", "Slots are worked in order, rows are not.",
           (MOVE, MEMBERS), wa.attending(wr.rows_in_slot_order)),
    Mutant("keys_of_the_last_row", "Every row is scored against the last row's keys.",
           (ALONE, NEIGHBOURS), wa.each(wa.keys_of_the_last_row)),
    Mutant("rows_cut_a_count_apart", "Row i's queries begin at i times the widest count.",
           (CHUNKS, STEPS), wa.attending(wr.chunks_cut_a_count_apart), "B034"),
    Mutant("appended_at_the_first_rows_length", "New keys are stored where the first row's go.",
           (WRITTEN, STEPS), wa.attending(wr.appended_at_the_first_rows_length)),
    Mutant("chunk_appends_its_last_only", "Of a chunk only the last token's key is kept.",
           (WRITTEN, STEPS), wa.attending(wr.chunk_appends_its_last_only)),
    Mutant("values_stored_as_keys", "Values are appended to both caches.", (WRITTEN, STEPS),
           wa.attending(wr.values_stored_as_keys)),
    Mutant("append_clears_an_octet", "Rows up to the next multiple of 8 are cleared.", (WRITTEN,),
           wa.attending(wr.appended_to_a_full_octet)),
    Mutant("offset_of_31_bits", "A cache row's offset loses its upper bits.", (OFFSETS,),
           wk.offsets(), "B141", device="cuda"),
)
EMPTY = (
    Mutant("pad_clamped_to_slot_zero", "A pad's slot becomes 0, which is somebody's.", (PADS,),
           wa.attending(wr.pads_clamped_to_slot_zero), "B194"),
    Mutant("pad_takes_an_idle_slot", "A pad writes into a slot that looks free.", (PADS,),
           wa.attending(wr.pads_take_any_slot), "B192"),
    Mutant("pad_takes_the_last_token", "A pad works on the last token over again.", (PADS,),
           wa.attending(wr.pads_take_the_last_token), "B193"),
    Mutant("pad_shifts_the_rows_behind", "Lengths are packed without the pads, rows are not.",
           (PADS,), wa.attending(wr.pads_shift_the_rows_behind)),
    Mutant("pad_divides_by_zero", "An empty softmax is divided by its sum.", (PADS,),
           wa.attending(wr.empty_row_divides_by_zero), "B162"),
    Mutant("pad_slot_looked_up", "A pad's slot is looked up before it is known to be one.",
           (PADS,), wa.attending(wr.pad_slots_are_looked_up)),
)
ARITHMETIC = (
    Mutant("split_by_the_longest_row", "The split's size is chosen by the longest row.",
           (ALONE, NEIGHBOURS), wa.each(wa.split_by_the_longest), "B158"),
    Mutant("split_by_the_mean_length", "The split's size is chosen by the mean length.",
           (ALONE, NEIGHBOURS), wa.each(wa.split_by_the_mean), "B159"),
    Mutant("largest_score_over_all_rows", "Scores are taken from the largest of all rows.",
           (ALONE, NEIGHBOURS), wa.attending(wa.largest_over_all_rows)),
    Mutant("rescale_is_always_one", "Splits are merged as if their maxima were equal.",
           (TRUE, SOUND), wa.each(wa.rescale_is_always_one), "B164"),
    Mutant("first_split_sets_the_maximum", "Later maxima are measured against the first one.",
           (TRUE, SOUND), wa.each(wa.first_split_sets_the_maximum)),
    Mutant("scale_left_out", "Scores are not divided by the root of the width.", (TRUE, SOUND),
           wa.attending(wa.scale_left_out)),
    Mutant("heads_paired_by_remainder", "Query head h reads KV head h mod G.", (GROUPED, TRUE),
           wa.each(wa.heads_by_remainder)),
    Mutant("first_kv_head_for_all", "Every query head reads KV head 0.", (GROUPED, STEPS),
           wa.each(wa.first_kv_head_for_all)),
    Mutant("gate_left_out", "The output gate is open.", (TRUE, STEPS),
           wa.attending(wa.gate_left_out)),
    Mutant("gate_of_the_first_row", "Every row is gated as the first one is.", (ALONE, STEPS),
           wa.attending(wa.gate_of_the_first_row)),
    Mutant("scratch_kept_between_calls", "Partial results of the last call are added.",
           (REPEATS,), wa.op(attend=wa.ScratchKept)),
)
POSITIONS = (
    Mutant("positions_from_zero", "Tokens are turned by their place in the step.",
           (ROTATION, STEPS), wa.op(rotate=wp.positions_from_zero), "B153"),
    Mutant("chunk_shares_a_position", "A chunk's tokens all turn by its first position.",
           (ROTATION, STEPS), wa.op(rotate=wp.chunk_shares_a_position), "B154"),
    Mutant("position_of_the_first_row", "Every row turns by the first row's position.",
           (ROTATION, STEPS), wa.op(rotate=wp.position_of_the_first), "B155"),
    Mutant("position_kept_by_the_engine", "A row turns by an offset that another row left.",
           (ROTATION, STEPS), wa.op(rotate=wp.PositionKept), "B152"),
    Mutant("neighbours_are_pairs", "Dimensions 2i and 2i + 1 turn together.", (ROTATION,),
           wa.op(rotate=wp.neighbours_are_pairs)),
    Mutant("every_dimension_turns", "Dimensions that should pass are turned.", (ROTATION,),
           wa.op(rotate=wp.every_dimension_turns), "B217"),
)
KERNELS = (
    Mutant("kernel_takes_the_token_for_its_row", "The kernel was made for one token a row.",
           (CHUNKS, PADS), wk.attend_with(_row_of=wk.row_is_the_token)),
    Mutant("kernel_keeps_a_chunk_at_its_start", "All tokens of a chunk reach as far as its first.",
           (CHUNKS, WRITTEN, RUN), wk.attend_with(_visible_keys=wk.chunk_reaches_its_first_token)),
    Mutant("kernel_adds_halves", "Sums are taken of halves instead of adjacent pairs.",
           (TRUE, RUN), wk.attend_with(_sum_columns=wk.halves_for_pairs)),
    Mutant("kernel_uses_the_librarys_exp", "Weights come from the library's exponential.",
           (TRUE,), wk.attend_with(exp=wk.library_exp)),
    Mutant("kernel_gives_a_lane_eight_keys", "Key j is added to lane j div 8.", (TRUE,),
           wk.attend_with(_weighted_values=wk.eight_keys_a_lane)),
    Mutant("kernel_loads_a_key_too_many", "Keys are loaded without a mask and thrown away.",
           (INSIDE,), wk.attend_with(_scores=wk.scores_without_a_mask), "B143"),
    Mutant("kernel_has_one_stride", "New values are read by the strides of new keys.",
           (WRITTEN, TRUE), wk.attend_by(wk.values_by_the_strides_of_keys)),
    Mutant("kernel_reads_pads_pointers", "Pointers of pads are read.", (INSIDE,),
           wk.attend_with(wk.every_pointer_is_read)),
    Mutant("kernel_reads_keys_by_query_head", "Each query head loads the keys again.", (ONCE,),
           wk.attend_with(_scores=wk.scores_read_by_each_head)),
    Mutant("kernel_turns_by_the_first_row", "The rotation reads one position.", (ROTATION, RUN),
           wk.rotate_with(_rotate=wk.rotate_by_the_first), "B155"),
    Mutant("cuda_norm_adds_distant_lanes_first", "Sums are taken of halves, not adjacent pairs.",
           (TOGETHER,), wk.norm_rotate_source("int step = 1; step < 32; step *= 2",
                                              "int step = 16; step; step /= 2"), device="cuda"),
    Mutant("cuda_norm_takes_the_queries_weight", "Keys are weighted as queries are.", (TOGETHER,),
           wk.norm_rotate_source("set.weight[", "queries.weight["), device="cuda"),
    Mutant("cuda_heads_taken_side_by_side", "A head's stride is taken to be its width.",
           (TOGETHER,), wk.norm_rotate_source("head * set.head_stride", "head * DIM"),
           device="cuda"),
    Mutant("cuda_turns_by_the_first_position", "Every token turns by the first one's position.",
           (TOGETHER, STEPS), wk.norm_rotate_source("positions + token", "positions"),
           device="cuda"),
    Mutant("cuda_rotation_contracted", "A turned value is a fused multiply-add.", (TOGETHER,),
           wk.norm_rotate_source("__fsub_rn(cosine_term, sine_term)",
                                 "__fmaf_rn(v[i], cosine[i], -sine_term)"),
           device="cuda"),
    Mutant("cuda_sum_contracted", "Weighted values are added by fused multiply-adds.", (TRUE,),
           wk.cuda_source("__fadd_rn(acc[h][l], __fmul_rn(weight[h], value))",
                          "__fmaf_rn(weight[h], value, acc[h][l])"), device="cuda"),
    Mutant("cuda_counts_integers_from_a_launchs_first_token", "A launch's integers start at row 0.",
           (PRODUCTS,), wk.cuda_source("quantize_group(group_values, head, token,",
                                       "quantize_group(group_values, head, blockIdx.y,"),
           device="cuda"),
    Mutant("cuda_leaves_integers_of_the_ungated_result", "Integers are made before the gate.",
           (PRODUCTS,), wk.cuda_source("result[tid] = value;",
                                       "result[tid] = __fdiv_rn(numerator, denominator);"),
           device="cuda"),
    Mutant("cuda_reads_the_cache_alone", "Keys of this very step are read before they are there.",
           (CHUNKS,), wk.cuda_source("const bool is_cached = key < length;",
                                     "const bool is_cached = true;"),
           device="cuda"),
)
UNROUNDED = "make_float4(from_cache(x.x), from_cache(x.y), from_cache(x.z), from_cache(x.w))"
FIRST = "__ldg((const float4*)(new_row + 128 * i))"
"""In `attend.cu`: the value that a lane loads of a cached key, and of a key of this step."""
CACHES = (
    Mutant("narrow_kv_truncated", "What joins a narrow cache loses its low bits.", (ROUNDED,),
           wa.attending(wn.joining(wn.truncated))),
    Mutant("narrow_kv_rounds_half_up", "Of two values as near the larger is stored.", (ROUNDED,),
           wa.attending(wn.joining(wn.half_up))),
    Mutant("narrow_kv_saturates", "What is too large becomes the largest value.", (ROUNDED,),
           wa.attending(wn.joining(wn.saturated))),
    Mutant("narrow_kv_rounded_in_a_batch_alone", "A row alone has its low bits cut off.",
           (NARROW,), wa.attending(wn.joining(wn.truncated, lambda counts: len(counts) == 1))),
    Mutant("narrow_kv_rounded_twice", "f16 is rounded to bf16 before.", (ROUNDED,),
           wa.attending(wn.joining(wn.through_bf16))),
    Mutant("narrow_kv_read_as_the_other_type", "f16 is read as bf16, and bf16 as f16.",
           (ROUNDED, NEAR, NARROW_STEPS), wa.each(wn.read_as_the_other_type)),
    Mutant("narrow_kv_of_this_step_not_rounded", "Tokens see the keys of their own step in f32.",
           (NARROW, ROUNDED, NARROW_STEPS), wa.each(wn.own_step_unrounded)),
    Mutant("narrow_kv_of_a_chunk_not_rounded", "Prefill reads its own chunk in f32.",
           (NARROW, ROUNDED, NARROW_STEPS), wa.each(wn.chunk_unrounded)),
    Mutant("narrow_queries_too", "Queries are rounded as keys are.", (ROUNDED, NARROW_STEPS),
           wa.attending(wn.queries_rounded_too)),
    Mutant("four_bytes_a_narrow_value", "A narrow cache is addressed by the size of f32.",
           (ROUNDED, NEAR), wa.attending(wn.four_bytes_a_value)),
    Mutant("kernel_truncates", "The kernel cuts low bits off.", (ROUNDED,),
           wk.attend_with(_to_cache=wk.truncated)),
    Mutant("kernel_rounds_nan_as_a_number", "Rounding to bf16 carries NaN over into -0.",
           (ROUNDED,), wk.attend_with(_to_cache=wk.nan_rounded_as_a_number)),
    Mutant("kernel_reads_f16_as_bf16", "The kernel takes every narrow cache for bf16.", (ROUNDED,),
           wk.attend_with(_from_cache=wk.read_as_bf16)),
    Mutant("cuda_truncates", "The CUDA kernel rounds towards 0.", (ROUNDED,),
           wk.cuda_source("cvt.rn.", "cvt.rz."), device="cuda"),
    Mutant("cuda_reads_fresh_keys_unrounded", "Keys of this very step are read in f32.",
           (NARROW, ROUNDED), wk.cuda_source(f"out[i] = {UNROUNDED}",
                                             f"out[i] = is_cached ? {UNROUNDED} : {FIRST}"),
           device="cuda"),
)
MUTANTS = LENGTHS + ADDRESSES + EMPTY + ARITHMETIC + POSITIONS + KERNELS + CACHES
