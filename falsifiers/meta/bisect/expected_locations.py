"""Where each mutant of the decode path first differs on `nano`, and which never do, and why.

Mutants of the serving stacks are in `expected_event_locations.py`.
"""

from __future__ import annotations

PLANS = {"a": (2, 3, 3), "b": (3, 5, 5), "d": (3, 2, 70), "e": (4, 4, 2), "f": (1, 4, 2),
         "g": (2, 1, 2), "h": (2, 2, 124), "i": (2, 2, 126), "j": (2, 3, 126)}
"""By letter: rows, steps and the longest prompt of `paired_runs.plan`.

Plan a: step 0 feeds slot 3 three tokens and slot 1 one; step 1 feeds slot 1 two and slot 3 five;
step 2 feeds one token to each. Plan b: a new sequence takes slot 4 in step 4, and slot 3 has no row
in step 3; steps 2 (slots 3, 4, 0) and 4 (slots 0, 3, 4) feed one token a row. Plan d has many keys.
Plan e: slots 5, 1 and 3 follow on 5, 3, 0 and 1 with a token each. Plan f repeats a step's shape.
Plan g is the smallest. A row grows past 128 tokens in h, in i within its first greedy run, in j
before a step of one token a row.
"""
ExpectedLocation = tuple[str, str, int | None, int, int]
"""The plan, the op, its layer, the step and the slot."""

