"""Steps an engine candidate and compares each row with the same sequence run by itself.

The engine is any object with the methods of `engine/candidate.py`. The caller passes a callable
`rows` that builds the rows of a step, so this module does not import the engine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from falsifiers.judging.errors import Declined, ParityBroken
from falsifiers.judging.judge import Judge, as_bits

MakeRows = Callable[[tuple[int, ...], tuple[int, ...], tuple[int, ...]], Any]


@dataclass
class SoloStream:
    """One prompt run by itself: its tokens, and the logits and state digest after each."""

    tokens: list[int]
    """The prompt, then greedy tokens."""
    logits: list[Tensor] = field(default_factory=list)
    """f32[vocab] after token i."""
    digests: list[str] = field(default_factory=list)
    """State digest after token i; keys and values are cut to i + 1 rows."""


def make_prompt(seed: int, length: int, vocab: int) -> list[int]:
    """Return a prompt of `length` token ids, the same on every machine."""
    raw = hashlib.shake_256(f"prompt {seed}".encode()).digest(4 * length)
    return [int.from_bytes(raw[4 * i:4 * i + 4], "little") % vocab for i in range(length)]


def state_digest(tensors: dict[str, Tensor], length: int | None = None) -> str:
    """Return the sha256 of a slot's tensors; `*.k` and `*.v` are cut to `length` rows."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name]
        if length is not None and name.endswith((".k", ".v")):
            value = value[:length]
        digest.update(name.encode() + as_bits(value).numpy().tobytes())
    return digest.hexdigest()


_CACHE: dict[tuple[Any, ...], tuple[Any, SoloStream]] = {}


def run_solo(engine: Any, rows: MakeRows, prompt: Sequence[int], decode: int, capacity: int,
             right: Any = None) -> SoloStream:
    """Run a prompt and `decode` greedy tokens in a pool of one slot, one token a step.

    `right` is the repository's path. If the engine runs exactly that path on the CPU, the stream
    is cached, since many cases compare with it. A mutant or a candidate is run for every case.
    """
    if right is None or getattr(engine, "path", None) != right or engine.model.device != "cpu":
        return _decode_greedily(engine, rows, prompt, decode, capacity)
    model = tuple(value if isinstance(value, str) else id(value)
                  for value in vars(engine.model).values())
    key = right, model, tuple(prompt), decode, capacity
    if key not in _CACHE:  # the entry refers to the model, so no other object gets these ids
        _CACHE[key] = engine.model, _decode_greedily(engine, rows, prompt, decode, capacity)
    return _CACHE[key][1]


def _decode_greedily(engine: Any, rows: MakeRows, prompt: Sequence[int], decode: int,
                     capacity: int) -> SoloStream:
    pool = engine.new_pool(1, capacity)
    stream = SoloStream(list(prompt))
    for position in range(len(prompt) + decode):
        if position == len(stream.tokens):
            stream.tokens.append(int(stream.logits[-1].argmax()))
        logits = engine.step([stream.tokens[position]], rows((0,), (position,), (1,)), pool)
        stream.logits.append(logits[0].clone())
        stream.digests.append(state_digest(engine.read_state(pool, 0), position + 1))
    return stream


def bad_steps(rows: MakeRows, vocab: int) -> list[tuple[str, str, list[int], Any]]:
    """Return steps that a pool of 3 slots of 8 tokens must refuse.

    Each has a name, the value that the error must contain, tokens and rows. A valid row precedes
    the bad value.
    """
    return [
        ("a slot outside the pool", "3", [1, 2], rows((0, 3), (1, 0), (1, 1))),
        ("a negative slot", "-1", [1, 2], rows((0, -1), (1, 0), (1, 1))),
        ("one slot in two rows", "slot 0", [1, 2], rows((0, 0), (1, 1), (1, 1))),
        ("a token past the vocabulary", str(vocab), [1, 2, vocab], rows((0, 1), (1, 1), (2, 1))),
        ("a negative token", "-1", [1, -1], rows((0, 1), (1, 1), (1, 1))),
        ("a position past the state", "9", [1, 2], rows((0, 1), (1, 8), (1, 1))),
        ("a chunk past the state", "9", [1, 2, 3, 4], rows((0, 1), (1, 6), (1, 3))),
        ("a negative position", "-1", [1, 2], rows((0, 1), (1, -1), (1, 1))),
        ("too few positions", "1 positions", [1, 2], rows((0, 1), (1,), (1, 1))),
        ("too few tokens", "3", [1, 2], rows((0, 1), (1, 1), (1, 2))),
        ("too many tokens", "3", [1, 2, 3], rows((0, 1), (1, 1), (1, 1))),
        ("a count of none", "0", [1], rows((0, 1), (1, 1), (1, 0))),
        ("no rows", "no rows", [], rows((), (), ())),
    ]


