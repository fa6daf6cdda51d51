"""The faults planted in P2: each a wrong part of the stack, and the falsifiers that kill it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from falsifiers.judging.subject import Mutant, Subject
from phases.p0_scheduler.increment import Driver, Scheduler
from phases.p2_engine_serve import wrong_replies as replies
from phases.p2_engine_serve import wrong_rows as rows
from phases.p2_engine_serve import wrong_serving as serving
from phases.p2_engine_serve import wrong_templates as templates
from phases.p2_engine_serve.api import Api
from phases.p2_engine_serve.hybrid_engine import HybridEngine
from phases.p2_engine_serve.request_stream import Reply
from phases.p2_engine_serve.service import Service
from phases.p2_engine_serve.stop_text import Text
from phases.p2_engine_serve.template import Template

PARTS = {Driver: "driver", Scheduler: "scheduler", HybridEngine: "engine", Text: "text",
         Reply: "reply", Service: "service", Api: "api", Template: "template"}


def _with(part: type) -> Callable[[Subject], Subject]:
    """Return a builder that puts a wrong part into the subject's stack."""
    (field,) = [name for kind, name in PARTS.items() if issubclass(part, kind)]
    return lambda subject: replace(subject, stack=replace(subject.stack, **{field: part}))


def _wrong(part: type, *killers: str, source: str = "") -> Mutant:
    """Return the mutant of a wrong part, which is named and explained by its class."""
    name = re.sub(r"(?<=.)([A-Z])", r"_\1", part.__name__).lower()
    return Mutant(name, (part.__doc__ or "").strip(), killers, _with(part), source)


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
    _wrong(replies.PendingIsPoppedForAll, ENDINGS, source="B041"),
    _wrong(rows.AnswersTheNeighbour, ROWS, SERIAL, source="B042"),
    _wrong(rows.LogitsOfOneRow, ROWS, source="B044"),
    _wrong(rows.GreedyForEveryone, ROWS, DRAWS, source="B045"),
    _wrong(rows.FirstRowsOptions, ROWS, source="B046"),
    _wrong(rows.PlainRowsTakeNoPlace, ROWS, source="B030"),
    _wrong(rows.CountsFallShortOfRows, ROWS, source="B031"),
    _wrong(rows.TopKIsDropped, ROWS, DRAWS, source="B047"),
    _wrong(serving.ChatIgnoresStops, STOPS, source="B049"),
    _wrong(replies.MatchesEachTokenAlone, STOPS, source="B050"),
    _wrong(serving.ReturnsEarlyForOne, BATCH),
    _wrong(serving.OneRequestAtATime, BATCH),
    _wrong(serving.LocksTheStep, HANDLERS),
    _wrong(rows.LoopsOverRows, BATCH),
    _wrong(rows.TopPIsDropped, DRAWS),
    _wrong(rows.SeedOfTheRow, ROWS),
    _wrong(rows.NumberOfTheBatch, ROWS),
    _wrong(rows.OneGeneratorForAll, ROWS),
    _wrong(rows.NeighboursLogprobs, DRAWS, ROWS),
    _wrong(rows.LogprobsAfterTemperature, DRAWS),
    _wrong(rows.DropsTheOddTie, DRAWS),
    _wrong(rows.SlotIsNotCleared, TURN),
    _wrong(rows.NeverGoesOn, TURN),
    _wrong(rows.GoesOnByLength, TURN),
    _wrong(rows.GoesOnInCompany, TURN),
    _wrong(rows.TurnSurvivesErrors, TURN),
    _wrong(replies.CachedIsNotTold, TURN),
    _wrong(rows.BudgetForgetsKeys, MEMORY),
    _wrong(rows.TokensAreNotChecked, MEMORY),
    _wrong(rows.ChecksWhileSeating, MEMORY),
    _wrong(rows.ResetKeepsSlots, ERRORS),
    _wrong(rows.MemoryIsKept, DRAIN),
    _wrong(replies.ShowsBeforeDeciding, STOPS),
    _wrong(replies.LosesHeldText, STOPS),
    _wrong(replies.FirstListedStopCuts, STOPS),
    _wrong(replies.StopIsShown, STOPS),
    _wrong(replies.RestartsAfterAMiss, STOPS),
    _wrong(replies.GoesOnBehindAStop, STOPS),
    _wrong(replies.LengthBeatsStop, STOPS),
    _wrong(replies.DecodesTokenByToken, WHOLE),
    _wrong(replies.EndIsLost, WHOLE),
    _wrong(replies.EosIsLength, ENDINGS),
    _wrong(replies.EndTokenIsNotCounted, ENDINGS),
    _wrong(replies.LongestPromptCounts, ENDINGS),
    _wrong(serving.UsageOfAStreamMissesTheLast, ENDINGS),
    _wrong(serving.EndTokensAreIgnored, ENDINGS),
    _wrong(serving.EndTokensAlwaysEnd, ENDINGS),
    _wrong(serving.SeedOfTheFirst, SERIAL),
    _wrong(serving.SeedIsIgnored, SERIAL),
    _wrong(serving.MetricsCountRequests, BATCH),
    _wrong(serving.UnknownFieldsAreDropped, BAD),
    _wrong(serving.NumbersMayBeText, BAD),
    _wrong(serving.OnlyAnnouncedSizesCount, BAD),
    _wrong(serving.LimitIsNotChecked, BAD),
    _wrong(serving.LongTextsAreEncoded, BAD),
    _wrong(serving.KeyByItsBeginning, STRANGERS),
    _wrong(serving.ChatHasNoDoor, STRANGERS),
    _wrong(serving.FullQueueIsAFault, FULL),
    _wrong(serving.NoWordOfLater, FULL),
    _wrong(serving.QueueTakesOneMore, FULL),
    _wrong(replies.DisconnectIsForgotten, GONE),
    _wrong(replies.DisconnectEndsTheNewest, GONE),
    _wrong(serving.WholeRepliesAreNotWatched, GONE),
    _wrong(serving.LeavesSlotsOfTheGone, GONE),
    _wrong(serving.RepliesAreKept, GONE),
    _wrong(replies.ErrorsAreSilent, ERRORS),
    _wrong(replies.ErrorsLookFinished, ERRORS),
    _wrong(serving.StreamsHideErrors, ERRORS),
    _wrong(templates.TemplateWithoutASandbox, HOSTILE),
    _wrong(templates.OneChatRefusesAll, HOSTILE),
    _wrong(templates.TemplateIsTriedAgain, HOSTILE),
    _wrong(templates.TemplateIsCachedByLength, CHATS),
    _wrong(templates.LastMessageOnly, CHATS),
    _wrong(serving.ShutdownCancels, DRAIN),
)
