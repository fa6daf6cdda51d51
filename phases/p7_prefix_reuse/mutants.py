"""Wrong ways to reuse a prefix, each with one fault, and the falsifiers that must kill it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from falsifiers.judging.subject import Mutant, Subject
from phases.p7_prefix_reuse import wrong_reuse as reuse
from phases.p7_prefix_reuse import wrong_store as store
from phases.p7_prefix_reuse.increment import PrefixEngine, PrefixService
from phases.p7_prefix_reuse.reuse_policy import ReusePolicy
from phases.p7_prefix_reuse.store import Store

Part = type[Store] | type[ReusePolicy] | type[PrefixEngine] | type[PrefixService]
FIELDS = {"store": Store, "reuse": ReusePolicy, "engine": PrefixEngine, "service": PrefixService}


def _build_with(part: Part) -> Callable[[Subject], Subject]:
    """Return a builder that puts a wrong part into the subject's stack."""
    (field,) = [name for name, right in FIELDS.items() if issubclass(part, right)]
    return lambda subject: replace(subject, stack=replace(subject.stack, **{field: part}))


def _make_mutant(part: Part, *killers: str, source: str = "") -> Mutant:
    """Return the mutant of a wrong part, which is named and explained by its class."""
    name = re.sub(r"(?<=.)([A-Z])", r"_\1", part.__name__).lower()
    return Mutant(name, (part.__doc__ or "").strip(), killers, _build_with(part), source)


LENGTHS, CHATS = "warm_equals_cold_at_every_length", "turns_of_chats_are_reused"
CHILDREN, KV = "children_do_not_meet", "kv_without_state_is_not_reused"
ADMISSION, FULL = "match_is_made_at_admission", "full_hit_computes_one_token"
METER, EXACT = "reuse_told_is_reuse_measured", "checkpoints_are_exact"
ALIAS, FAILURES = "nothing_kept_is_shared_with_a_slot", "failures_cost_time_alone"
CANCELS, BUDGET = "cancels_keep_only_what_was_computed", "budget_is_kept"
DULL, MODELS = "store_equals_dull_store", "models_never_share"
TOKENS, USAGE = "tokens_are_the_key", "replies_tell_cached_tokens"

MUTANTS: tuple[Mutant, ...] = (
    _make_mutant(reuse.FloorsTheKey, EXACT, CHATS, source="B165"),
    _make_mutant(store.ReusesKvAlone, KV, LENGTHS, DULL, source="B169"),
    _make_mutant(store.KeepsNoRecurrentState, LENGTHS, EXACT, DULL, source="B171"),
    _make_mutant(store.QueuesTheCopy, LENGTHS, EXACT, DULL, source="B172"),
    _make_mutant(reuse.WritesShortChunksBack, CHILDREN, source="B175"),
    _make_mutant(store.RefusesShortPrefixes, METER, LENGTHS, FULL, source="B176"),
    _make_mutant(store.FindsNothing, METER, LENGTHS, DULL, source="B177"),
    _make_mutant(store.TrimsTheRecurrentState, KV, LENGTHS, DULL, source="B180"),
    Mutant("matches_at_enqueue", "The length of a match is noted when the request is enqueued.",
           (ADMISSION,), reuse.matches_at_enqueue, "B184"),
    _make_mutant(reuse.FilesChunksUnderTheStride, EXACT, LENGTHS, source="B185"),
    _make_mutant(reuse.FilesATokenShort, EXACT, CHATS, source="B186"),
    _make_mutant(reuse.FilesTheTokenToCome, EXACT, source="B187"),
    _make_mutant(reuse.KeepsFailedStates, FAILURES, source="B012"),
    _make_mutant(reuse.BeginsAtPositionZero, LENGTHS, CHATS, source="B154"),
    _make_mutant(store.RoundsTheRecurrentState, LENGTHS, EXACT, source="B124"),
    _make_mutant(reuse.FilesTheWholePrompt, CANCELS),
    _make_mutant(reuse.RunsPastTheStride, EXACT, LENGTHS),
    _make_mutant(reuse.NeverKeepsTurns, CHATS, EXACT),
    _make_mutant(reuse.ComputesWhatItReuses, METER),
    _make_mutant(reuse.TellsNoReuse, METER, FULL, USAGE),
    _make_mutant(reuse.CountsDrawsFromReuse, CHATS),
    _make_mutant(reuse.RestoresIntoTheNeighbour, CHILDREN, METER),
    _make_mutant(reuse.SharesAmongModels, MODELS),
    _make_mutant(reuse.SharesAmongPaths, MODELS),
    _make_mutant(store.ForgetsTheWindow, LENGTHS, EXACT, DULL),
    _make_mutant(store.ForgetsTheRecurrentState, LENGTHS, EXACT, DULL),
    _make_mutant(store.LosesTheTail, CHATS, EXACT, DULL),
    _make_mutant(store.KeepsViews, ALIAS, DULL, CHILDREN),
    _make_mutant(store.KeepsBlocksAsViews, ALIAS, DULL),
    _make_mutant(store.GivesItselfAway, ALIAS, CHILDREN),
    _make_mutant(store.FreesSharedBlocks, KV, DULL),
    _make_mutant(store.LeaksUsers, BUDGET, DULL),
    _make_mutant(store.CountsOneUser, BUDGET, DULL),
    _make_mutant(store.HitsTheWholePrompt, FULL, DULL),
    _make_mutant(store.HidesBehindTheWholePrompt, FULL, DULL),
    _make_mutant(store.SharesTheBlockThatParts, DULL),
    _make_mutant(store.EvictsTheNewest, DULL),
    _make_mutant(store.EvictsTheOldest, DULL),
    _make_mutant(store.IgnoresTheBudget, BUDGET, DULL),
    _make_mutant(store.KeepsWhatIsEvicted, BUDGET),
    _make_mutant(store.KeepsOneLargeCopy, BUDGET),
    _make_mutant(store.LosesAChild, DULL),
    _make_mutant(store.LeavesHalfACopy, FAILURES),
    _make_mutant(store.LetsCopiesFail, FAILURES),
    _make_mutant(store.CountsPrompts, METER),
    _make_mutant(reuse.KeyedByText, TOKENS),
    Mutant("serves_without_a_store", "The budget is dropped on the way to the store.", (USAGE,),
           reuse.serves_without_a_store),
    _make_mutant(reuse.ShowsAnotherMeter, USAGE),
)
