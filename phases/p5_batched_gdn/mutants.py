"""Wrong recurrent ops and kernels, each with one fault; the contract lists who must kill it."""

from __future__ import annotations

from falsifiers.judging.subject import Builder
from phases import wrong_refs as wr
from phases.p5_batched_gdn import wrong_cuda as wc
from phases.p5_batched_gdn import wrong_kernels as wk
from phases.p5_batched_gdn import wrong_ops as wo
from phases.p5_batched_gdn import wrong_states as ws

SLOTS = {
    "row_used_as_slot": ws.with_slots(wr.row_numbers),
    "first_slot_for_all": ws.with_slots(wr.first_slot_for_all),
    "slots_sorted": ws.with_slots(wr.sorted_slots),
    "slots_side_by_side": ws.with_slots(wr.slots_side_by_side),
    "state_saved_in_the_next_slot": ws.with_stateful_ops(ws.saved_in_the_next_slot),
    "idle_slots_age": ws.with_stateful_ops(ws.idle_slots_age),
    "tenant_trusted_by_one_token": ws.with_stateful_ops(ws.ShadowState),
    "window_kept_outside_the_slot": ws.with_stateful_ops(ws.ShadowAllTokens, "conv_step"),
    "slot_offset_of_32_bits": ws.with_stateful_ops(ws.offset_of_32_bits),
}
CHUNK_FAULTS = {
    "single_tokens_start_from_zero": ws.with_stateful_ops(ws.single_tokens_from_zero),
    "chunks_start_from_zero": ws.with_stateful_ops(ws.chunks_from_zero),
    "history_lost_beside_a_chunk": ws.with_stateful_ops(ws.all_from_zero_beside_a_chunk,
                                                        "conv_step"),
    "short_chunks_not_shifted": wr.with_ops(conv_step=wo.short_chunks_not_shifted),
    "last_decay_of_the_padded_chunk": wr.with_ops(delta_step=wo.last_decay_of_the_padded_chunk),
    "chunk_window_in_another_layout": wr.with_ops(conv_step=wo.chunk_window_in_another_layout),
    "first_token_saved": ws.with_stateful_ops(ws.first_token_saved),
    "last_token_not_saved": ws.with_stateful_ops(ws.last_token_not_saved),
    "norm_of_the_next_token": wr.with_ops(delta_step=wo.norm_of_the_next_token),
}
RAGGED_BATCHES = {
    "strength_of_the_first_row": wr.with_ops(delta_step=wo.strength_of_the_first_row),
    "wide_batches_add_otherwise": wr.with_ops(delta_step=wo.wide_batches_add_otherwise),
    "outputs_a_longest_apart": ws.with_stateful_ops(ws.outputs_a_longest_apart),
    "rows_padded_to_the_longest": ws.with_stateful_ops(ws.pad_to_the_longest),
    "window_from_the_packed_tokens": wr.with_ops(conv_step=wo.window_from_the_packed_tokens),
    "state_runs_on_over_rows": ws.with_stateful_ops(ws.continues_the_row_before, "delta_step"),
    "rows_masked_by_zeros": ws.with_stateful_ops(ws.mask_by_zeros),
    "pads_work_on_their_slot": ws.with_stateful_ops(ws.pads_work_on_their_slot),
    "pads_work_on_the_last_slot": ws.with_stateful_ops(ws.pads_work_on_the_last_slot),
    "pads_work_on_slot_zero": ws.with_stateful_ops(ws.pads_work_on_slot_zero),
}
ARITHMETIC = {
    "strength_through_bfloat16": wr.with_ops(gates=wo.strength_through_bfloat16),
    "decode_rounds_its_strength": wr.with_ops(delta_step=wo.decode_rounds_its_strength),
    "strength_twice_through_sigmoid": wr.with_ops(gates=wo.strength_twice_through_sigmoid),
    "decay_with_the_other_sign": wr.with_ops(gates=wo.decay_with_the_other_sign),
    "gates_without_bias": wr.with_ops(gates=wo.gates_without_bias),
    "library_gates": wr.with_ops(gates=wo.library_gates),
    "nan_gates_are_zero": wr.with_ops(gates=wo.nan_gates_are_zero),
    "keys_shared_side_by_side": wr.with_ops(delta_step=wo.keys_shared_side_by_side),
    "taps_reversed": wr.with_ops(conv_step=wo.taps_reversed),
    "window_backwards": wr.with_ops(conv_step=wo.window_backwards),
    "window_not_shifted": wr.with_ops(conv_step=wo.window_not_shifted),
    "window_shifted_twice": wr.with_ops(conv_step=wo.window_shifted_twice),
    "library_silu": wr.with_ops(conv_step=wo.library_silu),
    "decay_after_the_read": wr.with_ops(delta_step=wo.decay_after_the_read),
    "output_before_the_write": wr.with_ops(delta_step=wo.output_before_the_write),
    "norm_without_eps": wr.with_ops(delta_step=wo.norm_without_eps),
    "eps_of_a_mean": wr.with_ops(delta_step=wo.eps_of_a_mean),
    "no_scale": wr.with_ops(delta_step=wo.no_scale),
    "keys_added_in_order": wr.with_ops(delta_step=wo.keys_added_in_order),
    "keys_added_in_halves": wr.with_ops(delta_step=wo.keys_added_in_halves),
    "sum_begins_with_a_key": wr.with_ops(delta_step=wo.sum_begins_with_a_key),
    "write_contracted": wr.with_ops(delta_step=wo.write_contracted),
    "denormals_flushed": wr.with_ops(delta_step=wo.denormals_flushed),
    "sum_races": wr.with_ops(delta_step=wo.RacingSum),
    "state_rounded_now_and_then": ws.with_stateful_ops(ws.RoundEveryHundred),
}
CONV_KERNEL = {
    "follows_the_first_pointer": wk.ROW_ZERO,
    "counts_slots_from_the_first": wk.ROW_AS_SLOT,
    "works_on_pads": wk.PADS,
    "saves_behind_its_tail": wk.TAIL,
    "reads_backwards": wk.BACKWARDS,
    "saves_the_first_token": wk.FIRST_SAVED,
    "takes_rows_for_tokens": wk.ROW_OUT,
}
"""Faults of the Triton convolution, by the end of their mutant's id."""
DELTA_KERNEL = {
    "follows_the_first_pointer": wk.ROW_ZERO,
    "counts_slots_from_the_first": wk.ROW_AS_SLOT,
    "works_on_pads": wk.PADS,
    "shares_heads_side_by_side": wk.HEADS,
    "saves_in_the_next_head": wk.NEXT_HEAD,
    "saves_in_the_next_slot": wk.NEIGHBOUR,
    "rereads_for_each_token": wk.REREAD,
    "reads_before_decay": wk.LATE,
    "saves_the_first_token": wk.FIRST_SAVED,
    "writes_rows_for_tokens": wk.ROW_OUT,
    "has_one_stride": wk.ONE_STRIDE,
}
"""Faults of the Triton delta rule, by the end of their mutant's id."""
KERNELS = {
    **{f"conv_step_kernel_{name}": ws.with_kernel("conv_step", wk.faulty_conv_step(code))
       for name, code in CONV_KERNEL.items()},
    **{f"delta_step_kernel_{name}": ws.with_kernel("delta_step", wk.faulty_delta_step(code))
       for name, code in DELTA_KERNEL.items()},
    "kernel_launched_for_each_row": ws.with_kernel("delta_step", wk.a_launch_for_each_row),
    "gates_kernel_of_one_block": ws.with_kernel("gates", wk.gates_of_one_block),
    "gates_kernel_without_strides": ws.with_kernel("gates", wk.gates_without_strides),
    "gates_kernel_with_one_stride": ws.with_kernel("gates", wk.gates_with_one_stride),
}
CUDA_FAULTS = (
    "follows_the_first_pointer", "works_on_pads", "shares_heads_side_by_side",
    "pairs_distant_lanes_first", "begins_sums_with_a_key", "scales_the_norm",
    "saves_one_key_late", "stops_after_a_tile", "spans_begin_with_zeros",
    "saves_the_first_span", "loads_the_token_again", "window_backwards",
    "takes_the_token_for_the_head",
)
"""Faults of `gdn.cu`, by the end of their mutant's id."""
CUDA = {
    **{f"cuda_{name}": wc.with_cuda_fault(name) for name in CUDA_FAULTS},
    **{f"cuda_{op}_contracted": wc.with_contraction(op)
       for op in ("delta_step", "conv_step", "gates")},
}
MUTANTS: dict[str, Builder] = SLOTS | CHUNK_FAULTS | RAGGED_BATCHES | ARITHMETIC | KERNELS | CUDA
