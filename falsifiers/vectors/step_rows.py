"""One step of several rows, each row held to a step of its own from the same state.

Both start from states that the engine left, so that what is asked depends on no answer: a program
in an arithmetic of its own can answer files of such calls too, where a run of steps would ask for
calls that no directory holds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from falsifiers.judge import Judge
from falsifiers.streams import prompt_of, state_digest


def hold_rows(judge: Judge, engine: Any, right: Any, rows_of: Callable[..., Any], vocab: int,
              counts: Sequence[int], capacity: int, *, tenant: float | None = None,
              truth: bool = False) -> None:
    """Hold a step of rows of `counts` tokens to its rows alone, logits and states (twin).

    `right` is the tree's own engine, which makes the states; with `truth` each row is held to it
    too. `tenant` stands in place of all that the first row's neighbours hold, and then the first
    row alone is judged. A slot that is not named must stay as it was.
    """
    m, slots = len(counts), len(counts) + 1
    order = random.Random(repr(tuple(counts))).sample(range(slots), m)
    lengths = [1 + (3 * slot + 2) % 5 for slot in range(slots)]
    states = _states(right, rows_of, vocab, lengths, capacity)
    if tenant is not None:
        for slot in order[1:]:
            states[slot] = {name: torch.full_like(x, tenant) for name, x in states[slot].items()}
    tokens = [prompt_of(50 + slot, count, vocab) for slot, count in
              zip(order, counts, strict=True)]
    at = [lengths[slot] for slot in order]
    pool = _pool(engine, states, capacity)
    logits = engine.step(sum(tokens, []), rows_of(tuple(order), tuple(at), tuple(counts)), pool)
    for row, slot in enumerate(order if tenant is None else order[:1]):
        for rule, alone in (("twin", engine), ("truth", right))[:1 + truth]:
            own = _pool(alone, states[slot:slot + 1], capacity)
            want = alone.step(tokens[row], rows_of((0,), (at[row],), (counts[row],)), own)
            judge.equal("logits", logits[row], want[0], rule=rule, row=row, slot=slot)
            left = engine.read_state(pool, slot)
            for name, x in alone.read_state(own, 0).items():
                judge.equal(f"state {name}", left[name], x, rule=rule, finite=False, row=row,
                            slot=slot)
    idle = next(slot for slot in range(slots) if slot not in order)
    judge.unchanged("state", state_digest(states[idle]),
                    state_digest(engine.read_state(pool, idle)), slot=idle)
    judge.engaged(rows_a_step=m)


def _states(right: Any, rows_of: Callable[..., Any], vocab: int, lengths: Sequence[int],
            capacity: int) -> list[dict[str, torch.Tensor]]:
    """Return what each slot holds after a prompt of its own."""
    pool = right.new_pool(len(lengths), capacity)
    for slot, length in enumerate(lengths):
        right.step(prompt_of(slot, length, vocab), rows_of((slot,), (0,), (length,)), pool)
    return [right.read_state(pool, slot) for slot in range(len(lengths))]


def _pool(engine: Any, states: Sequence[dict[str, torch.Tensor]], capacity: int) -> Any:
    pool = engine.new_pool(len(states), capacity)
    for slot, state in enumerate(states):
        engine.write_state(pool, slot, state)
    return pool
