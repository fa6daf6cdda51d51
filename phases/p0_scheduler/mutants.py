"""The faults planted in P0: each a wrong part of the stack, and the falsifiers that kill it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from falsifiers.judging.subject import Mutant, Subject
from phases.p0_scheduler import wrong_recovery as recovery
from phases.p0_scheduler import wrong_running as running
from phases.p0_scheduler import wrong_seating as seating
from phases.p0_scheduler.engine_loop import EngineLoop
from phases.p0_scheduler.scheduler import Scheduler


def _build_with(part: type[Scheduler] | type[EngineLoop]) -> Callable[[Subject], Subject]:
    """Return a builder that puts a wrong part into the subject's stack."""
    field = "driver" if issubclass(part, EngineLoop) else "scheduler"
    return lambda subject: replace(subject, stack=replace(subject.stack, **{field: part}))


def _make_mutant(
    part: type[Scheduler] | type[EngineLoop], *killers: str, source: str = ""
) -> Mutant:
    """Return the mutant of a wrong part, which is named and explained by its class."""
    name = re.sub(r"(?<=.)([A-Z])", r"_\1", part.__name__).lower()
    return Mutant(name, (part.__doc__ or "").strip(), killers, _build_with(part), source)


BATCH = "batch_forms_at_every_width"
SLOTS = "slots_are_conserved_and_never_shared"
ABORTS = "aborts_leak_no_slot"
ENDINGS = "every_ending_releases_once"
HISTORIES = "random_histories_keep_every_law"
READ = "reuse_waits_for_the_step_to_be_read"
BUDGETS = "token_budgets_are_exact"
TIMES = "finish_times_equal_solo"
DECODE = "decode_never_waits_for_prefill"
PREFILL = "prefill_never_waits_for_others"
ORDER = "admission_is_first_come_first_served"
CANCEL = "cancel_ends_at_every_stage"
ERRORS = "errors_stay_with_their_request"
ACCIDENTS = "accidents_cost_nobody_a_token"
DEAD = "a_dead_engine_ends_everyone_clearly"
QUEUE = "a_full_queue_refuses_and_keeps_others"
STOPS = "stops_are_each_requests_own"
BAD = "bad_requests_change_nothing"
DRAIN = "drain_serves_what_was_accepted"
REUSED = "reused_tokens_are_skipped"
THREADS = "threads_get_their_own_streams"

