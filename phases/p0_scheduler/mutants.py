"""The faults planted in P0: each a wrong part of the stack, and the falsifiers that kill it."""

from __future__ import annotations

from dataclasses import replace

from falsifiers.judging.subject import Builder, mutant_id
from phases.p0_scheduler import wrong_recovery as recovery
from phases.p0_scheduler import wrong_running as running
from phases.p0_scheduler import wrong_seating as seating
from phases.p0_scheduler.engine_loop import EngineLoop
from phases.p0_scheduler.scheduler import Scheduler


def _build_with(part: type[Scheduler] | type[EngineLoop]) -> Builder:
    """Return a builder that puts a wrong part into the subject's stack."""
    field = "driver" if issubclass(part, EngineLoop) else "scheduler"
    return lambda subject: replace(subject, stack=replace(subject.stack, **{field: part}))


WRONG_PARTS = (
    seating.ReleasesOnlyThisStepsRows, seating.CancelsOnlyWhoDecodes, seating.SlotByNumber,
    seating.FreesAStoppedRowTwice, seating.ReleasesBeforeReading, running.PrefillFirst,
    seating.PrefillsBeforeAdmitting, running.DeadlineByBatchStep, running.OneForwardTooMany,
    running.AppendsUntilTheLastEnds, running.FirstStopIdOnly, running.NoStopOnThePrefillToken,
    seating.NoParallelForThisModel, seating.PaddingTakesASlot, running.StepsRowByRow,
    recovery.DeliversToTheLastCaller, seating.CancelsOnlyWhoIsSeated, seating.CancelTellsNobody,
    seating.CancelIsTakenTwice, seating.StopKeepsItsSlot, seating.DisconnectFreesTwice,
    seating.NewestFirst, seating.ShortestFirst, seating.WaitsForTheBatchToEnd,
    seating.OneSeatAStep, seating.SeatsWhoWasCancelled, seating.QueueWithoutBound,
    seating.BoundForgetsFreeSlots, seating.RefusedRequestStays, seating.ContextIsNotChecked,
    seating.LastTokenNeedsRoom, seating.SameIdReplaces, seating.ComputesReusedTokensAgain,
    seating.TellsNoReuse, running.OnePromptAtATime, running.ChunkIsHalved, running.StopsForAll,
    running.SwallowsTheStopToken, running.EosIsAlwaysAStop, running.LengthBeatsStop,
    running.ZipsAnswersWithRows, running.TokenAfterCancel, running.LogsOnlyAboveOne,
    running.LogsRequestsNotRows, running.SaysAWidthOnce, running.LogsEveryStep,
    recovery.ErrorEndsTheWholeStep, recovery.ErrorEndsTheOldest, recovery.NamedRowIsIgnored,
    recovery.NoReset, recovery.GoesOnAfterTheError, recovery.ReplayIsHandedOut,
    recovery.ReplayIsForgotten, recovery.FailedStartEndsAll, recovery.FailedJoinResets,
    recovery.FailedReleaseIsIgnored, recovery.ResetErrorEscapes, recovery.ResetErrorIsIgnored,
    recovery.DrainDropsTheQueue, recovery.DrainTakesMore, recovery.CleansUpTwice,
    recovery.AbortSparesTheQueue, recovery.ReleasesOnTheCallersThread,
    recovery.ForgetsWhoCameWhileBusy,
)
MUTANTS: dict[str, Builder] = {
    **{mutant_id(part): _build_with(part) for part in WRONG_PARTS},
}
