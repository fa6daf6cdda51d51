"""Wrong batched steps and ops, each with one fault, and the falsifiers that must kill it."""

from __future__ import annotations

from falsifiers.judging.subject import Builder
from falsifiers.mutation.wrong_steps import (
    chunks_from_zero,
    in_a_kept_buffer,
    in_slot_order,
    unchecked,
    wrap_step,
)
from phases.p4_batched_matmul import wrong_ops as wo
from phases.p4_batched_matmul import wrong_steps as ws

STEPS = {
    "steps_looped_one_row_at_a_time": ws.with_step(ws.row_by_row),
    "steps_looped_one_token_at_a_time": ws.with_step(ws.token_by_token),
    "head_at_every_token": ws.with_batched_step(ws.HeadAtEveryToken),
    "logits_of_token_i_for_row_i": ws.with_batched_step(ws.TokenOfTheRowNumber),
    "head_on_the_first_token": ws.with_batched_step(ws.HeadOnTheFirstToken),
    "residual_from_the_normed_stream": ws.with_batched_step(ws.ResidualFromTheNorm),
    "positions_of_the_first_row": ws.with_batched_step(ws.PositionsOfTheFirstRow),
    "chunk_tokens_share_a_position": ws.with_batched_step(ws.OnePositionAChunk),
    "state_found_by_the_row_index": ws.with_step(ws.slots_by_row),
    "window_found_by_the_row_index": ws.with_batched_step(ws.WindowByRow),
    "rows_in_slot_order": wrap_step(in_slot_order),
    "state_written_to_last_steps_slot": ws.with_step(ws.StateByLastCall),
    "chunk_starts_from_zero_state": wrap_step(chunks_from_zero),
    "logits_in_a_kept_buffer": wrap_step(in_a_kept_buffer),
    "nothing_is_checked": unchecked,
}
STEP_OPS = {
    "row_pointer_not_advanced": wo.with_ops(project=wo.first_row_for_all),
    "tail_kernel_takes_four": wo.with_ops(project=wo.tail_of_four),
    "cap_of_another_device": wo.with_ops(project=wo.launch_fails_above_eight),
    "scale_over_all_rows": wo.with_ops(project=wo.scale_over_all_rows),
    "library_product_above_one_row": wo.with_ops(project=wo.library_above_one_row),
    "bias_lost_in_the_batched_step": wo.with_ops(gates=wo.gates_without_bias),
    "gates_of_the_first_row_for_all": wo.with_ops(gates=wo.gates_of_the_first_row),
    "gated_norm_by_the_first_row": wo.with_ops(gated_norm=wo.gate_of_the_first_row),
    "rows_cut_a_count_apart": wo.with_ops(conv_step=wo.rows_a_count_apart),
    "longest_row_sets_the_length": wo.with_ops(attend=wo.longest_for_all),
    "norm_with_another_eps": wo.with_ops(norm=wo.other_eps),
    "gate_and_up_in_one_buffer": wo.with_ops(silu_mul=wo.one_buffer),
    "silu_of_up": wo.with_ops(silu_mul=wo.silu_of_up),
}
KERNEL_FAULTS = {
    "padding_read_into_the_sum": wo.with_kernel('norm', wo.padding_in_the_sum),
    "heads_taken_side_by_side": wo.with_kernel('norm', wo.heads_side_by_side),
    "library_silu_in_the_kernel": wo.with_kernel('silu_mul', wo.library_silu),
    "library_gate_in_the_norm": wo.with_kernel('gated_norm', wo.library_gate),
    "rows_past_the_tile_copied": wo.with_kernel('silu_mul', wo.first_rows_of_the_tile),
    "gate_and_up_by_one_stride": wo.with_kernel('silu_mul', wo.one_stride),
    "library_functions_in_kernels": wo.with_functions(wo.library_functions),
}
CHOICES = {
    "argmax_highest_on_ties": wo.with_ops(argmax=wo.highest_on_ties),
    "argmax_lowest_lane_on_ties": wo.with_ops(argmax=wo.lowest_lane),
    "argmax_draws_a_tie": wo.with_ops(argmax=wo.a_tie_is_drawn),
    "argmax_last_block_on_ties": wo.with_ops(argmax=wo.last_block_on_ties),
    "argmax_starts_at_zero": wo.with_ops(argmax=wo.starts_at_zero),
    "argmax_reads_behind_the_row": wo.with_ops(argmax=wo.reads_behind_the_row),
    "argmax_tells_zeros_apart": wo.with_ops(argmax=wo.zeros_told_apart),
    "argmax_offset_of_32_bits": wo.with_ops(argmax=wo.offset_of_32_bits),
    "argmax_ignores_nan": wo.with_ops(argmax=wo.nan_is_small),
    "argmax_blames_the_first_row": wo.with_ops(argmax=wo.nan_is_seen_in_row_zero),
    "argmax_sees_nan_in_three_rows_alone": wo.with_ops(argmax=wo.nan_in_a_tile_of_three),
}
MUTANTS: dict[str, Builder] = STEPS | STEP_OPS | KERNEL_FAULTS | CHOICES
