"""The faults planted in P2: each a wrong part of the stack, and the falsifiers that kill it."""

from __future__ import annotations

from dataclasses import replace

from falsifiers.judging.subject import Builder, mutant_id
from phases.p0_scheduler.increment import EngineLoop, Scheduler
from phases.p2_engine_serve import wrong_replies as replies
from phases.p2_engine_serve import wrong_rows as rows
from phases.p2_engine_serve import wrong_serving as serving
from phases.p2_engine_serve import wrong_templates as templates
from phases.p2_engine_serve.api import Api
from phases.p2_engine_serve.hybrid_engine import HybridEngine
from phases.p2_engine_serve.request_stream import Reply
from phases.p2_engine_serve.service import Service
from phases.p2_engine_serve.stop_text import StreamedText
from phases.p2_engine_serve.template import Template

STACK_FIELDS = {
    EngineLoop: "driver",
    Scheduler: "scheduler",
    HybridEngine: "engine",
    StreamedText: "text",
    Reply: "reply",
    Service: "service",
    Api: "api",
    Template: "template",
}


def _build_with(part: type) -> Builder:
    """Return a builder that puts a wrong part into the subject's stack."""
    (field,) = [name for kind, name in STACK_FIELDS.items() if issubclass(part, kind)]
    return lambda subject: replace(subject, stack=replace(subject.stack, **{field: part}))


WRONG_PARTS = (
    replies.PendingIsPoppedForAll, rows.AnswersTheNeighbour, rows.LogitsOfOneRow,
    rows.GreedyForEveryone, rows.FirstRowsOptions, rows.PlainRowsTakeNoPlace,
    rows.CountsFallShortOfRows, rows.TopKIsDropped, serving.ChatIgnoresStops,
    replies.MatchesEachTokenAlone, serving.ReturnsEarlyForOne, serving.OneRequestAtATime,
    serving.LocksTheStep, rows.LoopsOverRows, rows.TopPIsDropped, rows.SeedOfTheRow,
    rows.NumberOfTheBatch, rows.OneGeneratorForAll, rows.NeighboursLogprobs,
    rows.LogprobsAfterTemperature, rows.DropsTheOddTie, rows.SlotIsNotCleared, rows.NeverGoesOn,
    rows.GoesOnByLength, rows.GoesOnInCompany, rows.TurnSurvivesErrors, replies.CachedIsNotTold,
    rows.BudgetForgetsKeys, rows.TokensAreNotChecked, rows.ChecksWhileSeating,
    rows.ResetKeepsSlots, rows.MemoryIsKept, replies.ShowsBeforeDeciding, replies.LosesHeldText,
    replies.FirstListedStopCuts, replies.StopIsShown, replies.RestartsAfterAMiss,
    replies.GoesOnBehindAStop, replies.LengthBeatsStop, replies.DecodesTokenByToken,
    replies.EndIsLost, replies.EosIsLength, replies.EndTokenIsNotCounted,
    replies.LongestPromptCounts, serving.UsageOfAStreamMissesTheLast,
    serving.EndTokensAreIgnored, serving.EndTokensAlwaysEnd, serving.SeedOfTheFirst,
    serving.SeedIsIgnored, serving.MetricsCountRequests, serving.UnknownFieldsAreDropped,
    serving.NumbersMayBeText, serving.OnlyAnnouncedSizesCount, serving.LimitIsNotChecked,
    serving.LongTextsAreEncoded, serving.KeyByItsBeginning, serving.ChatHasNoDoor,
    serving.FullQueueIsAFault, serving.NoWordOfLater, serving.QueueTakesOneMore,
    replies.DisconnectIsForgotten, replies.DisconnectEndsTheNewest,
    serving.WholeRepliesAreNotWatched, serving.LeavesSlotsOfTheGone, serving.RepliesAreKept,
    replies.ErrorsAreSilent, replies.ErrorsLookFinished, serving.StreamsHideErrors,
    templates.TemplateWithoutASandbox, templates.OneChatRefusesAll,
    templates.TemplateIsTriedAgain, templates.TemplateIsCachedByLength,
    templates.LastMessageOnly, serving.ShutdownCancels,
)
MUTANTS: dict[str, Builder] = {
    **{mutant_id(part): _build_with(part) for part in WRONG_PARTS},
}
