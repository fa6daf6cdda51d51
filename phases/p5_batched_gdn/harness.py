"""How P5's falsifiers run an op: a guarded pool, poison in idle slots, every write checked.

The function under test depends on the tier: the path's op on the CPU and on a device, its portable
kernel in Triton's interpreter or where a case names it. A candidate's function is the same in all.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from contracts.load import CONTRACTS_FOLDER
from contracts.schema import Case
from engine import ops
from engine.op_table import on_tier
from engine.state import Ints, Refs
from falsifiers.instruments.bounds_checker import BoundsChecker, check_bounds
from falsifiers.instruments.load_counter import interpreter_builder
from falsifiers.judging.errors import Declined
from falsifiers.judging.judge import Judge
from falsifiers.judging.poison import new_guarded, poison
from falsifiers.judging.subject import Subject
from phases.case_setup import first_difference, has_own_arithmetic, own_budget, quiet_call
from phases.p5_batched_gdn.data import OPS, Inputs, Op, Row, apply_flavour, draw_normal

CONTRACT = CONTRACTS_FOLDER / "p5.yaml"
SIGNALING_NAN = 0x7FA5A5A5
"""Bits of a signaling NaN."""


class PoisonedPool:
    """Guarded states of `slots` slots and of one extra slot without an owner, all poisoned.

    Arithmetic on NaN changes no bit, so every other slot and the extra one hold small numbers. A
    number written back unchanged is not seen either, so half of the extra slot is signaling NaN,
    which any arithmetic turns into a quiet one.
    """

    def __init__(self, op: Op, slots: int, device: str) -> None:
        self.slots = slots
        self.guard = new_guarded(slots + 1, *op.state_shape, device=device)
        self.states = self.guard.inside
        for slot in (*range(1, slots, 2), slots):
            poison(self.states[slot], sentinel=True)
        self.states[slots].view(torch.int32).view(-1)[::2] = SIGNALING_NAN

    def write(self, slot: int, state: Tensor) -> None:
        """Write a slot's state."""
        self.states[slot].copy_(state)

    def refs(self, rows: Sequence[Row]) -> Refs:
        """Return the states of the rows' slots, with their addresses on the device."""
        refs = Refs(self.states, tuple(row.slot for row in rows))
        return Refs(refs.all_slots, refs.slots, refs.pointers)

    def read(self, slot: int) -> Tensor:
        """Return a copy of a slot's state, on the CPU."""
        return self.states[slot].clone().cpu()


