"""How P5's attack runs an op: a pool between guards, poison in idle slots, every stray write seen.

What is judged is the path's op on the CPU and on a device, its portable kernel under the
interpreter and where a case says so, or a candidate's function everywhere.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contracts.load import load_contract
from contracts.schema import Budget, Case
from engine import ops
from engine.op_table import on_tier
from engine.state import Ints, Refs
from falsifiers.instruments.bounds_checker import BoundsChecker, check_bounds
from falsifiers.instruments.deterministic_dot import deterministic_dots
from falsifiers.instruments.load_counter import interpreter_builder
from falsifiers.judging.errors import Declined, SuiteError
from falsifiers.judging.judge import Judge
from falsifiers.judging.poison import new_guarded, poison
from falsifiers.judging.subject import Subject
from phases.p5_batched_gdn.data import OPS, Inputs, Op, Row, apply_flavour, draw_normal

SIGNALING_NAN = 0x7FA5A5A5
"""Bits of a signaling NaN."""
CONTRACT = Path(__file__).parents[2] / "contracts" / "p5.yaml"


class PoisonedPool:
    """States of so many slots and of one more that nobody owns, between guards, all poison.

    NaN hides what is worked on in place, so every other slot and the last hold small numbers; and
    writing a number back hides that, so half of the last one's are NaN that any arithmetic quiets.
    """

    def __init__(self, op: Op, slots: int, device: str) -> None:
        self.slots = slots
        self.guard = new_guarded(slots + 1, *op.state_shape, device=device)
        self.whole = self.guard.inside
        for slot in (*range(1, slots, 2), slots):
            poison(self.whole[slot], sentinel=True)
        self.whole[slots].view(torch.int32).view(-1)[::2] = SIGNALING_NAN

    def write(self, slot: int, state: Tensor) -> None:
        """Give a slot its state."""
        self.whole[slot].copy_(state)

    def refs(self, rows: Sequence[Row]) -> Refs:
        """Return the states of the rows' slots, their addresses already on the device."""
        plain = Refs(self.whole, tuple(row.slot for row in rows))
        return Refs(plain.whole, plain.slots, plain.pointers)

    def read(self, slot: int) -> Tensor:
        """Return a copy of a slot's state, on the CPU."""
        return self.whole[slot].clone().cpu()