P1: dict[str, ExpectedLocation] = {
    # slots are confused: nothing is written to the slot of row 0, slot 3
    "one_state_for_all_rows": ("a", "conv_step", 0, 0, 3),
    "row_index_is_the_slot": ("a", "conv_step", 0, 0, 3),
    "rows_in_slot_order": ("a", "logits", None, 0, 3),
    # step 1 has other rows than step 0, and row 0 is slot 1
    "states_zeroed_when_rows_change": ("a", "conv_step", 0, 1, 1),
    "state_written_to_the_first_slot_too": ("a", "after the last op", None, 0, 0),
    # in step 1 slot 1 is at position 1, row 0, and slot 3 at position 3
    "position_of_the_first_row_for_all": ("a", "rotate.q", 1, 1, 3),
    "position_of_the_last_call": ("a", "rotate.q", 1, 1, 1),
    "position_held_still_in_a_batch": ("a", "rotate.q", 1, 1, 1),
    "longest_row_sets_the_length": ("a", "rotate.q", 1, 1, 1),
    "chunk_tokens_share_a_position": ("a", "rotate.q", 1, 0, 3),
    "chunk_starts_from_zero_state": ("a", "conv_step", 0, 1, 1),
    "row_cursor_rounded_to_a_unit": ("a", "embed", None, 0, 1),
    # state that was not cleared shows in the first op that reads it; slot 1 begins with one token
    "one_token_prompt_not_cleared": ("a", "conv_step", 0, 0, 1),
    "conv_window_not_cleared": ("a", "conv_step", 0, 0, 3),
    "recurrent_state_not_cleared": ("a", "delta_step", 0, 0, 3),
    "key_past_the_length_is_read": ("a", "attend", 1, 0, 3),
    "other_arithmetic_above_one_row": ("a", "project.attn_qkv", 0, 0, 3),
    "recurrent_state_rounded_to_bfloat16": ("a", "delta_step", 0, 0, 3),
    # three rows, the last of them slot 0
    "last_row_of_an_odd_batch_copied": ("b", "logits", None, 0, 0),
    "logits_rolled_by_one_row": ("a", "logits", None, 0, 3),
    "row_worked_twice": ("a", "embed", None, 0, 3),
    # the logits that step 0 returned for its first row are compared again after step 1
    "logits_of_the_last_call": ("a", "logits", None, 1, 3),
}
P4: dict[str, ExpectedLocation] = {
    # slot 3, row 0, has three tokens, and only the last has logits
    "logits_of_token_i_for_row_i": ("a", "output_norm", None, 0, 3),
    "head_on_the_first_token": ("a", "output_norm", None, 0, 3),
    # the sum at the end of block 0 is first reported as the input of block 1's norm
    "residual_from_the_normed_stream": ("a", "attn_norm", 1, 0, 3),
    "positions_of_the_first_row": ("a", "rotate.q", 1, 1, 3),
    "chunk_tokens_share_a_position": ("a", "rotate.q", 1, 0, 3),
    "state_found_by_the_row_index": ("a", "conv_step", 0, 0, 3),
    "window_found_by_the_row_index": ("a", "conv_step", 0, 0, 3),
    "rows_in_slot_order": ("a", "logits", None, 0, 3),
    # slot 3 is first in step 0, slot 1 in step 1
    "state_written_to_last_steps_slot": ("a", "after the last op", None, 1, 3),
    "chunk_starts_from_zero_state": ("a", "conv_step", 0, 1, 1),
    "logits_in_a_kept_buffer": ("a", "logits", None, 1, 3),
}
P3: dict[str, ExpectedLocation] = {
    "other_arithmetic_in_the_step": ("a", "project.attn_qkv", 0, 0, 3)
}
# No graph is replayed with a sink, so the op is the writer of the first state that differs.
P8: dict[str, ExpectedLocation] = {
    # step 2 of plan b has three rows in a graph of four; slots 1 and 2 are idle, slot 0 is last
    "padding_takes_a_free_looking_slot": ("b", "conv_step", 0, 2, 1),
    "padding_repeats_the_last_row": ("b", "conv_step", 0, 2, 0),
    "padding_is_slot_zero": ("b", "conv_step", 0, 2, 0),
    # step 2 is the first of plan a that a graph runs, and slot 1 is its first row
    "pointers_of_a_per_step_buffer": ("a", "conv_step", 0, 2, 1),
    "capture_takes_live_rows": ("a", "conv_step", 0, 2, 1),
    # step 4 of plan b replays what step 2 filled, and its first row is slot 0
    "pointers_written_once": ("b", "conv_step", 0, 4, 0),
    "positions_written_once": ("b", "attend", 1, 4, 0),
    "lengths_written_once": ("b", "attend", 1, 4, 0),
    "tokens_written_once": ("b", "conv_step", 0, 4, 0),
    # the fourth row of step 2 is slot 1, which runs again as padding of step 3
    "padding_keeps_old_pointers": ("e", "conv_step", 0, 3, 1),
    # slot 3 has three tokens in step 0
    "chunks_are_replayed": ("a", "embed", None, 0, 3),
    # seen while steps report their ops; with two buffers, step 2 reuses the one of step 0
    "logits_in_the_graphs_buffer": ("a", "logits", None, 1, 3),
    "two_buffers_take_turns": ("a", "logits", None, 2, 3),
}
TABLES = {"p1": P1, "p3": P3, "p4": P4, "p8": P8}
STEP_MUTANTS = {f"{phase}/{name}": location for phase, table in TABLES.items()
                for name, location in table.items()}
