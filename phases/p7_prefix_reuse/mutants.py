"""Wrong ways to reuse a prefix, each with one fault, and the falsifiers that must kill it."""

from __future__ import annotations

from dataclasses import replace

from falsifiers.judging.subject import Builder, mutant_id
from phases.p7_prefix_reuse import wrong_reuse as reuse
from phases.p7_prefix_reuse import wrong_store as store
from phases.p7_prefix_reuse.increment import PrefixEngine, PrefixService
from phases.p7_prefix_reuse.reuse_policy import ReusePolicy
from phases.p7_prefix_reuse.store import Store

Part = type[Store] | type[ReusePolicy] | type[PrefixEngine] | type[PrefixService]
FIELDS = {"store": Store, "reuse": ReusePolicy, "engine": PrefixEngine, "service": PrefixService}


def _build_with(part: Part) -> Builder:
    """Return a builder that puts a wrong part into the subject's stack."""
    (field,) = [name for name, right in FIELDS.items() if issubclass(part, right)]
    return lambda subject: replace(subject, stack=replace(subject.stack, **{field: part}))


WRONG_PARTS = (
    reuse.FloorsTheKey, store.ReusesKvAlone, store.KeepsNoRecurrentState, store.QueuesTheCopy,
    reuse.WritesShortChunksBack, store.RefusesShortPrefixes, store.FindsNothing,
    store.TrimsTheRecurrentState, reuse.FilesChunksUnderTheStride, reuse.FilesATokenShort,
    reuse.FilesTheTokenToCome, reuse.KeepsFailedStates, reuse.BeginsAtPositionZero,
    store.RoundsTheRecurrentState, reuse.FilesTheWholePrompt, reuse.RunsPastTheStride,
    reuse.NeverKeepsTurns, reuse.ComputesWhatItReuses, reuse.TellsNoReuse,
    reuse.CountsDrawsFromReuse, reuse.RestoresIntoTheNeighbour, reuse.SharesAmongModels,
    reuse.SharesAmongPaths, store.ForgetsTheWindow, store.ForgetsTheRecurrentState,
    store.LosesTheTail, store.KeepsViews, store.KeepsBlocksAsViews, store.GivesItselfAway,
    store.FreesSharedBlocks, store.LeaksUsers, store.CountsOneUser, store.HitsTheWholePrompt,
    store.HidesBehindTheWholePrompt, store.SharesTheBlockThatParts, store.EvictsTheNewest,
    store.EvictsTheOldest, store.IgnoresTheBudget, store.KeepsWhatIsEvicted,
    store.KeepsOneLargeCopy, store.LosesAChild, store.LeavesHalfACopy, store.LetsCopiesFail,
    store.CountsPrompts, reuse.KeyedByText, reuse.ShowsAnotherMeter,
)
MUTANTS: dict[str, Builder] = {
    **{mutant_id(part): _build_with(part) for part in WRONG_PARTS},
    "matches_at_enqueue": reuse.matches_at_enqueue,
    "serves_without_a_store": reuse.serves_without_a_store,
}
