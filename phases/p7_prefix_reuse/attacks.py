"""Longer attacks on P7: injected failures, overwritten memory, and the store's bytes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from torch import Tensor

from engine.gguf_file import open_gguf
from engine.path import Path, Rows
from engine.state import State
from engine.tokenizer import Tokenizer
from falsifiers.judging.errors import SuiteError
from falsifiers.judging.subject import Subject
from phases.p7_prefix_reuse.harness import Harness, poison_slot


def check_overwritten_slots(harness: Harness) -> None:
    """Overwrite slots after they were stored and after they were restored; check all others."""
    judge = harness.judge
    first = harness.ask(harness.prompt(1, 18), limit=1)
    harness.serve(first, reused=0)
    harness.poison_slots()
    harness.check_checkpoints()
    state_tokens = harness.turn_tokens(first)
    for seed in (2, 3):  # both slots are restored from one checkpoint
        harness.ask(harness.diverging_prompt(state_tokens, 18, seed, 9), limit=4)
    harness.step()
    slots = [harness.engine.pool.slot(tenancy.slot) for tenancy in harness.recorder.live.values()]
    before = slots[1].digest(18)
    poison_slot(slots[0])
    judge.unchanged("the state of the other slot", before, slots[1].digest(18))
    harness.poison_slots()
    harness.check_checkpoints()
    harness.scheduler.abort()
    harness.serve()
    harness.store.clear()
    harness.serve(harness.ask(harness.diverging_prompt(state_tokens, 18, 4)), reused=0)
    before = harness.engine.pool.slot(0).digest()
    harness.store.clear()
    judge.unchanged("a slot", before, harness.engine.pool.slot(0).digest())


@dataclass(frozen=True)
class UnwritableState(State):
    """A slot whose first `writable` tensors can be written; a copy into the others raises."""

    writable: int = 0

    def named(self, length: int | None = None) -> dict[str, Tensor]:
        """Return the slot's tensors, the unwritable ones as expanded tensors."""
        return {name: x if i < self.writable else x.new_zeros(1).expand(x.shape)
                for i, (name, x) in enumerate(super().named(length).items())}


class FailingState(State):
    """A slot whose tensors can be read `calls_left` times; then `named` raises `MemoryError`."""

    calls_left = 0

    def named(self, length: int | None = None) -> dict[str, Tensor]:
        """Return the slot's tensors, or raise `MemoryError`."""
        type(self).calls_left -= 1
        if self.calls_left < 0:
            raise MemoryError("no memory for a copy")
        return super().named(length)


class InterruptedPrefixes:
    """Wraps the prefixes of an engine, so that a copy is interrupted or fails."""

    def __init__(self, harness: Harness) -> None:
        self.inner = harness.reuse
        self.slot: Callable[[State], State] = lambda state: state
        """Replaces the next slot that is copied from or to."""
        self.interrupt: Callable[[], None] = lambda: None
        harness.engine.prefixes = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def admit(self, tokens: Sequence[int], state: State) -> int:
        """Restore, with an interrupt before and after."""
        self.interrupt()
        reused: int = self.inner.admit(tokens, self._wrap_once(state))
        self.interrupt()
        return reused

    def on_release(self, tokens: Sequence[int], state: State) -> None:
        """Store the state at the end of a turn."""
        self.inner.on_release(tokens, self._wrap_once(state))

    def _wrap_once(self, state: State) -> State:
        state, self.slot = self.slot(state), lambda state: state
        return state


def _fail_restore(harness: Harness, good: int) -> None:
    first = harness.ask(harness.prompt(1, 11), limit=3)
    harness.serve(first, reused=0)
    state_tokens, trip = harness.turn_tokens(first), InterruptedPrefixes(harness)
    trip.slot = lambda state: UnwritableState(state.pool, state.index, good)
    harness.serve(harness.ask((*state_tokens, 5, 6)), reused=0)
    harness.judge.law(harness.store.meter.failed == 1,
                      f"{harness.store.meter.failed} failed copies are reported, but there was 1")
    harness.serve(harness.ask((*state_tokens, 5, 6)), reused=8)
    harness.check_checkpoints()


def _fail_restore_half_way(harness: Harness) -> None:
    _fail_restore(harness, 3)


def _fail_restore_at_once(harness: Harness) -> None:
    _fail_restore(harness, 0)