"""Mutants of steps, with their locations; comments say why."""
GREEDY_MUTANTS: dict[str, ExpectedLocation] = {
    # every row has ties, so they show after step 0, whose rows are slots 3 and 1
    "p4/argmax_highest_on_ties": ("a", "argmax", None, 0, 3),
    "p4/argmax_lowest_lane_on_ties": ("a", "argmax", None, 0, 3),
    "p4/argmax_draws_a_tie": ("a", "argmax", None, 0, 3),
    "p4/argmax_last_block_on_ties": ("a", "argmax", None, 0, 3),
    "p4/argmax_starts_at_zero": ("a", "argmax", None, 0, 3),
    "p4/argmax_reads_behind_the_row": ("a", "argmax", None, 0, 3),
    "p4/argmax_tells_zeros_apart": ("a", "argmax", None, 0, 3),
    # NaN is in the last row; plan e has four rows, of which the last is slot 1
    "p4/argmax_ignores_nan": ("a", "argmax", None, 0, 1),
    "p4/argmax_blames_the_first_row": ("a", "argmax", None, 0, 1),
    "p4/argmax_sees_nan_in_three_rows_alone": ("e", "argmax", None, 0, 1),
    "p8/nan_is_a_token": ("a", "greedy_rows", None, 0, 1),
    # NaN in the last row's state is lost, or reaches the first row
    "p3/infinity_left_out": ("a", "greedy_rows", None, 0, 1),
    "p3/zero_times_a_neighbour": ("a", "greedy_rows", None, 0, 1),
    # the second step of a run has another token, rotation or length
    "p8/token_not_fed_back": ("a", "greedy_rows", None, 0, 3),
    "p8/lengths_do_not_advance": ("a", "greedy_rows", None, 0, 3),
    "p8/positions_advance_twice": ("a", "greedy_rows", None, 0, 3),
    # step 2 is the first of one token a row; runs had a graph of two rows before
    "p8/key_without_the_kind_of_run": ("a", "logits", None, 2, 1),
    # after step 0 a row of 124 tokens runs on by 3; after step 1 one of 129 is past the bounds of
    # that graph, and all rows of the run fail: slot 1 is the first
    "p8/key_without_lengths": ("h", "greedy_rows", None, 1, 1),
    # the run after step 0 begins with room for 127 tokens and needs 129
    "p8/key_with_the_first_steps_length": ("i", "greedy_rows", None, 0, 3),
    # the row before the bad one has advanced; of slots 3 and 1 it is the first
    "p1/checked_row_by_row": ("a", "step", None, 0, 3),
    "p8/runs_are_not_checked": ("a", "greedy_rows", None, 0, 3),
    "p1/nothing_is_checked": ("a", "step", None, 0, 1),
    "p4/nothing_is_checked": ("a", "step", None, 0, 1),
}
"""Mutants that show only after a step: in argmax, in greedy runs, or in refusals."""
WIDER_PLANS = {
    "p3/other_kernel_above_eight_rows": "b", "p4/rows_cut_a_count_apart": "b",
    "p5/tenant_trusted_by_one_token": "b", "p5/window_kept_outside_the_slot": "b",
    "p5/strength_of_the_first_row": "b", "p5/outputs_a_longest_apart": "b",
    "p5/window_from_the_packed_tokens": "b", "p6/rows_cut_a_count_apart": "b",
    "p6/next_tokens_page_is_read": "d", "p6/last_short_split_lost": "d",
    "p6/oldest_key_lost_in_a_batch": "d", "p6/rescale_is_always_one": "d",
    "p6/first_split_sets_the_maximum": "d", "p6/scratch_kept_between_calls": "f",
    "p8/key_with_the_first_rows_length": "j",
    "p5/cuda_spans_begin_with_zeros": "d", "p5/cuda_saves_the_first_span": "d",
    "p5/cuda_gates_contracted": "b"}
"""Mutants that plan a does not show, and the plan that does."""

KERNEL_MUTANTS = dict.fromkeys((
    *(f"p4/{name}" for name in ("heads_taken_side_by_side", "library_silu_in_the_kernel",
                                "library_gate_in_the_norm", "rows_past_the_tile_copied")),
    *(f"p5/conv_step_kernel_{name}" for name in (
        "follows_the_first_pointer", "reads_backwards", "saves_the_first_token",
        "takes_rows_for_tokens")),
    *(f"p5/delta_step_kernel_{name}" for name in (
        "follows_the_first_pointer", "shares_heads_side_by_side", "reads_before_decay",
        "saves_the_first_token", "writes_rows_for_tokens")),
    *(f"p6/kernel_{name}" for name in (
        "takes_the_token_for_its_row", "keeps_a_chunk_at_its_start", "adds_halves",
        "uses_the_librarys_exp", "turns_by_the_first_row"))), "g") | {
    "p6/kernel_gives_a_lane_eight_keys": "a"}
"""Mutants of kernels that the interpreter shows, and in which plan."""
UNSHRINKABLE = {
    "p6/kernel_takes_the_token_for_its_row": "with fewer tokens it writes out of bounds of its slot"
}
"""Mutants that are not shrunk, and why: a smaller case may end the process."""

