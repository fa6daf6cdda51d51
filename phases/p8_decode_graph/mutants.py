"""Wrong graphs, each with one fault, and the falsifiers that must kill it."""

from __future__ import annotations

from falsifiers.subject import Mutant
from phases.p8_decode_graph import wrong_graphs as wg

SINGLE, EVENTS, GROWTH = "graph_equals_single", "events_change_nothing", "growth_past_a_bucket"
PADDING, PURE, REPEATS = "padding_has_no_effect", "capture_is_pure", "replays_are_repeatable"
DRIFT, KEY = "drift_over_many_replays", "key_holds_what_changes_launches"
FAILED, GREEDY = "failed_capture_is_survived", "greedy_runs_equal_steps"
REFUSE, MEMORY, TRACED = "greedy_runs_refuse", "memory_is_bounded", "traced_steps_report"

MUTANTS = (
    Mutant("padding_keeps_old_pointers", "Padding points where an earlier step's rows were.",
           (PADDING,), wg.inputs(wg.KeepsOldPointers), "B191"),
    Mutant("padding_takes_a_free_looking_slot", "Padding points at slots that the step leaves out.",
           (PADDING, SINGLE), wg.inputs(wg.PadsTakeFreeSlots), "B192"),
    Mutant("padding_repeats_the_last_row", "Padding points at the last row's slot.",
           (PADDING, SINGLE), wg.inputs(wg.PadsRepeatTheLast), "B193"),
    Mutant("padding_is_slot_zero", "Padding points at slot 0.", (PADDING,),
           wg.inputs(wg.PadsAreSlotZero), "B194"),
    Mutant("pointers_of_a_per_step_buffer", "The graph reads addresses made for one step.",
           (SINGLE, EVENTS), wg.inputs(wg.PerStepPointers), "B198"),
    Mutant("pointers_written_once", "The input's addresses are not written again.",
           (SINGLE, EVENTS), wg.inputs(wg.stale("pointers")), "B200"),
    Mutant("positions_written_once", "The input's positions are not written again.",
           (SINGLE, DRIFT), wg.inputs(wg.stale("positions")), "B202"),
    Mutant("lengths_written_once", "The input's lengths are not written again.", (SINGLE, DRIFT),
           wg.inputs(wg.stale("lengths"))),
    Mutant("tokens_written_once", "The input's tokens are not written again.", (SINGLE, DRIFT),
           wg.inputs(wg.stale("tokens"))),
    Mutant("key_without_lengths", "A graph is kept for every length.", (GROWTH,),
           wg.key(reach=128), "B203"),
    Mutant("key_without_the_model", "Two models share a graph.", (KEY,), wg.key(model=0)),
    Mutant("key_without_the_path", "Paths with other ops share a graph.", (KEY,),
           wg.key(path=None)),
    Mutant("key_without_the_kind_of_run", "A greedy run and a step share a graph.", (GREEDY,),
           wg.key(greedy=True)),
    Mutant("capture_takes_live_rows", "The warm run advances the rows of the step.",
           (PURE, SINGLE), wg.graphs(wg.CapturesLiveRows), "B206"),
    Mutant("capture_reseeds", "A capture sets the generator's seed.", (PURE,),
           wg.graphs(wg.Reseeds)),
    Mutant("capture_at_every_step", "No graph is ever replayed twice.", (MEMORY,),
           wg.graphs(wg.CapturesEveryStep)),
    Mutant("logits_in_the_graphs_buffer", "The next replay overwrites what was returned.",
           (REPEATS,), wg.graphs(wg.HandsOutItsBuffer)),
    Mutant("two_buffers_take_turns", "What a step returned is overwritten by the next but one.",
           (REPEATS,), wg.graphs(wg.RingOfBuffers)),
    Mutant("never_replays", "Graphs are claimed and never used.", (SINGLE, GREEDY),
           wg.graphs(wg.NeverReplays)),
    Mutant("failure_reaches_the_caller", "A refused capture ends the step.", (FAILED,),
           wg.graphs(wg.RaisesTheFailure)),
    Mutant("failure_is_tried_again", "A refused capture is tried at every step.", (FAILED,),
           wg.graphs(wg.TriesAgain)),
    Mutant("padding_advances", "Padding moves on in its slot of one token.", (GREEDY,),
           wg.inputs(wg.AdvancesPadding)),
    Mutant("token_not_fed_back", "Every step of a run feeds the first token.", (GREEDY,),
           wg.inputs(wg.KeepsTokens)),
    Mutant("lengths_do_not_advance", "Every step of a run writes the same KV row.", (GREEDY,),
           wg.inputs(wg.KeepsLengths)),
    Mutant("positions_advance_twice", "A run turns by two positions a step.", (GREEDY,),
           wg.inputs(wg.AdvancesTwice)),
    Mutant("nan_is_a_token", "A row with NaN gets a token.", (REFUSE,), wg.graphs(wg.TakesNaN)),
    Mutant("runs_are_not_checked", "A run is checked a step at a time, under way.", (REFUSE,),
           wg.unchecked),
    Mutant("graphs_kept_without_end", "No graph is ever dropped.", (MEMORY,),
           wg.graphs(wg.KeepsAll)),
    Mutant("newest_graph_dropped", "The graph in use is dropped first.", (MEMORY,),
           wg.graphs(wg.DropsTheNewest)),
    Mutant("chunks_are_replayed", "A chunk goes through the graph of one token.", (EVENTS,),
           wg.graphs(wg.ReplaysChunks)),
    Mutant("sink_is_ignored", "A traced step replays a graph.", (TRACED,),
           wg.graphs(wg.IgnoresTheSink)),
)