MUTANTS: tuple[Mutant, ...] = (
    _make_mutant(
        seating.ReleasesOnlyThisStepsRows, ABORTS, CANCEL, HISTORIES, DRAIN, source="B002"
    ),
    _make_mutant(seating.CancelsOnlyWhoDecodes, CANCEL, ABORTS, ENDINGS, source="B004"),
    _make_mutant(seating.SlotByNumber, SLOTS, ENDINGS, source="B006"),
    _make_mutant(seating.FreesAStoppedRowTwice, ENDINGS, source="B008"),
    _make_mutant(seating.ReleasesBeforeReading, READ, ENDINGS, source="B012"),
    _make_mutant(running.PrefillFirst, DECODE, TIMES, source="B014"),
    _make_mutant(seating.PrefillsBeforeAdmitting, PREFILL, TIMES, ORDER, source="B015"),
    _make_mutant(running.DeadlineByBatchStep, BUDGETS, TIMES, source="B016"),
    _make_mutant(running.OneForwardTooMany, BUDGETS, TIMES, source="B019"),
    _make_mutant(running.AppendsUntilTheLastEnds, STOPS, SLOTS, source="B021"),
    _make_mutant(running.FirstStopIdOnly, STOPS, SLOTS, source="B022"),
    _make_mutant(running.NoStopOnThePrefillToken, STOPS, ENDINGS, source="B022"),
    _make_mutant(seating.NoParallelForThisModel, BATCH, TIMES, source="B024"),
    _make_mutant(seating.PaddingTakesASlot, BATCH, TIMES, source="B025"),
    _make_mutant(running.StepsRowByRow, BATCH, source="B027"),
    _make_mutant(recovery.DeliversToTheLastCaller, THREADS, source="B042"),
    _make_mutant(seating.CancelsOnlyWhoIsSeated, CANCEL, READ, HISTORIES),
    _make_mutant(seating.CancelTellsNobody, CANCEL),
    _make_mutant(seating.CancelIsTakenTwice, CANCEL, HISTORIES),
    _make_mutant(seating.StopKeepsItsSlot, SLOTS, ENDINGS, STOPS),
    _make_mutant(seating.DisconnectFreesTwice, ENDINGS, ABORTS),
    _make_mutant(seating.NewestFirst, ORDER, TIMES),
    _make_mutant(seating.ShortestFirst, ORDER, TIMES),
    _make_mutant(seating.WaitsForTheBatchToEnd, ORDER, TIMES, PREFILL),
    _make_mutant(seating.OneSeatAStep, BATCH, ORDER),
    _make_mutant(seating.SeatsWhoWasCancelled, READ),
    _make_mutant(seating.QueueWithoutBound, QUEUE),
    _make_mutant(seating.BoundForgetsFreeSlots, QUEUE),
    _make_mutant(seating.RefusedRequestStays, QUEUE),
    _make_mutant(seating.ContextIsNotChecked, BAD),
    _make_mutant(seating.LastTokenNeedsRoom, BAD),
    _make_mutant(seating.SameIdReplaces, BAD),
    _make_mutant(seating.ComputesReusedTokensAgain, REUSED),
    _make_mutant(seating.TellsNoReuse, REUSED),
    _make_mutant(running.OnePromptAtATime, PREFILL, TIMES),
    _make_mutant(running.ChunkIsHalved, TIMES, PREFILL),
    _make_mutant(running.StopsForAll, STOPS),
    _make_mutant(running.SwallowsTheStopToken, STOPS, SLOTS),
    _make_mutant(running.EosIsAlwaysAStop, STOPS),
    _make_mutant(running.LengthBeatsStop, STOPS),
    _make_mutant(running.ZipsAnswersWithRows, SLOTS, TIMES, ENDINGS),
    _make_mutant(running.TokenAfterCancel, READ, ENDINGS),
    _make_mutant(running.LogsOnlyAboveOne, BATCH),
    _make_mutant(running.LogsRequestsNotRows, BATCH),
    _make_mutant(running.SaysAWidthOnce, BATCH),
    _make_mutant(running.LogsEveryStep, BATCH),
    _make_mutant(recovery.ErrorEndsTheWholeStep, ERRORS, ACCIDENTS, ENDINGS),
    _make_mutant(recovery.ErrorEndsTheOldest, ERRORS, ACCIDENTS, ENDINGS),
    _make_mutant(recovery.NamedRowIsIgnored, ERRORS),
    _make_mutant(recovery.NoReset, ERRORS, ACCIDENTS, HISTORIES),
    _make_mutant(recovery.GoesOnAfterTheError, ERRORS, ACCIDENTS, HISTORIES),
    _make_mutant(recovery.ReplayIsHandedOut, ERRORS, ACCIDENTS),
    _make_mutant(recovery.ReplayIsForgotten, ERRORS, ACCIDENTS),
    _make_mutant(recovery.FailedStartEndsAll, ERRORS, ACCIDENTS),
    _make_mutant(recovery.FailedJoinResets, ERRORS),
    _make_mutant(recovery.FailedReleaseIsIgnored, ACCIDENTS),
    _make_mutant(recovery.ResetErrorEscapes, DEAD),
    _make_mutant(recovery.ResetErrorIsIgnored, DEAD),
    _make_mutant(recovery.DrainDropsTheQueue, DRAIN),
    _make_mutant(recovery.DrainTakesMore, DRAIN, DEAD),
    _make_mutant(recovery.CleansUpTwice, DRAIN),
    _make_mutant(recovery.AbortSparesTheQueue, DRAIN),
    _make_mutant(recovery.ReleasesOnTheCallersThread, THREADS),
    _make_mutant(recovery.ForgetsWhoCameWhileBusy, THREADS),
)