class Harness:
    """The op that a case judges, with what it is run on."""

    def __init__(self, case: Case, subject: Subject, judge: Judge) -> None:
        self.judge, self.device = judge, subject.device
        self.function, self.bitwise = select_op(case, subject, case["op"]), True
        self.op = OPS[case["op"]](*case["heads"])
        if subject.candidate is not None:
            self.bitwise = subject.candidate.bitwise

    def build_pool(self, slots: int, states: dict[int, Tensor] | None = None) -> PoisonedPool:
        """Return a new arena, these slots with a state and all others poison."""
        arena = PoisonedPool(self.op, slots, self.device)
        for slot, state in (states or {}).items():
            arena.write(slot, state)
        return arena

    def draw_state(self, seed: int, flavour: str = "plain") -> Tensor:
        """Return a state that a sequence might have reached."""
        return apply_flavour(draw_normal(900 + seed, *self.op.state_shape) * 0.3, flavour)

    def empty_state(self) -> Tensor:
        """Return the state of a sequence without tokens."""
        return torch.zeros(self.op.state_shape)

    def run(self, arena: PoisonedPool, rows: Sequence[Row], **where: int | str) -> list[Tensor]:
        """Return each row's output, on the CPU; judge what the call left behind."""
        inputs, room = self._lay_out(rows)
        out = new_guarded(*self.op.out_shape(inputs), device=self.device)
        state, held = arena.whole.clone(), [x.clone() for x in (room, *inputs)]
        self._call(inputs, arena.refs(rows), token_counts(rows), out.inside)
        out.hold(self.judge, "out", **where)
        arena.guard.hold(self.judge, "the pool", **where)
        for x, before in zip((room, *inputs), held, strict=True):
            self.judge.law(_same_bytes(x, before), "an input was written", rung="frame", **where)
        asked = {row.slot for row in rows if row.count}
        for slot in range(arena.slots + 1):
            if slot not in asked:
                self.judge.law(
                    _same_bytes(arena.whole[slot], state[slot]),
                    f"state[slot {slot}] was changed by a call that does not name it",
                    rung="frame",
                    **where,
                )
        return list(out.inside.cpu().split([row.count for row in rows]))

    def _lay_out(self, rows: Sequence[Row]) -> tuple[Inputs, Tensor]:
        joined = tuple(torch.cat(parts) for parts in zip(*(row.inputs for row in rows),
                                                         strict=True))
        return self.op.lay_out(joined, 3 + len(rows) % 2, self.device)

    def _call(self, inputs: Inputs, refs: Refs, counts: Ints, out: Tensor) -> None:
        with warnings.catch_warnings(), np.errstate(all="ignore"), deterministic_dots():
            warnings.simplefilter("ignore")
            self.op.call(self.function, inputs, refs, counts, out)

    def run_unchecked(self, whole: Tensor, rows: Sequence[Row]) -> list[Tensor]:
        """Return each row's output over any slots [slots, ...], judging nothing."""
        inputs, _ = self._lay_out(rows)
        out = torch.empty(self.op.out_shape(inputs), device=self.device)
        self._call(inputs, Refs(whole, tuple(row.slot for row in rows)), token_counts(rows), out)
        return list(out.cpu().split([row.count for row in rows]))

    def run_bounds_checked(self, arena: PoisonedPool, rows: Sequence[Row]) -> BoundsChecker:
        """Run a call under the interpreter and return what its kernels touched.

        They may read what they are given, and write the output and the rows' own states.
        """
        inputs, _ = self._lay_out(rows)
        out, refs, counts = (
            torch.empty(self.op.out_shape(inputs)),
            arena.refs(rows),
            token_counts(rows),
        )
        given = {"addresses": refs.pointers, "starts": counts.starts.on(self.device),
                 **self.op.constants, **{f"input {i}": x for i, x in enumerate(inputs)}}
        states = {f"state of slot {row.slot}": arena.whole[row.slot] for row in rows if row.count}
        with check_bounds(given, {"out": out, **states}) as fence:
            self._call(inputs, refs, counts, out)
        return fence

    def run_solo(self, row: Row, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output and the state that a row gets alone, in a pool of one slot."""
        arena = self.build_pool(1, {0: state})
        return self.run(arena, [row.slice_tokens(0, row.count, 0)])[0], arena.read(0)

    def run_engine_op(self, row: Row, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output and the state that the engine's own op gives the row."""
        whole, out = state.clone().unsqueeze(0), torch.empty(self.op.out_shape(row.inputs))
        self.op.call(getattr(ops, self.op.name), row.inputs, Refs(whole, (0,)), (row.count,), out)
        return out, whole[0]

    def hold(self, arena: PoisonedPool, rows: Sequence[Row], got: Sequence[Tensor],
             want: Sequence[tuple[Tensor, Tensor]], finite: bool = True,
             **where: int | str) -> None:
        """Hold each row's output and state to what it should be, in bits."""
        for i, (row, (out, state)) in enumerate(zip(rows, want, strict=True)):
            at: Any = {"row": i, "slot": row.slot, **where}
            self.judge.equal("out", got[i], out, finite=finite, **at)
            self.judge.equal("state", arena.read(row.slot), state, finite=finite, **at)

    def check_truth(self, arena: PoisonedPool, rows: Sequence[Row], got: Sequence[Tensor],
                  before: dict[int, Tensor], finite: bool = True, **where: int | str) -> None:
        """Hold each row to the engine's op: in bits, or to the budget of an own arithmetic."""
        for i, row in enumerate(rows):
            pairs = zip(("out", "state"), (got[i], arena.read(row.slot)),
                        self.run_engine_op(row, before[row.slot]), strict=True)
            for name, mine, want in pairs:
                at: Any = {"slot": row.slot, **where}
                if self.bitwise:
                    self.judge.equal(name, mine, want, rule="truth", finite=finite, row=i, **at)
                else:  # each vector of values by itself
                    self.judge.budget(name, mine, want, own_budget(), **at)


@contextmanager
def record_launches() -> Iterator[list[tuple[int, ...]]]:
    """Note the grid of every kernel that the interpreter launches in the block."""
    interpreter_builder()
    executor: Any = importlib.import_module("triton.runtime.interpreter").GridExecutor
    real, grids = executor.__call__, list[tuple[int, ...]]()

    def counted(self: Any, *args: Any, **named: Any) -> Any:
        grids.append(tuple(self.grid) if isinstance(self.grid, tuple) else ())
        return real(self, *args, **named)

    executor.__call__ = counted
    try:
        yield grids
    finally:
        executor.__call__ = real


def token_counts(rows: Sequence[Row]) -> Ints:
    """Return each row's tokens."""
    return Ints(row.count for row in rows)


def _same_bytes(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors hold the same bytes, any NaN its own."""
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


def select_op(case: Case, subject: Subject, name: str) -> Any:
    """Return the implementation of an op that a case judges."""
    candidate = subject.candidate
    if candidate is not None:
        candidate.refuse(case)
        if candidate.io_dtype is not None:
            raise Declined("activations of this phase are f32")
        own = candidate.op(name)
        if own is None:
            raise Declined(f"it offers no {name}")
        return own
    op = getattr(subject.path, name)
    portable = case.tier == "interpret" or case.given.get("kernel") == "portable"
    return on_tier(op, "interpret") if portable else op


@cache
def own_budget() -> Budget:
    """Return the contract's budget for candidates with an arithmetic of their own."""
    budget = load_contract(CONTRACT).parity.own
    if budget is None:
        raise SuiteError(f"{CONTRACT.name} has no budget for an arithmetic of one's own")
    return budget
