"""Compare one step of several rows with solo rows and with the engine.

Every step begins from states that the engine wrote, not from an answer. So the calls are the same
for a program with its own arithmetic, and a directory can list them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from contracts.schema import Budget
from falsifiers.judging.batch_driver import make_prompt, state_digest
from falsifiers.judging.judge import Judge

StateTensors = dict[str, Tensor]
OWN_STEP_BUDGET = Budget(
    cosine=0.9995, norm=0.003, near_tie=0.05,
    reason="a step in an arithmetic of its own adds in another order or multiplies in a narrower "
           "type, bfloat16 included; activations rounded to 8 bits are outside.",
    measured="largest 1 - cosine and norm error of a row's logits, 32 steps of nano, numpy 2.4.6 "
             "on CPU, what products meet rounded: f32 2.8e-12 and 1.9e-7, TF32 2.9e-6 and 2.3e-4, "
             "f16 2.9e-6 and 1.6e-4, bf16 1.6e-4 and 8.4e-4, 8-bit activations alone 8.8e-4 and "
             "4.0e-3; states are nearer, each one vector")
"""How far a step in another arithmetic may be from the engine's."""


@dataclass(frozen=True)
class BatchedStep:
    """Rows of several tokens each, in drawn slots of a pool with one slot more."""

    rows_of: Callable[..., Any]
    states: tuple[StateTensors, ...]
    """The state of every slot before the step."""
    capacity: int
    slots: tuple[int, ...]
    """The slot of each row."""
    positions: tuple[int, ...]
    """The tokens in each row's slot."""
    tokens: tuple[list[int], ...]
    """Each row's tokens."""
    judged_rows: int
    """The number of first rows that are compared; the others may hold poison."""

    def run(self, engine: Any) -> tuple[Tensor, Any]:
        """Return the logits f32[m, vocab] of the step, and the pool after it."""
        pool = self._pool(engine, self.states)
        counts = tuple(map(len, self.tokens))
        rows = self.rows_of(self.slots, self.positions, counts)
        return engine.step(list(chain(*self.tokens)), rows, pool), pool

    def run_solo(self, engine: Any, row: int) -> tuple[Tensor, StateTensors]:
        """Return the logits f32[vocab] and the state of one row in a pool of its own."""
        pool = self._pool(engine, [self.states[self.slots[row]]])
        tokens = self.tokens[row]
        logits = engine.step(
            tokens, self.rows_of((0,), (self.positions[row],), (len(tokens),)), pool
        )
        return logits[0], engine.read_state(pool, 0)

    def _pool(self, engine: Any, states: Sequence[StateTensors]) -> Any:
        pool = engine.new_pool(len(states), self.capacity)
        for slot, state in enumerate(states):
            engine.write_state(pool, slot, state)
        return pool


def draw_step(right: Any, rows_of: Callable[..., Any], vocab: int, counts: Sequence[int],
              capacity: int, tenant: float | None = None, seed: int = 0) -> BatchedStep:
    """Draw a step of rows of `counts` tokens, with states from the reference engine `right`.

    Slots, lengths and tokens depend on the seed. `tenant` overwrites the states of all rows but
    the first, and then only the first row is compared.
    """
    m, slots = len(counts), len(counts) + 1
    order = random.Random(f"{seed} {list(counts)}").sample(range(slots), m)
    lengths = [1 + (3 * slot + 2 + seed) % 5 for slot in range(slots)]
    pool = right.new_pool(slots, capacity)
    for slot, length in enumerate(lengths):
        prompt = make_prompt(100 * seed + slot, length, vocab)
        right.step(prompt, rows_of((slot,), (0,), (length,)), pool)
    states = [right.read_state(pool, slot) for slot in range(slots)]
    for slot in order[1:] if tenant is not None else ():
        states[slot] = {name: torch.full_like(x, tenant or 0.0) for name, x in
                        states[slot].items()}
    tokens = [make_prompt(100 * seed + 50 + slot, count, vocab) for slot, count in
              zip(order, counts, strict=True)]
    return BatchedStep(rows_of, tuple(states), capacity, tuple(order),
                       tuple(lengths[slot] for slot in order), tuple(tokens),
                       m if tenant is None else 1)


def compare_with_solo(judge: Judge, engine: Any, step: BatchedStep) -> None:
    """Compare each row with its solo run, bit by bit; an idle slot must not change (twin)."""
    logits, pool = step.run(engine)
    for row in range(step.judged_rows):
        want, state = step.run_solo(engine, row)
        where: dict[str, Any] = {"row": row, "slot": step.slots[row]}
        judge.equal("logits", logits[row], want, **where)
        got = engine.read_state(pool, step.slots[row])
        for name, x in state.items():
            judge.equal(f"state {name}", got[name], x, finite=False, **where)
    idle = next(slot for slot in range(len(step.states)) if slot not in step.slots)
    judge.unchanged("state", state_digest(step.states[idle]),
                    state_digest(engine.read_state(pool, idle)), slot=idle)
    judge.engaged(rows_a_step=len(step.slots))


def compare_with_engine(judge: Judge, engine: Any, right: Any, step: BatchedStep,
                        budget: Budget | None = None) -> None:
    """Compare each row's logits and state with the engine's, `right`: bitwise or by a budget."""
    logits, pool = step.run(engine)
    for row in range(step.judged_rows):
        want, state = step.run_solo(right, row)
        where: dict[str, Any] = {"row": row, "slot": step.slots[row]}
        got = engine.read_state(pool, step.slots[row])
        if budget is None:
            judge.equal("logits", logits[row], want, rule="truth", **where)
            for name, x in state.items():
                judge.equal(f"state {name}", got[name], x, rule="truth", **where)
        else:
            judge.budget("logits", logits[row], want, budget, logits=True, **where)
            new = slice(step.positions[row], step.positions[row] + len(step.tokens[row]))
            for name, x in state.items():
                span = new if name.endswith((".k", ".v")) else slice(None)
                judge.budget(f"state {name}", got[name][span].flatten(), x[span].flatten(),
                             budget, **where)
