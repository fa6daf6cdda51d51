"""Wrong ways to reuse a prefix, each with one fault, and the falsifiers that must kill it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from falsifiers.judging.subject import Mutant, Subject
from phases.p7_prefix_reuse import wrong_reuse as reuse
from phases.p7_prefix_reuse import wrong_store as store
from phases.p7_prefix_reuse.increment import PrefixEngine, PrefixService
from phases.p7_prefix_reuse.reuse_policy import Reuse
from phases.p7_prefix_reuse.store import Store

Part = type[Store] | type[Reuse] | type[PrefixEngine] | type[PrefixService]
FIELDS = {"store": Store, "reuse": Reuse, "engine": PrefixEngine, "service": PrefixService}


def _with(part: Part) -> Callable[[Subject], Subject]:
    """Return a builder that puts a wrong part into the subject's stack."""
    (field,) = [name for name, right in FIELDS.items() if issubclass(part, right)]
    return lambda subject: replace(subject, stack=replace(subject.stack, **{field: part}))


def _wrong(part: Part, *killers: str, source: str = "") -> Mutant:
    """Return the mutant of a wrong part, which is named and explained by its class."""
    name = re.sub(r"(?<=.)([A-Z])", r"_\1", part.__name__).lower()
    return Mutant(name, (part.__doc__ or "").strip(), killers, _with(part), source)


LENGTHS, CHATS = "warm_equals_cold_at_every_length", "turns_of_chats_are_reused"
CHILDREN, KV = "children_do_not_meet", "kv_without_state_is_not_reused"
ADMISSION, FULL = "match_is_made_at_admission", "full_hit_computes_one_token"
METER, EXACT = "reuse_told_is_reuse_measured", "checkpoints_are_exact"
ALIAS, FAILURES = "nothing_kept_is_shared_with_a_slot", "failures_cost_time_alone"
CANCELS, BUDGET = "cancels_keep_only_what_was_computed", "budget_is_kept"
DULL, MODELS = "store_equals_dull_store", "models_never_share"
TOKENS, USAGE = "tokens_are_the_key", "replies_tell_cached_tokens"

MUTANTS: tuple[Mutant, ...] = (
    _wrong(reuse.FloorsTheKey, EXACT, CHATS, source="B165"),
    _wrong(store.ReusesKvAlone, KV, LENGTHS, DULL, source="B169"),
    _wrong(store.KeepsNoRecurrentState, LENGTHS, EXACT, DULL, source="B171"),
    _wrong(store.QueuesTheCopy, LENGTHS, EXACT, DULL, source="B172"),
    _wrong(reuse.WritesShortChunksBack, CHILDREN, source="B175"),
    _wrong(store.RefusesShortPrefixes, METER, LENGTHS, FULL, source="B176"),
    _wrong(store.FindsNothing, METER, LENGTHS, DULL, source="B177"),
    _wrong(store.TrimsTheRecurrentState, KV, LENGTHS, DULL, source="B180"),
    Mutant("matches_at_enqueue", "The length of a match is noted when the request is enqueued.",
           (ADMISSION,), reuse.matches_at_enqueue, "B184"),
    _wrong(reuse.FilesChunksUnderTheStride, EXACT, LENGTHS, source="B185"),
    _wrong(reuse.FilesATokenShort, EXACT, CHATS, source="B186"),
    _wrong(reuse.FilesTheTokenToCome, EXACT, source="B187"),
    _wrong(reuse.KeepsFailedStates, FAILURES, source="B012"),
    _wrong(reuse.BeginsAtPositionZero, LENGTHS, CHATS, source="B154"),
    _wrong(store.RoundsTheRecurrentState, LENGTHS, EXACT, source="B124"),
    _wrong(reuse.FilesTheWholePrompt, CANCELS),
    _wrong(reuse.RunsPastTheStride, EXACT, LENGTHS),
    _wrong(reuse.NeverKeepsTurns, CHATS, EXACT),
    _wrong(reuse.ComputesWhatItReuses, METER),
    _wrong(reuse.TellsNoReuse, METER, FULL, USAGE),
    _wrong(reuse.CountsDrawsFromReuse, CHATS),
    _wrong(reuse.RestoresIntoTheNeighbour, CHILDREN, METER),
    _wrong(reuse.SharesAmongModels, MODELS),
    _wrong(reuse.SharesAmongPaths, MODELS),
    _wrong(store.ForgetsTheWindow, LENGTHS, EXACT, DULL),
    _wrong(store.ForgetsTheRecurrentState, LENGTHS, EXACT, DULL),
    _wrong(store.LosesTheTail, CHATS, EXACT, DULL),
    _wrong(store.KeepsViews, ALIAS, DULL, CHILDREN),
    _wrong(store.KeepsBlocksAsViews, ALIAS, DULL),
    _wrong(store.GivesItselfAway, ALIAS, CHILDREN),
    _wrong(store.FreesSharedBlocks, KV, DULL),
    _wrong(store.LeaksUsers, BUDGET, DULL),
    _wrong(store.CountsOneUser, BUDGET, DULL),
    _wrong(store.HitsTheWholePrompt, FULL, DULL),
    _wrong(store.HidesBehindTheWholePrompt, FULL, DULL),
    _wrong(store.SharesTheBlockThatParts, DULL),
    _wrong(store.EvictsTheNewest, DULL),
    _wrong(store.EvictsTheOldest, DULL),
    _wrong(store.IgnoresTheBudget, BUDGET, DULL),
    _wrong(store.KeepsWhatIsEvicted, BUDGET),
    _wrong(store.KeepsOneLargeCopy, BUDGET),
    _wrong(store.LosesAChild, DULL),
    _wrong(store.LeavesHalfACopy, FAILURES),
    _wrong(store.LetsCopiesFail, FAILURES),
    _wrong(store.CountsPrompts, METER),
    _wrong(reuse.KeyedByText, TOKENS),
    Mutant("serves_without_a_store", "The budget is dropped on the way to the store.", (USAGE,),
           reuse.serves_without_a_store),
    _wrong(reuse.ShowsAnotherMeter, USAGE),
)
