"""Random histories of the store and the reference store; results, counts and bits must be equal."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any, cast

from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis import settings as profile
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from contracts.schema import Case
from engine.state import Pool, State
from falsifiers.judging.batch_driver import state_digest
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject
from phases.p7_prefix_reuse.reference import DullStore

LONGEST = 12
TOKEN_LINES = tuple(tuple(map(int, line)) for line in (
    "000000000000", "000100000000", "000011111111", "000000000111", "100000000000"))
Runs = st.builds(lambda line, end: line[:end], st.sampled_from(TOKEN_LINES),
                 st.integers(1, LONGEST))
Ends = st.sampled_from([(), (0,), (1,), (1, 0, 1)])
Keys = st.sampled_from(["a", "b"])


class Histories(RuleBasedStateMachine):
    """Random `keep` and `restore` calls, with two keys and token runs that share prefixes."""

    def __init__(self, subject: Subject, judge: Judge, pool: Pool, fit: int, block: int) -> None:
        super().__init__()
        self.judge, self.slot, self.reference_slot = judge, pool.slot(0), pool.slot(1)
        # half a checkpoint more, so that tails and blocks decide what fits
        budget = int((fit + 0.5) * sum(x.nbytes for x in self.slot.named(LONGEST).values()))
        self.store, self.reference = subject.stack.store(budget, block), DullStore(budget, block)

    @rule(key=Keys, tokens=Runs)
    def keep(self, key: str, tokens: tuple[int, ...]) -> None:
        """Store the state after tokens, then overwrite its slot."""
        fill_slot(self.slot, key, tokens)
        self._check_equal("the result of keep", self.store.keep(key, tokens, self.slot),
                          self.reference.keep(key, tokens, self.slot))
        fill_slot(self.slot, "unused", (7,) * LONGEST)
        self._check_agreement()

    @rule(key=Keys, tokens=Runs)
    def restore(self, key: str, tokens: tuple[int, ...]) -> None:
        """Restore a prefix of a prompt, and compare the slot's bits."""
        for slot in (self.slot, self.reference_slot):
            fill_slot(slot, "unused", (7,) * LONGEST)
        length = self.reference.restore(key, tokens, self.reference_slot)
        self._check_equal("the tokens reused", self.store.restore(key, tokens, self.slot), length)
        got, want = (state_digest(slot.named(length)) for slot in (self.slot, self.reference_slot))
        self._check_equal("the digest of the restored state", got, want)
        self._check_agreement()

    @precondition(lambda self: self.reference.entries)
    @rule(pick=st.integers(0, 9), more=Ends)
    def restore_what_is_kept(self, pick: int, more: tuple[int, ...]) -> None:
        """Restore a prompt that is stored, or extends a stored one."""
        key, tokens = self._pick_entry(pick)
        self.restore(key, tokens + more)

    @precondition(lambda self: self.reference.entries)
    @rule(pick=st.integers(0, 9), more=Ends)
    def keep_further(self, pick: int, more: tuple[int, ...]) -> None:
        """Store tokens that are stored already, or extend stored ones."""
        key, tokens = self._pick_entry(pick)
        self.keep(key, (tokens + more)[:LONGEST])

    def teardown(self) -> None:
        """Clear both stores."""
        self.store.clear()
        self.reference.entries.clear()
        self._check_agreement()

    def _pick_entry(self, pick: int) -> tuple[Any, tuple[int, ...]]:
        entries = list(self.reference.entries)
        return entries[pick % len(entries)]

    def _check_agreement(self) -> None:
        """Compare the entries, their order of use and their size with the reference store's."""
        self._check_equal("the list of entries, the least recently used first,",
                          [(key, tuple(tokens)) for key, tokens in self.store.contents()],
                          list(self.reference.entries))
        meter = self.store.meter
        self._check_equal("bytes", meter.bytes, self.reference.bytes)
        self._check_equal("blocks", meter.blocks,
                          len(self.reference.blocks_of(list(self.reference.entries))))
        self._check_equal("checkpoints", meter.checkpoints, len(self.reference.entries))

    def _check_equal(self, what: str, got: Any, want: Any) -> None:
        self.judge.law(got == want, f"{what} is {got}, but should be {want}")


def fill_slot(slot: State, key: str, tokens: tuple[int, ...]) -> None:
    """Write a state derived from tokens: KV row i from the first i + 1, the rest from all."""
    for i in range(len(tokens)):
        for name, rows in slot.named().items():
            if name.endswith((".k", ".v")):
                rows[i] = _hash_number(name, key, tokens[:i + 1])
            elif i == len(tokens) - 1:
                rows.fill_(_hash_number(name, key, tokens))


def _hash_number(*parts: object) -> float:
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:3], "little") / 2


def run_histories(case: Case, subject: Subject, judge: Judge) -> None:
    """Run the case's histories, always the same ones; a thorough case is shrunk and printed."""
    shape = replace(subject.models("nano").config, heads=1, kv_heads=1, key_heads=1, value_heads=1)
    pool = Pool(shape, 2, LONGEST, subject.device)

    def make() -> Histories:
        return Histories(subject, judge, pool, case["fit"], case["block"])

    run_state_machine_as_test(
        cast("type[RuleBasedStateMachine]", make), settings=profile(
            max_examples=case["examples"], stateful_step_count=30, derandomize=True,
            database=None, deadline=None, print_blob=False, report_multiple_bugs=False,
            verbosity=Verbosity.quiet if case.quick else Verbosity.normal,
            phases=[Phase.generate] if case.quick else [Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck)))