def _fail_keep(harness: Harness) -> None:
    trip = InterruptedPrefixes(harness)
    for good in range(3):
        def exhausted(state: State, good: int = good) -> State:
            FailingState.calls_left = good
            return FailingState(state.pool, state.index)

        first = harness.ask(harness.prompt(good, 11), limit=3)
        harness.step(3)  # the next ends the turn
        trip.slot = exhausted
        harness.serve(first, reused=0)
        check_bytes(harness)
        harness.serve(harness.ask((*harness.turn_tokens(first), 5)), reused=8)
    harness.judge.law(harness.store.meter.failed == 3,
                      f"{harness.store.meter.failed} failed copies are reported, but there were 3")
    harness.check_checkpoints()


def _fail_step(harness: Harness) -> None:
    first = harness.ask(harness.prompt(1, 11), limit=3)
    harness.serve(first, reused=0)
    trouble = iter((False, False, False, True))

    def fail(rows: Rows) -> None:
        if next(trouble, False):
            harness.poison_slots()
            raise RuntimeError("an accident")

    harness.before_step = fail
    requests = harness.ask((*harness.turn_tokens(first), 5, 6), limit=4), harness.ask(
        harness.prompt(2, 15), limit=4)
    harness.serve(*requests)
    harness.check_checkpoints()


def _cancel_in_restore(harness: Harness) -> None:
    first = harness.ask(harness.prompt(1, 11), limit=3)
    harness.serve(first, reused=0)
    state_tokens, trip = harness.turn_tokens(first), InterruptedPrefixes(harness)
    gone = harness.ask((*state_tokens, 5, 6), limit=4)
    trip.interrupt = lambda: (harness.scheduler.cancel(gone.id), None)[1]
    harness.step()
    trip.interrupt = lambda: None
    harness.serve(harness.ask((*state_tokens, 5, 7)), reused=len(state_tokens))
    harness.judge.law(harness.ended[gone.id].reason == "cancel",
                      f"a request that was cancelled ended "
                      f"with {harness.ended[gone.id].reason}")
    harness.check_checkpoints()


FAILURES: dict[str, Callable[[Harness], None]] = {
    "restore_half_way": _fail_restore_half_way, "restore_at_once": _fail_restore_at_once,
    "keep": _fail_keep, "step": _fail_step, "cancel_in_restore": _cancel_in_restore}


def serve_and_check_bytes(harness: Harness) -> None:
    """Serve the submitted requests, and check the store's bytes after every step."""
    while not harness.scheduler.idle:
        harness.step()
        check_bytes(harness)


def check_bytes(harness: Harness) -> None:
    """Compare the store's reported bytes with those in memory, and with the budget."""
    meter, found = harness.store.meter, reachable_bytes(harness.store)
    harness.judge.law(meter.bytes == found, f"the store reports {meter.bytes:,} bytes, but has "
                      f"{found:,}")
    harness.judge.law(found <= harness.store.budget,
                      f"the store has {found:,} bytes, but a budget of "
                      f"{harness.store.budget:,}")


def reachable_bytes(store: Any) -> int:
    """Return the bytes of all distinct tensor memory that can be reached from a store's fields.

    Models and paths, which are parts of keys, are not followed.
    """
    seen: set[int] = set()
    memory: dict[int, int] = {}
    todo: list[Any] = list(vars(store).values())
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, type | ModuleType | Path) or _is_model(one):
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            memory[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
        elif not callable(one):
            todo += gc.get_referents(one)
    return sum(memory.values())


def _is_model(one: Any) -> bool:
    return hasattr(one, "forward_single")


def other_model_or_path(subject: Subject, differs: str) -> tuple[str, Path | None]:
    """Return a model's name and a path, one of which differs from `nano` on the subject's path."""
    if differs == "model":
        return "nano-tied", None
    return "nano", replace(subject.path, name=f"{subject.path.name} again")


def same_text_tokens(model: Any, count: int) -> list[tuple[int, tuple[int, int]]]:
    """Return tokens, each with two tokens that together have the same bytes."""
    tokenizer = Tokenizer.from_metadata(open_gguf(model.path).metadata, model.config.vocab)
    pieces = {tokenizer.piece(token): token for token in range(model.config.vocab)}
    pairs = [(token, (pieces[text[:1]], pieces[text[1:]])) for text, token in pieces.items()
             if len(text) > 1 and text[:1] in pieces and text[1:] in pieces]
    if len(pairs) < count:
        raise SuiteError(f"the vocabulary has only {len(pairs)} tokens that two others spell")
    return pairs[:count]