class Harness:
    """The op that a case tests, with its inputs and states."""

    def __init__(self, case: Case, subject: Subject, judge: Judge) -> None:
        self.judge, self.device = judge, subject.device
        self.function = select_op(case, subject, case["op"])
        self.bitwise = not has_own_arithmetic(subject)
        self.op = OPS[case["op"]](*case["heads"])

    def build_pool(self, slots: int, states: dict[int, Tensor] | None = None) -> PoisonedPool:
        """Return a new pool with these states in their slots and poison in all others."""
        pool = PoisonedPool(self.op, slots, self.device)
        for slot, state in (states or {}).items():
            pool.write(slot, state)
        return pool

    def draw_state(self, seed: int, flavour: str = "plain") -> Tensor:
        """Return a state that a sequence might have reached."""
        return apply_flavour(draw_normal(900 + seed, *self.op.state_shape) * 0.3, flavour)

    def empty_state(self) -> Tensor:
        """Return the state of a sequence without tokens."""
        return torch.zeros(self.op.state_shape)

    def run(self, pool: PoisonedPool, rows: Sequence[Row], **where: int | str) -> list[Tensor]:
        """Return each row's output on the CPU; check guards, inputs and all other slots."""
        inputs, buffer = self._lay_out(rows)
        out = new_guarded(*self.op.out_shape(inputs), device=self.device)
        states, copies = pool.states.clone(), [x.clone() for x in (buffer, *inputs)]
        self._call(inputs, pool.refs(rows), token_counts(rows), out.inside)
        out.hold(self.judge, "out", **where)
        pool.guard.hold(self.judge, "the pool", **where)
        for x, copy in zip((buffer, *inputs), copies, strict=True):
            self.judge.law(first_difference(x, copy) is None, "an input was written", rung="frame",
                           **where)
        named = {row.slot for row in rows if row.count}
        for slot in set(range(pool.slots + 1)) - named:
            self.judge.law(first_difference(pool.states[slot], states[slot]) is None,
                           f"state[slot {slot}] was changed by a call that does not name it",
                           rung="frame", **where)
        return list(out.inside.cpu().split([row.count for row in rows]))

    def _lay_out(self, rows: Sequence[Row]) -> tuple[Inputs, Tensor]:
        joined = tuple(map(torch.cat, zip(*(row.inputs for row in rows), strict=True)))
        return self.op.lay_out(joined, 3 + len(rows) % 2, self.device)

    def _call(self, inputs: Inputs, refs: Refs, counts: Ints, out: Tensor) -> None:
        with quiet_call():
            self.op.call(self.function, inputs, refs, counts, out)

    def run_unchecked(self, states: Tensor, rows: Sequence[Row]) -> list[Tensor]:
        """Return each row's output over states [slots, ...], without any check."""
        inputs, _ = self._lay_out(rows)
        out = torch.empty(self.op.out_shape(inputs), device=self.device)
        self._call(inputs, Refs(states, tuple(row.slot for row in rows)), token_counts(rows), out)
        return list(out.cpu().split([row.count for row in rows]))

    def run_bounds_checked(self, pool: PoisonedPool, rows: Sequence[Row]) -> BoundsChecker:
        """Run a call in Triton's interpreter and return the accesses of its kernels.

        A kernel may read the inputs, and write the output and the states of rows with tokens.
        """
        inputs, _ = self._lay_out(rows)
        out = torch.empty(self.op.out_shape(inputs))
        refs, counts = pool.refs(rows), token_counts(rows)
        readable = {"addresses": refs.pointers, "starts": counts.starts.on(self.device),
                    **self.op.constants, **{f"input {i}": x for i, x in enumerate(inputs)}}
        states = {f"state of slot {row.slot}": pool.states[row.slot] for row in rows if row.count}
        with check_bounds(readable, {"out": out, **states}) as checker:
            self._call(inputs, refs, counts, out)
        return checker

    def run_solo(self, row: Row, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output and the state of a row by itself, in a pool of one slot."""
        pool = self.build_pool(1, {0: state})
        return self.run(pool, [row.slice_tokens(0, row.count, 0)])[0], pool.read(0)

    def run_engine_op(self, row: Row, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output and the state that the engine's own op computes for the row."""
        states, out = state.clone().unsqueeze(0), torch.empty(self.op.out_shape(row.inputs))
        self.op.call(getattr(ops, self.op.name), row.inputs, Refs(states, (0,)), (row.count,), out)
        return out, states[0]

    def check_rows(self, pool: PoisonedPool, rows: Sequence[Row], got: Sequence[Tensor],
                   want: Sequence[tuple[Tensor, Tensor]], **where: int | str) -> None:
        """Compare each row's output and state with the expected ones, bit for bit."""
        for i, (row, (out, state)) in enumerate(zip(rows, want, strict=True)):
            at: Any = {"row": i, "slot": row.slot, **where}
            self.judge.equal("out", got[i], out, **at)
            self.judge.equal("state", pool.read(row.slot), state, **at)

    def check_truth(self, pool: PoisonedPool, rows: Sequence[Row], got: Sequence[Tensor],
                    before: dict[int, Tensor], finite: bool = True, **where: int | str) -> None:
        """Compare each row with the engine's op: in bits, or by the budget of an own arithmetic.

        `before` maps slots to their states before the call.
        """
        for i, row in enumerate(rows):
            pairs = zip(("out", "state"), (got[i], pool.read(row.slot)),
                        self.run_engine_op(row, before[row.slot]), strict=True)
            for name, result, want in pairs:
                at: Any = {"slot": row.slot, **where}
                if self.bitwise:
                    self.judge.equal(name, result, want, rule="truth", finite=finite, row=i, **at)
                else:  # each vector of values by itself
                    self.judge.budget(name, result, want, own_budget("p5"), **at)


@contextmanager
def record_launches() -> Iterator[list[tuple[int, ...]]]:
    """Yield a list that receives the grid of every kernel that the interpreter launches."""
    interpreter_builder()
    executor: Any = importlib.import_module("triton.runtime.interpreter").GridExecutor
    launch, grids = executor.__call__, list[tuple[int, ...]]()

    def record(self: Any, *args: Any, **options: Any) -> Any:
        grids.append(tuple(self.grid) if isinstance(self.grid, tuple) else ())
        return launch(self, *args, **options)

    executor.__call__ = record
    try:
        yield grids
    finally:
        executor.__call__ = launch


def token_counts(rows: Sequence[Row]) -> Ints:
    """Return the number of tokens of each row."""
    return Ints(row.count for row in rows)


def select_op(case: Case, subject: Subject, name: str) -> Any:
    """Return the function of an op that a case tests."""
    candidate = subject.candidate
    if candidate is not None:
        candidate.refuse(case)
        if candidate.io_dtype is not None:
            raise Declined("activations of this phase are f32")
        function = candidate.op(name)
        if function is None:
            raise Declined(f"it offers no {name}")
        return function
    op = getattr(subject.path, name)
    portable = case.tier == "interpret" or case.given.get("kernel") == "portable"
    return on_tier(op, "interpret") if portable else op
