"""How P6's falsifiers run attention: poisoned and guarded slots, every byte checked afterwards.

The function under test is the subject's op or, in Triton's interpreter, its kernel. A row without
tokens is a pad: no sequence owns its slot and its pointer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from contracts.load import CONTRACTS_FOLDER, load_contract
from contracts.schema import Budget, Case
from engine import ops
from engine.op_table import on_tier
from engine.state import Ints, Refs, kv_type
from falsifiers.instruments.bounds_checker import BoundsChecker, check_bounds
from falsifiers.judging.errors import Declined
from falsifiers.judging.judge import Judge
from falsifiers.judging.poison import Guarded, new_guarded
from falsifiers.judging.subject import Subject
from phases.case_setup import first_difference, has_own_arithmetic, own_budget, quiet_call
from phases.p6_batched_attention.data import DIM, Row, draw_sequence

CONTRACT = CONTRACTS_FOLDER / "p6.yaml"
NO_SLOT = 1 << 20
"""The slot of pads, outside every pool."""


@dataclass(frozen=True)
class Layout:
    """The slots of rows and the contents of all other cache rows."""

    slots: tuple[int, ...] | None = None
    """The slot of each row; None means slots 0 to m - 1."""
    pool_slots: int = 0
    """Slots of the pool; 0 means one more than the rows need."""
    unwritten_value: float = float("nan")
    """The value of every cache row that no sequence has written."""
    capacity: int = 0
    """Cache rows of a slot; 0 means three more than the longest row needs."""


@dataclass
class GuardedCall:
    """The operands of one call of attention."""

    rows: Sequence[Row]
    q: Tensor
    k: Tensor
    v: Tensor
    gate: Tensor
    keys: Guarded
    values: Guarded
    pad_target: Guarded
    """Memory outside the pool, which the pointers of pads address."""
    out: Guarded
    slots: tuple[int, ...]
    pointers: tuple[Tensor, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.pointers = self._addresses(self.keys.inside), self._addresses(self.values.inside)

    def _addresses(self, cache: Tensor) -> Tensor:
        stride = cache.stride(0) * cache.element_size()
        at = [cache.data_ptr() + slot * stride if row.count else self.pad_target.inside.data_ptr()
              for slot, row in zip(self.slots, self.rows, strict=True)]
        return torch.tensor(at, dtype=torch.uint64).to(cache.device)

    def arguments(self) -> tuple[Any, ...]:
        """Return the op's arguments."""
        refs = [Refs(cache.inside, self.slots, addresses)
                for cache, addresses in zip((self.keys, self.values), self.pointers, strict=True)]
        return (self.q, self.k, self.v, self.gate, *refs, Ints(row.length for row in self.rows),
                Ints(row.count for row in self.rows), self.out.inside)

    def spans(self) -> list[slice]:
        """Return the range of each row's tokens among all tokens."""
        starts = Ints(row.count for row in self.rows).starts
        return [slice(a, b) for a, b in pairwise(starts)]


