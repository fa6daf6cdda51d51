"""Wrong graphs, each with one fault, and the falsifiers that must kill it."""

from __future__ import annotations

from falsifiers.judging.subject import Mutant
from phases.p8_decode_graph import wrong_graphs as wg

SOLO, EVENTS, GROWTH = "graph_equals_single", "events_change_nothing", "growth_past_a_bucket"
PADDING, CAPTURE, REPEATS = "padding_has_no_effect", "capture_is_pure", "replays_are_repeatable"
DRIFT, KEY = "drift_over_many_replays", "key_holds_what_changes_launches"
FAILED_CAPTURE, GREEDY = "failed_capture_is_survived", "greedy_runs_equal_steps"
GREEDY_REFUSALS, MEMORY, TRACING = "greedy_runs_refuse", "memory_is_bounded", "traced_steps_report"

MUTANTS = (
    Mutant(
        "padding_keeps_old_pointers",
        "Padding points where an earlier step's rows were.",
        (PADDING,),
        wg.with_input_class(wg.KeepsOldPointers),
        "B191",
    ),
    Mutant(
        "padding_takes_a_free_looking_slot",
        "Padding points at slots that the step leaves out.",
        (PADDING, SOLO),
        wg.with_input_class(wg.PadsTakeFreeSlots),
        "B192",
    ),
    Mutant(
        "padding_repeats_the_last_row",
        "Padding points at the last row's slot.",
        (PADDING, SOLO),
        wg.with_input_class(wg.PadsRepeatTheLast),
        "B193",
    ),
    Mutant(
        "padding_is_slot_zero",
        "Padding points at slot 0.",
        (PADDING,),
        wg.with_input_class(wg.PadsAreSlotZero),
        "B194",
    ),
    Mutant(
        "pointers_of_a_per_step_buffer",
        "The graph reads addresses made for one step.",
        (SOLO, EVENTS),
        wg.with_input_class(wg.PerStepPointers),
        "B198",
    ),
    Mutant(
        "pointers_written_once",
        "The input's addresses are not written again.",
        (SOLO, EVENTS),
        wg.with_input_class(wg.stale_inputs("pointers")),
        "B200",
    ),
    Mutant(
        "positions_written_once",
        "The input's positions are not written again.",
        (SOLO, DRIFT),
        wg.with_input_class(wg.stale_inputs("positions")),
        "B202",
    ),
    Mutant(
        "lengths_written_once",
        "The input's lengths are not written again.",
        (SOLO, DRIFT),
        wg.with_input_class(wg.stale_inputs("lengths")),
    ),
    Mutant(
        "tokens_written_once",
        "The input's tokens are not written again.",
        (SOLO, DRIFT),
        wg.with_input_class(wg.stale_inputs("tokens")),
    ),
    Mutant(
        "key_without_lengths",
        "A graph is kept for every length.",
        (GROWTH,),
        wg.with_coarse_key(reach=128),
        "B203",
    ),
    Mutant(
        "key_with_the_first_rows_length",
        "A graph has room for the first row's length.",
        (GROWTH,),
        wg.with_graph_class(wg.ReachesTheFirstRow),
    ),
    Mutant(
        "key_with_the_first_steps_length",
        "A run's graph has room for its first step.",
        (GREEDY,),
        wg.with_graph_class(wg.ReachesTheFirstStep),
    ),
    Mutant(
        "key_without_the_table",
        "Models with other rotary tables share a graph.",
        (KEY,),
        wg.with_coarse_key(rope=0),
    ),
    Mutant(
        "key_without_the_model", "Two models share a graph.", (KEY,), wg.with_coarse_key(model=0)
    ),
    Mutant(
        "key_without_the_path",
        "Paths with other ops share a graph.",
        (KEY,),
        wg.with_coarse_key(path=None),
    ),
    Mutant(
        "key_without_the_kind_of_run",
        "A greedy run and a step share a graph.",
        (GREEDY,),
        wg.with_coarse_key(greedy=True),
    ),
    Mutant(
        "capture_takes_live_rows",
        "The warm run advances the rows of the step.",
        (CAPTURE, SOLO),
        wg.with_graph_class(wg.CapturesLiveRows),
        "B206",
    ),
    Mutant(
        "capture_reseeds",
        "A capture sets the generator's seed.",
        (CAPTURE,),
        wg.with_graph_class(wg.Reseeds),
    ),
    Mutant(
        "capture_at_every_step",
        "No graph is ever replayed twice.",
        (MEMORY,),
        wg.with_graph_class(wg.CapturesEveryStep),
    ),
    Mutant(
        "logits_in_the_graphs_buffer",
        "The next replay overwrites what was returned.",
        (REPEATS,),
        wg.with_graph_class(wg.HandsOutItsBuffer),
    ),
    Mutant(
        "two_buffers_take_turns",
        "What a step returned is overwritten by the next but one.",
        (REPEATS,),
        wg.with_graph_class(wg.RingOfBuffers),
    ),
    Mutant(
        "never_replays",
        "Graphs are claimed and never used.",
        (SOLO, GREEDY),
        wg.with_graph_class(wg.NeverReplays),
    ),
    Mutant(
        "failure_reaches_the_caller",
        "A refused capture ends the step.",
        (FAILED_CAPTURE,),
        wg.with_graph_class(wg.RaisesTheFailure),
    ),
    Mutant(
        "failure_is_tried_again",
        "A refused capture is tried at every step.",
        (FAILED_CAPTURE,),
        wg.with_graph_class(wg.TriesAgain),
    ),
    Mutant(
        "padding_advances",
        "Padding moves on in its slot of one token.",
        (GREEDY,),
        wg.with_input_class(wg.AdvancesPadding),
    ),
    Mutant(
        "token_not_fed_back",
        "Every step of a run feeds the first token.",
        (GREEDY,),
        wg.with_input_class(wg.KeepsTokens),
    ),
    Mutant(
        "lengths_do_not_advance",
        "Every step of a run writes the same KV row.",
        (GREEDY,),
        wg.with_input_class(wg.KeepsLengths),
    ),
    Mutant(
        "positions_advance_twice",
        "A run turns by two positions a step.",
        (GREEDY,),
        wg.with_input_class(wg.AdvancesTwice),
    ),
    Mutant(
        "nan_is_a_token",
        "A row with NaN gets a token.",
        (GREEDY_REFUSALS,),
        wg.with_graph_class(wg.TakesNaN),
    ),
    Mutant(
        "runs_are_not_checked",
        "A run is checked a step at a time, under way.",
        (GREEDY_REFUSALS,),
        wg.with_unchecked_runs,
    ),
    Mutant(
        "graphs_kept_without_end",
        "No graph is ever dropped.",
        (MEMORY,),
        wg.with_graph_class(wg.KeepsAll),
    ),
    Mutant(
        "newest_graph_dropped",
        "The graph in use is dropped first.",
        (MEMORY,),
        wg.with_graph_class(wg.DropsTheNewest),
    ),
    Mutant(
        "chunks_are_replayed",
        "A chunk goes through the graph of one token.",
        (EVENTS,),
        wg.with_graph_class(wg.ReplaysChunks),
    ),
    Mutant(
        "sink_is_ignored",
        "A traced step replays a graph.",
        (TRACING,),
        wg.with_graph_class(wg.IgnoresTheSink),
    ),
)
