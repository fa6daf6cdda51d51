"""Wrong graphs, each with one fault; the contract lists the falsifiers that must kill it."""

from __future__ import annotations

from falsifiers.judging.subject import Builder
from phases.p8_decode_graph import wrong_graphs as wg

MUTANTS: dict[str, Builder] = {
    "padding_keeps_old_pointers": wg.with_input_class(wg.KeepsOldPointers),
    "padding_takes_a_free_looking_slot": wg.with_input_class(wg.PadsTakeFreeSlots),
    "padding_repeats_the_last_row": wg.with_input_class(wg.PadsRepeatTheLast),
    "padding_is_slot_zero": wg.with_input_class(wg.PadsAreSlotZero),
    "pointers_of_a_per_step_buffer": wg.with_input_class(wg.PerStepPointers),
    "pointers_written_once": wg.with_input_class(wg.stale_inputs("pointers")),
    "positions_written_once": wg.with_input_class(wg.stale_inputs("positions")),
    "lengths_written_once": wg.with_input_class(wg.stale_inputs("lengths")),
    "tokens_written_once": wg.with_input_class(wg.stale_inputs("tokens")),
    "key_without_lengths": wg.with_coarse_key(reach=128),
    "key_with_the_first_rows_length": wg.with_graph_class(wg.ReachesTheFirstRow),
    "key_with_the_first_steps_length": wg.with_graph_class(wg.ReachesTheFirstStep),
    "key_without_the_table": wg.with_coarse_key(rope=0),
    "key_without_the_model": wg.with_coarse_key(model=0),
    "key_without_the_path": wg.with_coarse_key(path=None),
    "key_without_the_kind_of_run": wg.with_coarse_key(greedy=True),
    "capture_takes_live_rows": wg.with_graph_class(wg.CapturesLiveRows),
    "capture_reseeds": wg.with_graph_class(wg.Reseeds),
    "capture_at_every_step": wg.with_graph_class(wg.CapturesEveryStep),
    "logits_in_the_graphs_buffer": wg.with_graph_class(wg.HandsOutItsBuffer),
    "two_buffers_take_turns": wg.with_graph_class(wg.RingOfBuffers),
    "never_replays": wg.with_graph_class(wg.NeverReplays),
    "failure_reaches_the_caller": wg.with_graph_class(wg.RaisesTheFailure),
    "failure_is_tried_again": wg.with_graph_class(wg.TriesAgain),
    "padding_advances": wg.with_input_class(wg.AdvancesPadding),
    "token_not_fed_back": wg.with_input_class(wg.KeepsTokens),
    "lengths_do_not_advance": wg.with_input_class(wg.KeepsLengths),
    "positions_advance_twice": wg.with_input_class(wg.AdvancesTwice),
    "nan_is_a_token": wg.with_graph_class(wg.TakesNaN),
    "runs_are_not_checked": wg.with_unchecked_runs,
    "graphs_kept_without_end": wg.with_graph_class(wg.KeepsAll),
    "newest_graph_dropped": wg.with_graph_class(wg.DropsTheNewest),
    "chunks_are_replayed": wg.with_graph_class(wg.ReplaysChunks),
    "sink_is_ignored": wg.with_graph_class(wg.IgnoresTheSink),
}