class Harness:
    """The attention that a case tests, and the truth rule of its arithmetic."""

    def __init__(self, case: Case, subject: Subject, judge: Judge) -> None:
        self.judge, self.device, self.candidate = judge, subject.device, subject.candidate
        self.heads, self.groups = case["heads"]
        self.kv = cache_dtype(case, subject)
        self.bitwise = not has_own_arithmetic(subject)
        if self.candidate is not None:
            self.candidate.refuse(case)
        self.op = select_op(case, subject, "attend")

    def __call__(self, rows: Sequence[Row], layout: Layout | None = None) -> list[Tensor]:
        """Return each row's outputs [count, H, D] on the CPU; check all other memory."""
        step = self.lay_out(rows, layout or Layout())
        before = {name: x.clone() for name, x in self._memory(step).items()}
        self.run(step)
        self._check_memory(step, before)
        out = step.out.inside.cpu()
        return [out[span] for span in step.spans()]

    def run(self, step: GuardedCall) -> Any:
        """Run the op and return its result; warnings of a candidate or numpy do not count."""
        with quiet_call():
            return self.op(*step.arguments())

    def lay_out(self, rows: Sequence[Row], layout: Layout) -> GuardedCall:
        """Return a step's operands: caches filled up to each row's length, poison elsewhere."""
        heads, groups, dev = self.heads, self.groups, self.device
        slots = layout.slots or tuple(range(len(rows)))
        slots = tuple(s if row.count else NO_SLOT for s, row in zip(slots, rows, strict=True))
        real = [s for s in slots if s != NO_SLOT]
        room = layout.pool_slots or max(real, default=0) + 2
        capacity = layout.capacity or max(row.reach for row in rows) + 3
        t = sum(row.count for row in rows)
        keys, values = (new_guarded(room, capacity, groups, DIM, dtype=self.kv, device=dev)
                        for _ in range(2))
        for cache in (keys, values):  # a value too large for the type becomes infinite
            cache.inside.copy_(torch.tensor(layout.unwritten_value))
        both = torch.full((t, heads, 2, DIM), torch.nan)  # a head's query, then its gate
        k = torch.empty(t, groups, DIM)
        v = torch.full((t, groups, DIM + 4), torch.nan, device=dev)[..., :DIM]  # not k's strides
        at = 0
        for slot, row in zip(slots, rows, strict=True):
            if row.count:
                drawn, span = draw_sequence(row, heads, groups), slice(at, at + row.count)
                both[span, :, 0], both[span, :, 1] = drawn.queries(row)
                k[span], v[span] = drawn.k[row.length:], drawn.v[row.length:]
                keys.inside[slot, :row.length] = drawn.k[:row.length].to(dev)
                values.inside[slot, :row.length] = drawn.v[:row.length].to(dev)
                at += row.count
        q, gate = both.to(dev).unbind(2)
        return GuardedCall(rows, q.contiguous(), k.to(dev), v, gate, keys, values,
                           new_guarded(capacity, groups, DIM, dtype=self.kv, device=dev),
                           new_guarded(t, heads, DIM, device=dev), slots)

    @staticmethod
    def _memory(step: GuardedCall) -> dict[str, Tensor]:
        return {"keys": step.keys.inside, "values": step.values.inside, "q": step.q, "k": step.k,
                "v": step.v, "gate": step.gate, "memory outside the pool": step.pad_target.inside}

    def _check_memory(self, step: GuardedCall, want: dict[str, Tensor]) -> None:
        """Compare all memory with `want`, the new rows of each slot with the step's k and v."""
        for name, new in (("keys", step.k), ("values", step.v)):
            for slot, row, span in zip(step.slots, step.rows, step.spans(), strict=True):
                if row.count:
                    want[name][slot, row.length:row.reach] = new[span]
        for name, x in self._memory(step).items():
            place = first_difference(x, want[name])
            self.judge.law(place is None, f"{name}{place} has a wrong value after the step: an old "
                           f"row, a tail, an idle slot or an input was written, or a new row was "
                           f"not", rung="frame")
        for name, guard in (("keys", step.keys), ("values", step.values), ("out", step.out),
                            ("memory outside the pool", step.pad_target)):
            guard.hold(self.judge, name)

    def check_truth(self, got: Tensor, of_row: Row, **where: int | str) -> None:
        """Compare a row's outputs with the engine's: in bits, or by an own arithmetic's budget."""
        want = engine_output(of_row, self.heads, self.groups, self.kv)
        if self.bitwise:
            self.judge.equal("attend", got, want, rule="truth", finite=False, **where)
        else:
            if not bool(torch.isfinite(want).all()):
                raise Declined("a candidate's own arithmetic is not compared on a row with NaN")
            self.judge.budget("attend", got.flatten(0, 1).float(), want.flatten(0, 1),
                              own_budget("p6"), **where)  # type: ignore[arg-type]

    @contextmanager
    def watch_bounds(self, step: GuardedCall) -> Iterator[BoundsChecker]:
        """Check the accesses of a call in Triton's interpreter to the memory of its operands.

        A row may read its keys and values up to its reach. A pad may not even read its pointer.
        """
        read, write = {"q": step.q, "k": step.k, "v": step.v, "gate": step.gate}, {}
        around = {"out": step.out.memory, "memory outside the pool": step.pad_target.memory}
        write["out"] = step.out.inside
        for name, guard, pointers in zip(("keys", "values"), (step.keys, step.values),
                                         step.pointers, strict=True):
            around |= {name: guard.memory, f"pointers of {name}": pointers}
            for i, (slot, row) in enumerate(zip(step.slots, step.rows, strict=True)):
                if row.count:
                    cache = guard.inside[slot]
                    read[f"{name} of slot {slot}"] = cache[:row.reach]
                    read[f"pointer {i} of {name}"] = pointers[i:i + 1]
                    write[f"new {name} of slot {slot}"] = cache[row.length:row.reach]
        with check_bounds(read, write, around) as checker:
            yield checker


@lru_cache(maxsize=256)
def engine_output(row: Row, heads: int, groups: int, kv: torch.dtype = torch.float32) -> Tensor:
    """Return the engine's output for a row by itself over caches of a type, [count, H, D]."""
    drawn = draw_sequence(row, heads, groups)
    keys, values = (Refs(x.to(kv, copy=True).unsqueeze(0), (0,)) for x in (drawn.k, drawn.v))
    q, gate = drawn.queries(row)
    out = torch.empty_like(q)
    ops.attend(q, drawn.k[row.length:], drawn.v[row.length:], gate, keys, values, (row.length,),
               (row.count,), out)
    return out


def cache_dtype(case: Case, subject: Subject) -> torch.dtype:
    """Return the type of a case's caches; decline one that a candidate does not offer."""
    name = case.given.get("kv", "f32")
    if subject.candidate is not None and name != "f32" and name not in subject.candidate.kv:
        raise Declined(f"it does not offer keys and values in {name}: set KV = ({name!r},)")
    return kv_type(name)


def kv_budget(case: Case) -> Budget:
    """Return the budget against f32 for a case's narrow caches."""
    return load_contract(CONTRACT).parity.kv[case["kv"]]


def select_op(case: Case, subject: Subject, name: str) -> Callable[..., None]:
    """Return the function of an op that a case tests: the path's, or its kernel if interpreted.

    A case with `kernel: triton` tests the portable kernel on a device.
    """
    op = getattr(subject.path, name)
    if subject.candidate is not None:
        op = subject.candidate.op(name)
        if op is None:
            raise Declined(f"it offers no {name}")
    elif case.given.get("kernel") == "triton":
        op = getattr(import_module(f"{__package__}.kernel_{name}"), name)
    elif case.tier == "interpret":
        op = on_tier(op, "interpret")
    return op  # type: ignore[no-any-return]


def check_rotated(judge: Judge, subject: Subject, got: Tensor, want: Tensor, turned: int,
                  **where: int | str) -> None:
    """Compare rotated heads bit for bit, or their first `turned` dimensions by a budget.

    Dimensions that are copied equal bit for bit in any arithmetic.
    """
    if not has_own_arithmetic(subject):
        judge.equal("rotate", got, want, rule="truth", **where)  # type: ignore[arg-type]
        return
    judge.equal("rotate", got[..., turned:], want[..., turned:], rule="truth",
                **where)  # type: ignore[arg-type]
    judge.budget("rotate", got[..., :turned].flatten(0, 1), want[..., :turned].flatten(0, 1),
                 own_budget("p6"), **where)  # type: ignore[arg-type]