SAME_BITS = "the bits are the same"
PADS = "a row without tokens is refused before any op runs"
VALUES = "it needs NaN, infinity, -0 or a denormal in a row, and no plan has one"
NARROW = "only a cache of 16 bits shows it"
GRAPHS = "it changes when graphs are made"
UNSEEN_MUTANTS = {
    "p3/groups_in_one_order": "K is too short in nano",
    "p3/long_rows_cut_by_width": "K is too short in nano", "p3/oracle_projects": SAME_BITS,
    **dict.fromkeys(("p3/out_as_if_packed", "p3/x_as_if_packed", "p3/out_by_the_stride_of_x",
                     "p3/padding_times_zero"), "rows of a step are contiguous"),
    **dict.fromkeys(("p4/steps_looped_one_row_at_a_time", "p4/steps_looped_one_token_at_a_time",
                     "p4/head_at_every_token"), SAME_BITS),
    "p4/library_functions_in_kernels": "the functions are tested by themselves, not in a step",
    "p4/padding_read_into_the_sum": "no memory follows the rows of a step",
    **dict.fromkeys(("p5/pads_work_on_their_slot", "p5/pads_work_on_the_last_slot",
                     "p5/pads_work_on_slot_zero", "p5/conv_step_kernel_works_on_pads",
                     "p5/delta_step_kernel_works_on_pads", "p6/kernel_reads_pads_pointers"), PADS),
    **dict.fromkeys(("p5/rows_masked_by_zeros", "p5/nan_gates_are_zero",
                     "p5/sum_begins_with_a_key", "p5/denormals_flushed"), VALUES),
    "p5/state_rounded_now_and_then": "it needs a hundred calls",
    **dict.fromkeys(("p5/delta_step_kernel_rereads_for_each_token",
                     "p5/kernel_launched_for_each_row", "p6/kernel_loads_a_key_too_many",
                     "p6/kernel_reads_keys_by_query_head"), SAME_BITS),
    "p5/gates_kernel_of_one_block": "nano has fewer gates than a block",
    "p5/gates_kernel_without_strides": "tokens of a step are contiguous",
    **dict.fromkeys(("p4/gate_and_up_by_one_stride", "p5/delta_step_kernel_has_one_stride",
                     "p5/gates_kernel_with_one_stride", "p6/kernel_has_one_stride"),
                    "all inputs of an op in a step have one stride"),
    **dict.fromkeys((f"p6/pad_{name}" for name in (
        "clamped_to_slot_zero", "takes_an_idle_slot", "takes_the_last_token",
        "shifts_the_rows_behind", "divides_by_zero", "slot_looked_up")), PADS),
    **dict.fromkeys((f"p6/{name}" for name in (
        "narrow_kv_truncated", "narrow_kv_rounds_half_up", "narrow_kv_saturates",
        "narrow_kv_rounded_in_a_batch_alone", "narrow_kv_rounded_twice",
        "narrow_kv_read_as_the_other_type", "narrow_kv_of_this_step_not_rounded",
        "narrow_kv_of_a_chunk_not_rounded", "narrow_queries_too", "four_bytes_a_narrow_value",
        "kernel_truncates", "kernel_reads_f16_as_bf16", "kernel_rounds_nan_as_a_number")), NARROW),
    **dict.fromkeys((f"p8/{name}" for name in (
        "capture_reseeds", "capture_at_every_step", "never_replays",
        "failure_reaches_the_caller", "failure_is_tried_again", "graphs_kept_without_end",
        "newest_graph_dropped", "sink_is_ignored")), GRAPHS),
    **dict.fromkeys(("p8/key_without_the_model", "p8/key_without_the_path",
                     "p8/key_without_the_table"), "it needs two models or paths in one process"),
    "p8/padding_advances": "it advances a slot that no row reads"}
"""Mutants that no plan over nano shows, and why; a thorough run bisects them too."""

CRASHING_MUTANTS = {"p3/whole_tiles_stored": "it stores past the end of a step's output",
           "p3/weights_written": "weights of a file cannot be written",
           "p4/cap_of_another_device": "the launch fails above eight rows",
           "p8/key_with_the_first_rows_length": "the other row is past the room that a graph has"}
"""Mutants with which a step raises an exception."""

