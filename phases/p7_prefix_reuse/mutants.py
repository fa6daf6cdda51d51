"""The mutants of P7: each replaces a part of the stack by a faulty one."""

from __future__ import annotations

from falsifiers.judging.subject import stack_mutants
from phases.p7_prefix_reuse import wrong_reuse, wrong_store
from phases.p7_prefix_reuse.increment import PrefixEngine, PrefixService
from phases.p7_prefix_reuse.reuse_policy import ReusePolicy
from phases.p7_prefix_reuse.store import Store

FIELDS = {"store": Store, "reuse": ReusePolicy, "engine": PrefixEngine, "service": PrefixService}
MUTANTS = {
    **stack_mutants(FIELDS, wrong_reuse, wrong_store),
    "matches_at_enqueue": wrong_reuse.matches_at_enqueue,
    "serves_without_a_store": wrong_reuse.serves_without_a_store,
}
