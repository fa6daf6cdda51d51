"""Wrong recurrent ops and kernels, each with one fault, and the falsifiers that must kill it."""

from __future__ import annotations

from falsifiers.judging.subject import Mutant
from phases.p5_batched_gdn import wrong_cuda as wc
from phases.p5_batched_gdn import wrong_kernels as wk
from phases.p5_batched_gdn import wrong_ops as wo
from phases.p5_batched_gdn import wrong_states as ws

TWIN, TRUTH, ORDER = "rows_equal_alone", "rows_are_true", "order_and_slots_do_not_matter"
CHUNKS, RECYCLED = "chunks_equal_steps", "recycled_slot_is_fresh"
MEMBERS, PADS = "membership_may_change_every_call", "pad_rows_do_nothing"
NEIGHBOURS, GATES, REPEATS = "neighbours_cannot_reach_a_row", "gates_are_true", "repeats_are_equal"
DRIFT, FAR_SLOTS = "long_runs_do_not_drift", "far_slots_are_reached"
BOUNDS, READ_ONCE = "loads_and_stores_stay_inside", "state_is_read_once"
STREAMS, KERNEL_STEP = "streams_equal_the_oracle", "kernels_run_the_step"

SLOTS = (
    Mutant(
        "row_used_as_slot",
        "Row i works on slot i, whatever slot it names.",
        (TRUTH, ORDER, MEMBERS, STREAMS),
        ws.with_slots(ws.row_numbers),
    ),
    Mutant(
        "first_slot_for_all",
        "Every row works on the first row's slot.",
        (TWIN, ORDER),
        ws.with_slots(ws.first_slot_for_all),
    ),
    Mutant(
        "slots_sorted",
        "Slots are sorted on the way to the kernel.",
        (ORDER, MEMBERS, STREAMS),
        ws.with_slots(ws.sorted_slots),
    ),
    Mutant(
        "slots_side_by_side",
        "Row i works on the i-th slot after the first row's.",
        (ORDER, STREAMS),
        ws.with_slots(ws.slots_side_by_side),
    ),
    Mutant(
        "state_saved_in_the_next_slot",
        "The new state is written one slot on.",
        (TRUTH, MEMBERS),
        ws.with_stateful_ops(ws.saved_in_the_next_slot),
    ),
    Mutant(
        "idle_slots_age",
        "Slots that no row names decay a little.",
        (MEMBERS, STREAMS),
        ws.with_stateful_ops(ws.idle_slots_age),
    ),
    Mutant(
        "tenant_trusted_by_one_token",
        "A chunk of one token takes the state last written.",
        (RECYCLED, REPEATS),
        ws.with_stateful_ops(ws.ShadowState),
        "B109",
    ),
    Mutant(
        "window_kept_outside_the_slot",
        "Freeing a slot leaves the window that is used.",
        (RECYCLED, STREAMS),
        ws.with_stateful_ops(ws.ShadowAllTokens, "conv_step"),
        "B110",
    ),
    Mutant(
        "slot_offset_of_32_bits",
        "A slot's offset in the pool is kept in 32 bits.",
        (FAR_SLOTS,),
        ws.with_stateful_ops(ws.offset_of_32_bits),
        "B108",
        device="cuda",
    ),
)
CHUNK_FAULTS = (
    Mutant(
        "single_tokens_start_from_zero",
        "The state found counts from the second token on.",
        (TRUTH, CHUNKS),
        ws.with_stateful_ops(ws.single_tokens_from_zero),
        "B112",
    ),
    Mutant(
        "chunks_start_from_zero",
        "A chunk of several tokens ignores the state it finds.",
        (CHUNKS, STREAMS),
        ws.with_stateful_ops(ws.chunks_from_zero),
        "B113",
    ),
    Mutant(
        "history_lost_beside_a_chunk",
        "With a chunk in the call no row keeps its window.",
        (TWIN, CHUNKS),
        ws.with_stateful_ops(ws.all_from_zero_beside_a_chunk, "conv_step"),
        "B118",
    ),
    Mutant(
        "short_chunks_not_shifted",
        "Chunks below the window's width leave its rest in place.",
        (CHUNKS, RECYCLED),
        ws.with_ops(conv_step=wo.short_chunks_not_shifted),
        "B117",
    ),
    Mutant(
        "last_decay_of_the_padded_chunk",
        "A chunk's last decay is that of its padding.",
        (TRUTH, CHUNKS),
        ws.with_ops(delta_step=wo.last_decay_of_the_padded_chunk),
        "B119",
    ),
    Mutant(
        "chunk_window_in_another_layout",
        "Chunks write the window time-major.",
        (CHUNKS, STREAMS),
        ws.with_ops(conv_step=wo.chunk_window_in_another_layout),
        "B121",
    ),
    Mutant(
        "first_token_saved",
        "A chunk leaves the state after its first token.",
        (TRUTH, CHUNKS),
        ws.with_stateful_ops(ws.first_token_saved),
    ),
    Mutant(
        "last_token_not_saved",
        "A chunk leaves the state before its last token.",
        (TRUTH, DRIFT),
        ws.with_stateful_ops(ws.last_token_not_saved),
    ),
    Mutant(
        "norm_of_the_next_token",
        "Half of a key's norm is taken from the token behind.",
        (TWIN, CHUNKS),
        ws.with_ops(delta_step=wo.norm_of_the_next_token),
        "B131",
    ),
)
RAGGED_BATCHES = (
    Mutant(
        "strength_of_the_first_row",
        "From the third row on the first row's strength is used.",
        (TWIN, NEIGHBOURS),
        ws.with_ops(delta_step=wo.strength_of_the_first_row),
        "B103",
    ),
    Mutant(
        "wide_batches_add_otherwise",
        "More than one row goes to another kernel.",
        (TWIN, ORDER),
        ws.with_ops(delta_step=wo.wide_batches_add_otherwise),
        "B106",
    ),
    Mutant(
        "outputs_a_longest_apart",
        "Each row's outputs begin at a stride of the longest row.",
        (TWIN, MEMBERS),
        ws.with_stateful_ops(ws.outputs_a_longest_apart),
        "B133",
    ),
    Mutant(
        "rows_padded_to_the_longest",
        "Placeholder tokens of short rows enter their state.",
        (TWIN, CHUNKS),
        ws.with_stateful_ops(ws.pad_to_the_longest),
        "B138",
    ),
    Mutant(
        "window_from_the_packed_tokens",
        "A chunk's window is what stands before it in x.",
        (TWIN, MEMBERS),
        ws.with_ops(conv_step=wo.window_from_the_packed_tokens),
        "B139",
    ),
    Mutant(
        "state_runs_on_over_rows",
        "A chunk goes on from the state of the row before.",
        (TWIN, NEIGHBOURS),
        ws.with_stateful_ops(ws.continues_the_row_before, "delta_step"),
        "B140",
    ),
    Mutant(
        "rows_masked_by_zeros",
        "A row is picked by multiplying all others with zero.",
        (NEIGHBOURS,),
        ws.with_stateful_ops(ws.mask_by_zeros),
    ),
    Mutant(
        "pads_work_on_their_slot",
        "A pad row is a row of one token on the slot it names.",
        (PADS,),
        ws.with_stateful_ops(ws.pads_work_on_their_slot),
        "B191",
    ),
    Mutant(
        "pads_work_on_the_last_slot",
        "Padding repeats the last row's slot.",
        (PADS,),
        ws.with_stateful_ops(ws.pads_work_on_the_last_slot),
        "B193",
    ),
    Mutant(
        "pads_work_on_slot_zero",
        "A pad row's slot is clamped to 0.",
        (PADS,),
        ws.with_stateful_ops(ws.pads_work_on_slot_zero),
        "B194",
    ),
)
ARITHMETIC = (
    Mutant("strength_through_bfloat16", "The strength is rounded through bfloat16.",
           (GATES, STREAMS), ws.with_ops(gates=wo.strength_through_bfloat16), "B124"),
    Mutant("decode_rounds_its_strength", "Only a call of single tokens rounds the strength.",
           (CHUNKS, DRIFT), ws.with_ops(delta_step=wo.decode_rounds_its_strength), "B125"),
    Mutant("strength_twice_through_sigmoid", "The strength is squashed a second time.",
           (GATES, STREAMS), ws.with_ops(gates=wo.strength_twice_through_sigmoid)),
    Mutant("decay_with_the_other_sign", "The decay's rate is negated once more.", (GATES, STREAMS),
           ws.with_ops(gates=wo.decay_with_the_other_sign), "B211"),
    Mutant("gates_without_bias", "The time step's bias is left out.", (GATES, STREAMS),
           ws.with_ops(gates=wo.gates_without_bias)),
    Mutant("library_gates", "Gates are made of the library's functions.", (GATES, STREAMS),
           ws.with_ops(gates=wo.library_gates)),
    Mutant("nan_gates_are_zero", "A NaN is cleaned away.", (GATES,),
           ws.with_ops(gates=wo.nan_gates_are_zero)),
    Mutant("keys_shared_side_by_side", "Value head h uses key head h // groups.", (TRUTH, STREAMS),
           ws.with_ops(delta_step=wo.keys_shared_side_by_side), "B210"),
    Mutant("taps_reversed", "The first tap meets the present token.", (TRUTH, STREAMS),
           ws.with_ops(conv_step=wo.taps_reversed)),
    Mutant("window_backwards", "The window is read from its newest value.", (TRUTH, STREAMS),
           ws.with_ops(conv_step=wo.window_backwards)),
    Mutant("window_not_shifted", "The newest value replaces the last one in place.",
           (TRUTH, RECYCLED), ws.with_ops(conv_step=wo.window_not_shifted)),
    Mutant("window_shifted_twice", "A token is shifted into the window two times.",
           (TRUTH, RECYCLED), ws.with_ops(conv_step=wo.window_shifted_twice)),
    Mutant("library_silu", "The activation is the library's.", (TRUTH, STREAMS),
           ws.with_ops(conv_step=wo.library_silu)),
    Mutant("decay_after_the_read", "The old state is read before it decays.", (TRUTH, STREAMS),
           ws.with_ops(delta_step=wo.decay_after_the_read)),
    Mutant("output_before_the_write", "The output leaves the token's own change out.",
           (TRUTH, STREAMS), ws.with_ops(delta_step=wo.output_before_the_write)),
    Mutant("norm_without_eps", "The norm of a key or query has no eps.", (TRUTH,),
           ws.with_ops(delta_step=wo.norm_without_eps)),
    Mutant("eps_of_a_mean", "The norm's eps is added to the mean square.", (TRUTH,),
           ws.with_ops(delta_step=wo.eps_of_a_mean)),
    Mutant("no_scale", "Queries are not scaled by the root of their width.", (TRUTH, STREAMS),
           ws.with_ops(delta_step=wo.no_scale)),
    Mutant("keys_added_in_order", "The sum over keys goes from first to last.", (TRUTH,),
           ws.with_ops(delta_step=wo.keys_added_in_order)),
    Mutant("keys_added_in_halves", "The sum pairs keys that stand half the width apart.", (TRUTH,),
           ws.with_ops(delta_step=wo.keys_added_in_halves)),
    Mutant("sum_begins_with_a_key", "The sum does not begin at +0.", (TRUTH,),
           ws.with_ops(delta_step=wo.sum_begins_with_a_key)),
    Mutant("write_contracted", "The write rounds once where it should twice.", (TRUTH, STREAMS),
           ws.with_ops(delta_step=wo.write_contracted)),
    Mutant("denormals_flushed", "Denormal gates and states count as zero.", (TRUTH,),
           ws.with_ops(delta_step=wo.denormals_flushed)),
    Mutant("sum_races", "Every third call adds in another order.", (REPEATS, STREAMS),
           ws.with_stateful_ops(wo.RacingSum, "delta_step"), "B128"),
    Mutant("state_rounded_now_and_then", "Each hundredth call rounds the state.", (DRIFT,),
           ws.with_stateful_ops(ws.RoundEveryHundred)),
)
KERNELS = (
    *(
        Mutant(f"{op}_kernel_{name}", fault, killers, ws.with_kernel(op, made(code)), source)
        for op, made, faults in (
            (
                "conv_step",
                wk.faulty_conv_step,
                (
                    (
                        "follows_the_first_pointer",
                        "Every program follows row 0's pointer.",
                        (ORDER,),
                        wk.ROW_ZERO,
                        "",
                    ),
                    (
                        "counts_slots_from_the_first",
                        "Pointer i is taken to be i strides after the first.",
                        (ORDER,),
                        wk.ROW_AS_SLOT,
                        "",
                    ),
                    (
                        "works_on_pads",
                        "A row without tokens is worked for one.",
                        (BOUNDS, PADS),
                        wk.PADS,
                        "B192",
                    ),
                    (
                        "saves_behind_its_tail",
                        "The last block saves more channels than there are.",
                        (BOUNDS, TRUTH),
                        wk.TAIL,
                        "",
                    ),
                    (
                        "reads_backwards",
                        "The window is read from its newest value.",
                        (TRUTH, KERNEL_STEP),
                        wk.BACKWARDS,
                        "",
                    ),
                    (
                        "saves_the_first_token",
                        "The window is saved after the first token alone.",
                        (TRUTH, CHUNKS),
                        wk.FIRST_SAVED,
                        "",
                    ),
                    (
                        "takes_rows_for_tokens",
                        "Row i reads and writes token i.",
                        (TRUTH,),
                        wk.ROW_OUT,
                        "",
                    ),
                ),
            ),
            (
                "delta_step",
                wk.faulty_delta_step,
                (
                    (
                        "follows_the_first_pointer",
                        "Every program follows row 0's pointer.",
                        (TWIN, ORDER),
                        wk.ROW_ZERO,
                        "",
                    ),
                    (
                        "counts_slots_from_the_first",
                        "Pointer i is taken to be i strides after the first.",
                        (ORDER,),
                        wk.ROW_AS_SLOT,
                        "",
                    ),
                    (
                        "works_on_pads",
                        "A row without tokens is worked for one.",
                        (BOUNDS, PADS),
                        wk.PADS,
                        "B192",
                    ),
                    (
                        "shares_heads_side_by_side",
                        "Value head h uses key head h // groups.",
                        (TRUTH, KERNEL_STEP),
                        wk.HEADS,
                        "B210",
                    ),
                    (
                        "saves_in_the_next_head",
                        "A head's state is saved in the next head's place.",
                        (TRUTH, KERNEL_STEP),
                        wk.NEXT_HEAD,
                        "",
                    ),
                    (
                        "saves_in_the_next_slot",
                        "State is saved one slot on.",
                        (TRUTH, BOUNDS),
                        wk.NEIGHBOUR,
                        "",
                    ),
                    (
                        "rereads_for_each_token",
                        "State goes to memory and back between tokens.",
                        (READ_ONCE,),
                        wk.REREAD,
                        "",
                    ),
                    (
                        "reads_before_decay",
                        "The old state is read before it decays.",
                        (TRUTH, KERNEL_STEP),
                        wk.LATE,
                        "",
                    ),
                    (
                        "saves_the_first_token",
                        "State is saved after the first token alone.",
                        (TRUTH, CHUNKS),
                        wk.FIRST_SAVED,
                        "",
                    ),
                    (
                        "writes_rows_for_tokens",
                        "Row i's output is written at token i.",
                        (TRUTH,),
                        wk.ROW_OUT,
                        "",
                    ),
                    (
                        "has_one_stride",
                        "Values are read by the stride of keys.",
                        (TWIN,),
                        wk.ONE_STRIDE,
                        "",
                    ),
                ),
            ),
        )
        for name, fault, killers, code, source in faults
    ),
    Mutant(
        "kernel_launched_for_each_row",
        "The loop over rows stands on the host.",
        (READ_ONCE,),
        ws.with_kernel("delta_step", wk.a_launch_for_each_row),
        "B027",
    ),
    Mutant(
        "gates_kernel_of_one_block",
        "Gates past the first block are not written.",
        (GATES,),
        ws.with_kernel("gates", wk.gates_of_one_block),
    ),
    Mutant(
        "gates_kernel_without_strides",
        "Tokens are taken to stand side by side.",
        (GATES,),
        ws.with_kernel("gates", wk.gates_without_strides),
    ),
    Mutant(
        "gates_kernel_with_one_stride",
        "Write strengths are read by the stride of decays.",
        (GATES,),
        ws.with_kernel("gates", wk.gates_with_one_stride),
    ),
)
CUDA = (
    *(
        Mutant(
            f"cuda_{name}",
            fault,
            killers,
            wc.with_cuda_fault(name),
            source,
            device="cuda",
            emulated=name != "works_on_pads",
        )  # past its last token it goes on for ever
        for name, fault, killers, source in (
            (
                "follows_the_first_pointer",
                "Every block follows row 0's pointer.",
                (TWIN, ORDER),
                "",
            ),
            ("works_on_pads", "A row without tokens is worked for one.", (PADS,), "B192"),
            (
                "shares_heads_side_by_side",
                "Value head h uses key head h // groups.",
                (TRUTH,),
                "B210",
            ),
            (
                "pairs_distant_lanes_first",
                "Lanes meet in another order than the tree's.",
                (TRUTH,),
                "",
            ),
            ("begins_sums_with_a_key", "The sum does not begin at +0.", (TRUTH,), ""),
            ("scales_the_norm", "The scale is multiplied into the norm first.", (TRUTH,), ""),
            ("saves_one_key_late", "Each key's state is saved in the place before.", (TRUTH,), ""),
            (
                "stops_after_a_tile",
                "A chunk ends after the tokens that are loaded together.",
                (CHUNKS, TRUTH),
                "",
            ),
            (
                "spans_begin_with_zeros",
                "A later block of a chunk does not see the token before it.",
                (CHUNKS,),
                "",
            ),
            (
                "saves_the_first_span",
                "A long chunk leaves in the window what its first block saw.",
                (CHUNKS,),
                "",
            ),
            (
                "loads_the_token_again",
                "The token that is loaded ahead is the present one.",
                (CHUNKS, TRUTH),
                "",
            ),
            ("window_backwards", "The window is read from its newest value.", (TRUTH, STREAMS), ""),
            (
                "takes_the_token_for_the_head",
                "The rate of decay is looked up by token.",
                (GATES, STREAMS),
                "",
            ),
        )
    ),
    *(
        Mutant(
            f"cuda_{op}_contracted",
            "The kernel is compiled with contraction.",
            (killer,),
            wc.with_contraction(op),
            device="cuda",
        )
        for op, killer in (("delta_step", TRUTH), ("conv_step", TRUTH), ("gates", GATES))
    ),
)
MUTANTS = SLOTS + CHUNK_FAULTS + RAGGED_BATCHES + ARITHMETIC + KERNELS + CUDA