ONE_TYPE = "a kernel for one type of weights, tested by itself"
NOT_RUN = {
    **dict.fromkeys((f"p3/{name}" for name in (
        "weights_reread_for_each_row", "one_launch_a_row", "second_launch_above_sixteen_rows",
        "last_rows_not_masked", "last_four_rows_not_masked", "columns_not_masked",
        "store_not_masked", "strides_taken_for_widths", "words_at_odd_blocks")), ONE_TYPE),
    "p3/result_kept_by_address": "its results depend on the addresses of tensors",
    **dict.fromkeys((f"p5/{name}" for name in (
        "conv_step_kernel_counts_slots_from_the_first", "conv_step_kernel_saves_behind_its_tail",
        "delta_step_kernel_counts_slots_from_the_first", "delta_step_kernel_saves_in_the_next_head",
        "delta_step_kernel_saves_in_the_next_slot")),
        "it writes out of bounds of the pool, which may end the process")}
"""Mutants that are not run in a step, and why."""

# slot 3, row 0, has three tokens in step 0, and layer 1 is nano's attention
FUSED_NORM_MUTANTS: dict[str, ExpectedLocation] = {
    "p6/cuda_norm_takes_the_queries_weight": ("a", "norm.k", 1, 0, 3),
    "p6/cuda_norm_adds_distant_lanes_first": ("a", "norm.k", 1, 0, 3),
    "p6/cuda_rotation_contracted": ("a", "rotate.q", 1, 0, 3),
    "p6/cuda_turns_by_the_first_position": ("a", "rotate.q", 1, 0, 3),
    "p6/cuda_heads_taken_side_by_side": ("a", "norm.q", 1, 0, 3)}
"""Mutants of the fused kernel of norm and rotation, which has no single op to compare with."""

TOO_LARGE = "it needs tensors of gigabytes"
QUANTISED = "nano's attn_output has no quantised activations"
ON_A_DEVICE = {
    **dict.fromkeys(("p3/offsets_lose_their_high_bits", "p4/argmax_offset_of_32_bits",
                     "p5/slot_offset_of_32_bits", "p6/offset_of_31_bits"), TOO_LARGE),
    "p3/a_launch_a_row_on_a_device": SAME_BITS,
    "p3/read_on_another_stream": "it depends on when another stream runs",
    "p3/chunks_share_their_integers": "a path multiplies one matrix at a time",
    "p5/cuda_works_on_pads": PADS, "p5/cuda_begins_sums_with_a_key": VALUES,
    **dict.fromkeys(("p6/cuda_truncates", "p6/cuda_reads_fresh_keys_unrounded"), NARROW),
    **dict.fromkeys(("p6/cuda_leaves_integers_of_the_ungated_result",
                     "p6/cuda_counts_integers_from_a_launchs_first_token"), QUANTISED)}
"""Mutants with `device: cuda` that no emulated step over nano shows, and why; it shows all others.
"""

EVENTLESS_MUTANTS = {
    "p2/replies_are_kept": "memory use is no event",
    "p2/template_is_tried_again": "the second try gives the same refusal",
    **dict.fromkeys(("p7/keeps_what_is_evicted", "p7/keeps_one_large_copy"),
                    "the store uses more memory than it reports, and returns the same bits")}
"""Mutants of serving stacks that show in no event, and why."""
RACY_MUTANTS = dict.fromkeys(
    ("p0/delivers_to_the_last_caller", "p0/releases_on_the_callers_thread",
     "p0/forgets_who_came_while_busy"), "it needs threads whose events never repeat their order")
"""Mutants whose cases do not give the same events twice, and why."""
SLOW_FALSIFIERS = (
    "a_full_queue", "bad_requests", "batches_form", "chats_follow", "checkpoints_are",
    "disconnects_free", "engine_errors", "failures_cost", "handlers_never", "hostile_temp",
    "kv_without", "replies_tell", "reuse_told", "shutdown_drains", "store_equals",
    "turns_of_chats", "warm_equals")
"""Falsifiers of P2 and P7, by prefix, whose cases take a second or more."""