class BatchDriver:
    """Steps a pool while sequences join and leave, and judges every step.

    After each step, each row has the logits and the state of its stream run by itself. Every
    other slot is byte-identical to its state before the step.
    """

    def __init__(self, engine: Any, rows: MakeRows, judge: Judge, slots: int,
                 capacity: int) -> None:
        self.engine, self.rows, self.judge = engine, rows, judge
        self.slots, self.capacity = slots, capacity
        self.pool = engine.new_pool(slots, capacity)
        self.live: dict[int, SoloStream] = {}
        self.fed: dict[int, int] = {}
        self.step_number = 0
        self.widest = 0

    def join(self, slot: int, stream: SoloStream) -> None:
        """Clear a slot and put a stream into it."""
        self.engine.clear_slot(self.pool, slot)
        self.live[slot], self.fed[slot] = stream, 0

    def leave(self, slot: int) -> None:
        """Free a slot; its bytes stay until the next stream joins."""
        del self.live[slot], self.fed[slot]

    def poison(self, slot: int, value: float = float("nan")) -> None:
        """Fill a slot's tensors with a value, as an earlier sequence might leave them."""
        state = self.engine.read_state(self.pool, slot)
        self.engine.write_state(self.pool, slot,
                                {name: torch.full_like(x, value) for name, x in state.items()})
        state = self.engine.read_state(self.pool, slot)
        equal = bool(state) and all(torch.equal(as_bits(x), as_bits(torch.full_like(x, value)))
                                    for x in state.values())
        self.judge.law(equal, f"state[slot {slot}] differs from what was written into it")

    def step(self, order: Sequence[int], counts: Sequence[int] | None = None) -> None:
        """Advance the slots in `order` by `counts` tokens each (default 1), and judge."""
        counts = tuple(counts) if counts is not None else (1,) * len(order)
        tokens: list[int] = []
        for slot, count in zip(order, counts, strict=True):
            tokens += self.live[slot].tokens[self.fed[slot]:self.fed[slot] + count]
        rows = self.rows(tuple(order), tuple(self.fed[s] for s in order), counts)
        idle = {s: self._digest(s) for s in range(self.slots) if s not in order}
        logits = self.engine.step(tokens, rows, self.pool)
        for slot, count in zip(order, counts, strict=True):
            self.fed[slot] += count
        self.widest = max(self.widest, len(order))
        self._judge(order, logits, idle)
        self.step_number += 1

    def refuse(self, name: str, value: str, tokens: list[int], rows: Any) -> None:
        """Check that the engine refuses a step, names the bad value and changes no slot."""
        before = [self._digest(slot) for slot in range(self.slots)]
        try:
            self.engine.step(tokens, rows, self.pool)
        except ValueError as error:
            self.judge.law(value in str(error), f"the error for {name} says {str(error)!r}, which "
                           f"does not contain the value {value}")
        except (Declined, ParityBroken):  # a candidate declined, or its answer cannot be compared
            raise
        except Exception as error:
            self.judge.law(False, f"a step with {name} raised {error!r} instead of ValueError")
        else:
            self.judge.law(False, f"a step with {name} was not refused")
        for slot, digest in enumerate(before):
            self.judge.unchanged(f"state after {name}", digest, self._digest(slot), slot=slot)

    def _judge(self, order: Sequence[int], logits: Tensor, idle: dict[int, str]) -> None:
        for row, slot in enumerate(order):
            at = self.fed[slot]
            where: dict[str, Any] = {"row": row, "slot": slot, "step": self.step_number}
            self.judge.equal("logits", logits[row:row + 1][0] if row < len(logits) else logits,
                             self.live[slot].logits[at - 1], **where)
            tensors = self.engine.read_state(self.pool, slot)
            self.judge.law(bool(tensors),
                           f"state[slot {slot}] is empty: read_state() returned no tensor")
            digest = state_digest(tensors, at)
            self.judge.law(digest == self.live[slot].digests[at - 1],
                           f"state[slot {slot}, step {self.step_number}] after {at} tokens differs "
                           f"from the state of this sequence run by itself", rung="bits", **where)
        for slot, before in idle.items():
            self.judge.unchanged("state", before, self._digest(slot), slot=slot,
                                 step=self.step_number)

    def _digest(self, slot: int) -> str:
        return state_digest(self.engine.read_state(self.pool, slot))
