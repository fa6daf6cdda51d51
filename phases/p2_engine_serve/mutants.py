"""The faults planted in P2: each a wrong part of the stack, and the falsifiers that kill it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from falsifiers.judging.subject import Mutant, Subject
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


def _build_with(part: type) -> Callable[[Subject], Subject]:
    """Return a builder that puts a wrong part into the subject's stack."""
    (field,) = [name for kind, name in STACK_FIELDS.items() if issubclass(part, kind)]
    return lambda subject: replace(subject, stack=replace(subject.stack, **{field: part}))


def _make_mutant(part: type, *killers: str, source: str = "") -> Mutant:
    """Return the mutant of a wrong part, which is named and explained by its class."""
    name = re.sub(r"(?<=.)([A-Z])", r"_\1", part.__name__).lower()
    return Mutant(name, (part.__doc__ or "").strip(), killers, _build_with(part), source)


SERIAL = "replies_equal_serial"
BATCH = "batches_form_over_http"
ROWS = "rows_are_drawn_alone"
DRAWS = "draws_follow_their_options"
TURN = "one_live_request_keeps_its_turn"
STOPS = "stop_strings_cut_whole_texts"
WHOLE = "streams_show_whole_characters"
ENDINGS = "replies_end_for_their_own_reason"
BAD = "bad_requests_are_refused_by_field"
STRANGERS = "strangers_stay_outside"
FULL = "a_full_queue_answers_429"
GONE = "disconnects_free_their_slots"
HANDLERS = "handlers_never_wait_for_a_step"
ERRORS = "engine_errors_reach_every_client"
HOSTILE = "hostile_templates_are_refused"
CHATS = "chats_follow_the_template"
DRAIN = "shutdown_drains"
MEMORY = "memory_has_a_budget"

MUTANTS: tuple[Mutant, ...] = (
    _make_mutant(replies.PendingIsPoppedForAll, ENDINGS, source="B041"),
    _make_mutant(rows.AnswersTheNeighbour, ROWS, SERIAL, source="B042"),
    _make_mutant(rows.LogitsOfOneRow, ROWS, source="B044"),
    _make_mutant(rows.GreedyForEveryone, ROWS, DRAWS, source="B045"),
    _make_mutant(rows.FirstRowsOptions, ROWS, source="B046"),
    _make_mutant(rows.PlainRowsTakeNoPlace, ROWS, source="B030"),
    _make_mutant(rows.CountsFallShortOfRows, ROWS, source="B031"),
    _make_mutant(rows.TopKIsDropped, ROWS, DRAWS, source="B047"),
    _make_mutant(serving.ChatIgnoresStops, STOPS, source="B049"),
    _make_mutant(replies.MatchesEachTokenAlone, STOPS, source="B050"),
    _make_mutant(serving.ReturnsEarlyForOne, BATCH),
    _make_mutant(serving.OneRequestAtATime, BATCH),
    _make_mutant(serving.LocksTheStep, HANDLERS),
    _make_mutant(rows.LoopsOverRows, BATCH),
    _make_mutant(rows.TopPIsDropped, DRAWS),
    _make_mutant(rows.SeedOfTheRow, ROWS),
    _make_mutant(rows.NumberOfTheBatch, ROWS),
    _make_mutant(rows.OneGeneratorForAll, ROWS),
    _make_mutant(rows.NeighboursLogprobs, DRAWS, ROWS),
    _make_mutant(rows.LogprobsAfterTemperature, DRAWS),
    _make_mutant(rows.DropsTheOddTie, DRAWS),
    _make_mutant(rows.SlotIsNotCleared, TURN),
    _make_mutant(rows.NeverGoesOn, TURN),
    _make_mutant(rows.GoesOnByLength, TURN),
    _make_mutant(rows.GoesOnInCompany, TURN),
    _make_mutant(rows.TurnSurvivesErrors, TURN),
    _make_mutant(replies.CachedIsNotTold, TURN),
    _make_mutant(rows.BudgetForgetsKeys, MEMORY),
    _make_mutant(rows.TokensAreNotChecked, MEMORY),
    _make_mutant(rows.ChecksWhileSeating, MEMORY),
    _make_mutant(rows.ResetKeepsSlots, ERRORS),
    _make_mutant(rows.MemoryIsKept, DRAIN),
    _make_mutant(replies.ShowsBeforeDeciding, STOPS),
    _make_mutant(replies.LosesHeldText, STOPS),
    _make_mutant(replies.FirstListedStopCuts, STOPS),
    _make_mutant(replies.StopIsShown, STOPS),
    _make_mutant(replies.RestartsAfterAMiss, STOPS),
    _make_mutant(replies.GoesOnBehindAStop, STOPS),
    _make_mutant(replies.LengthBeatsStop, STOPS),
    _make_mutant(replies.DecodesTokenByToken, WHOLE),
    _make_mutant(replies.EndIsLost, WHOLE),
    _make_mutant(replies.EosIsLength, ENDINGS),
    _make_mutant(replies.EndTokenIsNotCounted, ENDINGS),
    _make_mutant(replies.LongestPromptCounts, ENDINGS),
    _make_mutant(serving.UsageOfAStreamMissesTheLast, ENDINGS),
    _make_mutant(serving.EndTokensAreIgnored, ENDINGS),
    _make_mutant(serving.EndTokensAlwaysEnd, ENDINGS),
    _make_mutant(serving.SeedOfTheFirst, SERIAL),
    _make_mutant(serving.SeedIsIgnored, SERIAL),
    _make_mutant(serving.MetricsCountRequests, BATCH),
    _make_mutant(serving.UnknownFieldsAreDropped, BAD),
    _make_mutant(serving.NumbersMayBeText, BAD),
    _make_mutant(serving.OnlyAnnouncedSizesCount, BAD),
    _make_mutant(serving.LimitIsNotChecked, BAD),
    _make_mutant(serving.LongTextsAreEncoded, BAD),
    _make_mutant(serving.KeyByItsBeginning, STRANGERS),
    _make_mutant(serving.ChatHasNoDoor, STRANGERS),
    _make_mutant(serving.FullQueueIsAFault, FULL),
    _make_mutant(serving.NoWordOfLater, FULL),
    _make_mutant(serving.QueueTakesOneMore, FULL),
    _make_mutant(replies.DisconnectIsForgotten, GONE),
    _make_mutant(replies.DisconnectEndsTheNewest, GONE),
    _make_mutant(serving.WholeRepliesAreNotWatched, GONE),
    _make_mutant(serving.LeavesSlotsOfTheGone, GONE),
    _make_mutant(serving.RepliesAreKept, GONE),
    _make_mutant(replies.ErrorsAreSilent, ERRORS),
    _make_mutant(replies.ErrorsLookFinished, ERRORS),
    _make_mutant(serving.StreamsHideErrors, ERRORS),
    _make_mutant(templates.TemplateWithoutASandbox, HOSTILE),
    _make_mutant(templates.OneChatRefusesAll, HOSTILE),
    _make_mutant(templates.TemplateIsTriedAgain, HOSTILE),
    _make_mutant(templates.TemplateIsCachedByLength, CHATS),
    _make_mutant(templates.LastMessageOnly, CHATS),
    _make_mutant(serving.ShutdownCancels, DRAIN),
)
