"""Wrong batched steps and ops, each with one fault, and the falsifiers that must kill it."""

from __future__ import annotations

from falsifiers.judging.subject import Mutant
from falsifiers.mutation.wrong_steps import (
    chunks_from_zero,
    in_a_kept_buffer,
    in_slot_order,
    unchecked,
    wrap_step,
)
from phases.p4_batched_matmul import wrong_ops as wo
from phases.p4_batched_matmul import wrong_steps as ws

ROWS, STEP_TRUTH = "rows_equal_solo", "ops_equal_looped_step"
MEMBERS, PREFILL = "membership_may_change_every_step", "prefill_equals_steps"
CHUNKS, NEIGHBOURS = "chunks_stand_beside_decoding_rows", "neighbours_cannot_reach_a_row"
REFUSALS, REPEATS = "refusals_change_nothing", "repeats_are_equal"
WEIGHTS_ONCE, ARGMAX = "each_weight_is_met_once_a_step", "argmax_takes_the_lowest_index"
NAN_REFUSAL, KERNELS = "argmax_refuses_nan", "kernels_give_the_reference_bits"
KERNEL_STEP = "kernels_run_the_step"

STEPS = (
    Mutant(
        "steps_looped_one_row_at_a_time",
        "The batch is formed, then run a row at a time.",
        (WEIGHTS_ONCE,),
        ws.with_step(ws.row_by_row),
        "B027",
    ),
    Mutant(
        "steps_looped_one_token_at_a_time",
        "Each token goes through the single step.",
        (WEIGHTS_ONCE,),
        ws.with_step(ws.token_by_token),
        "B027",
    ),
    Mutant(
        "head_at_every_token",
        "Logits are made for all tokens, then most are dropped.",
        (WEIGHTS_ONCE,),
        ws.with_batched_step(ws.HeadAtEveryToken),
    ),
    Mutant(
        "logits_of_token_i_for_row_i",
        "The last token is looked up by the row's number.",
        (ROWS, CHUNKS, PREFILL),
        ws.with_batched_step(ws.TokenOfTheRowNumber),
    ),
    Mutant(
        "head_on_the_first_token",
        "A chunk's logits are those of its first token.",
        (CHUNKS, PREFILL),
        ws.with_batched_step(ws.HeadOnTheFirstToken),
    ),
    Mutant(
        "residual_from_the_normed_stream",
        "The FFN is added to its own input.",
        (STEP_TRUTH,),
        ws.with_batched_step(ws.ResidualFromTheNorm),
    ),
    Mutant(
        "positions_of_the_first_row",
        "Every row turns from row 0's position.",
        (ROWS, STEP_TRUTH),
        ws.with_batched_step(ws.PositionsOfTheFirstRow),
        "B155",
    ),
    Mutant(
        "chunk_tokens_share_a_position",
        "All tokens of a chunk get its first position.",
        (PREFILL, CHUNKS),
        ws.with_batched_step(ws.OnePositionAChunk),
        "B154",
    ),
    Mutant(
        "state_found_by_the_row_index",
        "Row i runs on slot i, whatever slot it names.",
        (ROWS, MEMBERS),
        ws.with_step(ws.slots_by_row),
    ),
    Mutant(
        "window_found_by_the_row_index",
        "Conv windows alone are found by row.",
        (MEMBERS, STEP_TRUTH),
        ws.with_batched_step(ws.WindowByRow),
    ),
    Mutant(
        "rows_in_slot_order",
        "Rows are worked and returned in the order of their slots.",
        (MEMBERS, CHUNKS),
        wrap_step(in_slot_order),
    ),
    Mutant(
        "state_written_to_last_steps_slot",
        "The slot that stood first before is written.",
        (MEMBERS,),
        ws.with_step(ws.StateByLastCall),
    ),
    Mutant(
        "chunk_starts_from_zero_state",
        "A chunk of several tokens ignores the state it finds.",
        (PREFILL, CHUNKS),
        wrap_step(chunks_from_zero),
        "B113",
    ),
    Mutant(
        "logits_in_a_kept_buffer",
        "Logits come in a buffer that the next step reuses.",
        (REPEATS,),
        wrap_step(in_a_kept_buffer),
    ),
    Mutant("nothing_is_checked", "A step works on whatever it is given.", (REFUSALS,), unchecked),
)
STEP_OPS = (
    Mutant(
        "row_pointer_not_advanced",
        "Every row is multiplied as if it were the first.",
        (ROWS, STEP_TRUTH),
        wo.with_ops(project=wo.first_row_for_all),
        "B084",
    ),
    Mutant(
        "tail_kernel_takes_four",
        "The last 5 to 7 rows of eight go to a kernel made for 4.",
        (ROWS, PREFILL),
        wo.with_ops(project=wo.tail_of_four),
        "B086",
    ),
    Mutant(
        "cap_of_another_device",
        "The row cap lets a launch through that this device refuses.",
        (ROWS, PREFILL),
        wo.with_ops(project=wo.launch_fails_above_eight),
        "B087",
    ),
    Mutant(
        "scale_over_all_rows",
        "Activations are scaled by the largest of all rows.",
        (ROWS, NEIGHBOURS),
        wo.with_ops(project=wo.scale_over_all_rows),
        "B088",
    ),
    Mutant(
        "library_product_above_one_row",
        "More than one row goes to the library's product.",
        (ROWS, STEP_TRUTH),
        wo.with_ops(project=wo.library_above_one_row),
        "B091",
    ),
    Mutant(
        "bias_lost_in_the_batched_step",
        "The batched op leaves the time step's bias out.",
        (STEP_TRUTH,),
        wo.with_ops(gates=wo.gates_without_bias),
        "B098",
    ),
    Mutant(
        "gates_of_the_first_row_for_all",
        "Every row decays as the first one does.",
        (ROWS, STEP_TRUTH),
        wo.with_ops(gates=wo.gates_of_the_first_row),
    ),
    Mutant(
        "gated_norm_by_the_first_row",
        "Every row is gated as the first one is.",
        (ROWS, STEP_TRUTH),
        wo.with_ops(gated_norm=wo.gate_of_the_first_row),
    ),
    Mutant(
        "rows_cut_a_count_apart",
        "Row i's tokens begin at i times the first row's count.",
        (ROWS, CHUNKS),
        wo.with_ops(conv_step=wo.rows_a_count_apart),
        "B034",
    ),
    Mutant(
        "longest_row_sets_the_length",
        "The longest row's cache length is used for all.",
        (ROWS, MEMBERS),
        wo.with_ops(attend=wo.longest_for_all),
        "B158",
    ),
    Mutant(
        "norm_with_another_eps",
        "The norm's eps is ten times what the file says.",
        (STEP_TRUTH, KERNELS),
        wo.with_ops(norm=wo.other_eps),
    ),
    Mutant(
        "gate_and_up_in_one_buffer",
        "The second product overwrites the first.",
        (STEP_TRUTH,),
        wo.with_ops(silu_mul=wo.one_buffer),
    ),
    Mutant(
        "silu_of_up",
        "SiLU is taken of the other half.",
        (STEP_TRUTH, KERNELS),
        wo.with_ops(silu_mul=wo.silu_of_up),
    ),
)
KERNEL_FAULTS = (
    Mutant(
        "padding_read_into_the_sum",
        "The norm adds what stands behind a row.",
        (KERNELS,),
        wo.with_kernel("norm", wo.padding_in_the_sum),
        "B080",
    ),
    Mutant(
        "heads_taken_side_by_side",
        "A head's stride is taken to be its width.",
        (KERNELS, KERNEL_STEP),
        wo.with_kernel("norm", wo.heads_side_by_side),
        "B069",
    ),
    Mutant(
        "library_silu_in_the_kernel",
        "The kernel's SiLU is the library's.",
        (KERNELS, KERNEL_STEP),
        wo.with_kernel("silu_mul", wo.library_silu),
    ),
    Mutant(
        "library_gate_in_the_norm",
        "The gated norm's SiLU is the library's.",
        (KERNELS, KERNEL_STEP),
        wo.with_kernel("gated_norm", wo.library_gate),
    ),
    Mutant(
        "rows_past_the_tile_copied",
        "Rows past a tile of two repeat the first.",
        (KERNELS, KERNEL_STEP),
        wo.with_kernel("silu_mul", wo.first_rows_of_the_tile),
    ),
    Mutant(
        "gate_and_up_by_one_stride",
        "Both halves are read by the stride of the gate.",
        (KERNELS,),
        wo.with_kernel("silu_mul", wo.one_stride),
    ),
    Mutant(
        "library_functions_in_kernels",
        "Shared functions are the library's.",
        (KERNELS,),
        wo.with_functions(wo.library_functions),
    ),
)
CHOICES = (
    Mutant("argmax_highest_on_ties", "The last of equal maxima wins.", (ARGMAX,),
           wo.with_ops(argmax=wo.highest_on_ties), "B094"),
    Mutant("argmax_lowest_lane_on_ties", "Of equal maxima the lower lane wins.", (ARGMAX,),
           wo.with_ops(argmax=wo.lowest_lane), "B096"),
    Mutant("argmax_draws_a_tie", "Equal maxima are drawn by lot, as at temperature 1e-6.",
           (ARGMAX,), wo.with_ops(argmax=wo.a_tie_is_drawn), "B093"),
    Mutant("argmax_last_block_on_ties", "A later block replaces an equal maximum.", (ARGMAX,),
           wo.with_ops(argmax=wo.last_block_on_ties)),
    Mutant("argmax_starts_at_zero", "The running maximum starts at 0.", (ARGMAX,),
           wo.with_ops(argmax=wo.starts_at_zero)),
    Mutant("argmax_reads_behind_the_row", "Values behind a row take part.", (ARGMAX,),
           wo.with_ops(argmax=wo.reads_behind_the_row)),
    Mutant("argmax_tells_zeros_apart", "-0 counts as less than +0.", (ARGMAX,),
           wo.with_ops(argmax=wo.zeros_told_apart)),
    Mutant("argmax_offset_of_32_bits", "A row's offset is kept in 32 bits.", (ARGMAX,),
           wo.with_ops(argmax=wo.offset_of_32_bits), "B100", device="cuda"),
    Mutant("argmax_ignores_nan", "NaN counts as the smallest value.", (NAN_REFUSAL,),
           wo.with_ops(argmax=wo.nan_is_small)),
    Mutant("argmax_blames_the_first_row", "NaN is refused, but always in row 0.", (NAN_REFUSAL,),
           wo.with_ops(argmax=wo.nan_is_seen_in_row_zero)),
    Mutant("argmax_sees_nan_in_three_rows_alone", "NaN past a tile of three rows is not looked "
           "for.", (NAN_REFUSAL,), wo.with_ops(argmax=wo.nan_in_a_tile_of_three)),
)
MUTANTS = STEPS + STEP_OPS + KERNEL_FAULTS + CHOICES
