"""The faults planted in P0: each a wrong part of the stack, and the falsifiers that kill it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from falsifiers.judging.subject import Mutant, Subject
from phases.p0_scheduler import wrong_recovery as recovery
from phases.p0_scheduler import wrong_running as running
from phases.p0_scheduler import wrong_seating as seating
from phases.p0_scheduler.engine_loop import Driver
from phases.p0_scheduler.scheduler import Scheduler


def _with(part: type[Scheduler] | type[Driver]) -> Callable[[Subject], Subject]:
    """Return a builder that puts a wrong part into the subject's stack."""
    field = "driver" if issubclass(part, Driver) else "scheduler"
    return lambda subject: replace(subject, stack=replace(subject.stack, **{field: part}))


def _wrong(part: type[Scheduler] | type[Driver], *killers: str, source: str = "") -> Mutant:
    """Return the mutant of a wrong part, which is named and explained by its class."""
    name = re.sub(r"(?<=.)([A-Z])", r"_\1", part.__name__).lower()
    return Mutant(name, (part.__doc__ or "").strip(), killers, _with(part), source)


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
    _wrong(seating.ReleasesOnlyThisStepsRows, ABORTS, CANCEL, HISTORIES, DRAIN, source="B002"),
    _wrong(seating.CancelsOnlyWhoDecodes, CANCEL, ABORTS, ENDINGS, source="B004"),
    _wrong(seating.SlotByNumber, SLOTS, ENDINGS, source="B006"),
    _wrong(seating.FreesAStoppedRowTwice, ENDINGS, source="B008"),
    _wrong(seating.ReleasesBeforeReading, READ, ENDINGS, source="B012"),
    _wrong(running.PrefillFirst, DECODE, TIMES, source="B014"),
    _wrong(seating.PrefillsBeforeAdmitting, PREFILL, TIMES, ORDER, source="B015"),
    _wrong(running.DeadlineByBatchStep, BUDGETS, TIMES, source="B016"),
    _wrong(running.OneForwardTooMany, BUDGETS, TIMES, source="B019"),
    _wrong(running.AppendsUntilTheLastEnds, STOPS, SLOTS, source="B021"),
    _wrong(running.FirstStopIdOnly, STOPS, SLOTS, source="B022"),
    _wrong(running.NoStopOnThePrefillToken, STOPS, ENDINGS, source="B022"),
    _wrong(seating.NoParallelForThisModel, BATCH, TIMES, source="B024"),
    _wrong(seating.PaddingTakesASlot, BATCH, TIMES, source="B025"),
    _wrong(running.StepsRowByRow, BATCH, source="B027"),
    _wrong(recovery.DeliversToTheLastCaller, THREADS, source="B042"),
    _wrong(seating.CancelsOnlyWhoIsSeated, CANCEL, READ, HISTORIES),
    _wrong(seating.CancelTellsNobody, CANCEL),
    _wrong(seating.CancelIsTakenTwice, CANCEL, HISTORIES),
    _wrong(seating.StopKeepsItsSlot, SLOTS, ENDINGS, STOPS),
    _wrong(seating.DisconnectFreesTwice, ENDINGS, ABORTS),
    _wrong(seating.NewestFirst, ORDER, TIMES),
    _wrong(seating.ShortestFirst, ORDER, TIMES),
    _wrong(seating.WaitsForTheBatchToEnd, ORDER, TIMES, PREFILL),
    _wrong(seating.OneSeatAStep, BATCH, ORDER),
    _wrong(seating.SeatsWhoWasCancelled, READ),
    _wrong(seating.QueueWithoutBound, QUEUE),
    _wrong(seating.BoundForgetsFreeSlots, QUEUE),
    _wrong(seating.RefusedRequestStays, QUEUE),
    _wrong(seating.ContextIsNotChecked, BAD),
    _wrong(seating.LastTokenNeedsRoom, BAD),
    _wrong(seating.SameIdReplaces, BAD),
    _wrong(seating.ComputesReusedTokensAgain, REUSED),
    _wrong(seating.TellsNoReuse, REUSED),
    _wrong(running.OnePromptAtATime, PREFILL, TIMES),
    _wrong(running.ChunkIsHalved, TIMES, PREFILL),
    _wrong(running.StopsForAll, STOPS),
    _wrong(running.SwallowsTheStopToken, STOPS, SLOTS),
    _wrong(running.EosIsAlwaysAStop, STOPS),
    _wrong(running.LengthBeatsStop, STOPS),
    _wrong(running.ZipsAnswersWithRows, SLOTS, TIMES, ENDINGS),
    _wrong(running.TokenAfterCancel, READ, ENDINGS),
    _wrong(running.LogsOnlyAboveOne, BATCH),
    _wrong(running.LogsRequestsNotRows, BATCH),
    _wrong(running.SaysAWidthOnce, BATCH),
    _wrong(running.LogsEveryStep, BATCH),
    _wrong(recovery.ErrorEndsTheWholeStep, ERRORS, ACCIDENTS, ENDINGS),
    _wrong(recovery.ErrorEndsTheOldest, ERRORS, ACCIDENTS, ENDINGS),
    _wrong(recovery.NamedRowIsIgnored, ERRORS),
    _wrong(recovery.NoReset, ERRORS, ACCIDENTS, HISTORIES),
    _wrong(recovery.GoesOnAfterTheError, ERRORS, ACCIDENTS, HISTORIES),
    _wrong(recovery.ReplayIsHandedOut, ERRORS, ACCIDENTS),
    _wrong(recovery.ReplayIsForgotten, ERRORS, ACCIDENTS),
    _wrong(recovery.FailedStartEndsAll, ERRORS, ACCIDENTS),
    _wrong(recovery.FailedJoinResets, ERRORS),
    _wrong(recovery.FailedReleaseIsIgnored, ACCIDENTS),
    _wrong(recovery.ResetErrorEscapes, DEAD),
    _wrong(recovery.ResetErrorIsIgnored, DEAD),
    _wrong(recovery.DrainDropsTheQueue, DRAIN),
    _wrong(recovery.DrainTakesMore, DRAIN, DEAD),
    _wrong(recovery.CleansUpTwice, DRAIN),
    _wrong(recovery.AbortSparesTheQueue, DRAIN),
    _wrong(recovery.ReleasesOnTheCallersThread, THREADS),
    _wrong(recovery.ForgetsWhoCameWhileBusy, THREADS),
)
