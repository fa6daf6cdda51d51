"""How P6's attack runs attention: slots laid out with poison and guards, every byte after judged.

What is judged is the subject's op, as the case's tier has it run. A row of no tokens is a pad: its
slot and its pointer are nobody's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contracts.load import load_contract
from contracts.schema import Budget, Case
from engine import ops
from engine.op_table import on_tier
from engine.state import Ints, Refs, kv_type
from falsifiers.instruments.bounds_checker import BoundsChecker, check_bounds
from falsifiers.instruments.deterministic_dot import deterministic_dots
from falsifiers.judging.errors import Declined, SuiteError
from falsifiers.judging.judge import Judge
from falsifiers.judging.poison import Guarded, new_guarded
from falsifiers.judging.subject import Subject
from phases.p6_batched_attention.data import DIM, Row, draw_sequence

CONTRACT = Path(__file__).parents[2] / "contracts" / "p6.yaml"
NO_SLOT = 1 << 20
"""A slot that no pool has, for pads."""


@dataclass(frozen=True)
class Layout:
    """Where rows lie and what surrounds them."""

    slots: tuple[int, ...] | None = None
    """The slot of each row; the first m when not given."""
    pool_slots: int = 0
    """Slots of the pool; one more than the rows need when 0."""
    unwritten_value: float = float("nan")
    """What fills every cache row that no sequence has written."""
    capacity: int = 0
    """Rows of a slot; three more than the longest needs when 0."""


@dataclass
class GuardedCall:
    """One call under way: its operands, and what they must be afterwards."""

    rows: Sequence[Row]
    q: Tensor
    k: Tensor
    v: Tensor
    gate: Tensor
    keys: Guarded
    values: Guarded
    pad_target: Guarded
    """Memory that is no slot's, where the pointers of pads lead."""
    out: Guarded
    slots: tuple[int, ...]
    pointers: tuple[Tensor, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.pointers = self._addresses(self.keys.inside), self._addresses(self.values.inside)

    def _addresses(self, cache_: Tensor) -> Tensor:
        apart = cache_.stride(0) * cache_.element_size()
        at = [cache_.data_ptr() + slot * apart if row.count else self.pad_target.inside.data_ptr()
              for slot, row in zip(self.slots, self.rows, strict=True)]
        return torch.tensor(at, dtype=torch.uint64).to(cache_.device)

    def arguments(self) -> tuple[Any, ...]:
        """Return the op's arguments."""
        refs = [Refs(cache_.inside, self.slots, held)
                for cache_, held in zip((self.keys, self.values), self.pointers, strict=True)]
        return (self.q, self.k, self.v, self.gate, *refs, Ints(row.length for row in self.rows),
                Ints(row.count for row in self.rows), self.out.inside)

    def spans(self) -> list[slice]:
        """Return where each row's tokens stand among all."""
        starts = Ints(row.count for row in self.rows).starts
        return [slice(a, b) for a, b in pairwise(starts)]


class Harness:
    """The attention that a case judges, and the rule of truth for its arithmetic."""

    def __init__(self, case: Case, subject: Subject, judge: Judge) -> None:
        self.judge, self.device, self.candidate = judge, subject.device, subject.candidate
        self.heads, self.groups = case["heads"]
        self.kv = cache_dtype(case, subject)
        self.bitwise = self.candidate is None or self.candidate.bitwise
        if self.candidate is not None:
            self.candidate.refuse(case)
        self.op = select_op(case, subject, "attend")

    def __call__(self, rows: Sequence[Row], layout: Layout | None = None) -> list[Tensor]:
        """Return each row's outputs [count, H, D] on the CPU; judge what else became of memory."""
        step = self.lay_out(rows, layout or Layout())
        held = {name: x.clone() for name, x in self._memory(step).items()}
        self.run(step)
        self._check_memory(step, held)
        out = step.out.inside.cpu()
        return [out[span] for span in step.spans()]

    def run(self, step: GuardedCall) -> Any:
        """Run the op and return what it returns; warnings of a candidate or numpy do not count."""
        with warnings.catch_warnings(), np.errstate(all="ignore"), deterministic_dots():
            warnings.simplefilter("ignore")
            return self.op(*step.arguments())

    def lay_out(self, rows: Sequence[Row], layout: Layout) -> GuardedCall:
        """Return a step's operands: slots filled up to each row's length, poison elsewhere."""
        heads, groups, dev = self.heads, self.groups, self.device
        slots = layout.slots or tuple(range(len(rows)))
        slots = tuple(s if row.count else NO_SLOT for s, row in zip(slots, rows, strict=True))
        real = [s for s in slots if s != NO_SLOT]
        room = layout.pool_slots or max(real, default=0) + 2
        capacity = layout.capacity or max(row.reach for row in rows) + 3
        t = sum(row.count for row in rows)
        keys, values = (new_guarded(room, capacity, groups, DIM, dtype=self.kv, device=dev)
                        for _ in range(2))
        for cache_ in (keys, values):
            cache_.inside.copy_(
                torch.tensor(layout.unwritten_value)
            )  # infinite if a type cannot hold it
        both = torch.full((t, heads, 2, DIM), torch.nan)  # a head's query, then its gate
        k = torch.empty(t, groups, DIM)
        v = torch.full((t, groups, DIM + 4), torch.nan, device=dev)[..., :DIM]  # strides of its own
        at = 0
        for slot, row in zip(slots, rows, strict=True):
            if row.count:
                own, span = draw_sequence(row, heads, groups), slice(at, at + row.count)
                both[span, :, 0], both[span, :, 1] = own.queries(row)
                k[span], v[span] = own.k[row.length:], own.v[row.length:]
                keys.inside[slot, :row.length] = own.k[:row.length].to(dev)
                values.inside[slot, :row.length] = own.v[:row.length].to(dev)
                at += row.count
        q, gate = both.to(dev).unbind(2)
        return GuardedCall(rows, q.contiguous(), k.to(dev), v, gate, keys, values,
                    new_guarded(capacity, groups, DIM, dtype=self.kv, device=dev),
                    new_guarded(t, heads, DIM, device=dev), slots)

    @staticmethod
    def _memory(step: GuardedCall) -> dict[str, Tensor]:
        return {"keys": step.keys.inside, "values": step.values.inside, "q": step.q, "k": step.k,
                "v": step.v, "gate": step.gate, "memory of no slot": step.pad_target.inside}

    def _check_memory(self, step: GuardedCall, held: dict[str, Tensor]) -> None:
        """Hold all memory to what it was, the new rows of each slot to the step's k and v."""
        for name, joined in (("keys", step.k), ("values", step.v)):
            for slot, row, span in zip(step.slots, step.rows, step.spans(), strict=True):
                if row.count:
                    held[name][slot, row.length:row.reach] = joined[span]
        for name, x in self._memory(step).items():
            kind = {4: torch.int32, 2: torch.int16}[x.element_size()]
            wrong = x.contiguous().view(kind) != held[name].contiguous().view(kind)
            if kind == torch.int16:  # each converter makes a NaN of its own
                wrong &= ~(torch.isnan(x) & torch.isnan(held[name]))
            if bool(wrong.any()):
                place = wrong.nonzero()[0].tolist()
                self.judge.law(False, f"{name}{place} is not what it should be after the step: an "
                               f"old row, a tail, an idle slot or an input was written, or a new "
                               f"row was not", rung="frame")
        self.judge.law(True, "memory is as it should be")
        for name, guard in (("keys", step.keys), ("values", step.values), ("out", step.out),
                            ("memory of no slot", step.pad_target)):
            guard.hold(self.judge, name)

    def check_truth(self, got: Tensor, of: Row, **where: int | str) -> None:
        """Hold a row's outputs to the engine's: in bits, or to the budget of one's own."""
        want = engine_output(of, self.heads, self.groups, self.kv)
        if self.bitwise:
            self.judge.equal("attend", got, want, rule="truth", finite=False, **where)
        else:
            if not bool(torch.isfinite(want).all()):
                raise Declined("an arithmetic of its own is not held to a row that holds NaN")
            self.judge.budget("attend", got.flatten(0, 1).float(), want.flatten(0, 1),
                              own_budget(), **where)  # type: ignore[arg-type]

    @contextmanager
    def watch_bounds(self, step: GuardedCall) -> Iterator[BoundsChecker]:
        """Watch what a call under the interpreter touches of the memory that it was given.

        A token may read its row's keys and values as far as it reaches; a pad not even its pointer.
        """
        read, write = {"q": step.q, "k": step.k, "v": step.v, "gate": step.gate}, {}
        around = {"out": step.out.whole, "memory of no slot": step.pad_target.whole}
        write["out"] = step.out.inside
        for name, whole, held in zip(("keys", "values"), (step.keys, step.values), step.pointers,
                                     strict=True):
            around |= {name: whole.whole, f"pointers of {name}": held}
            for i, (slot, row) in enumerate(zip(step.slots, step.rows, strict=True)):
                if row.count:
                    own = whole.inside[slot]
                    read[f"{name} of slot {slot}"] = own[:row.reach]
                    read[f"pointer {i} of {name}"] = held[i:i + 1]
                    write[f"new {name} of slot {slot}"] = own[row.length:row.reach]
        with check_bounds(read, write, around) as fence:
            yield fence


@lru_cache(maxsize=256)
def engine_output(row: Row, heads: int, groups: int, kv: torch.dtype = torch.float32) -> Tensor:
    """Return what the engine gives a row alone over caches of a type, [count, H, D]."""
    own = draw_sequence(row, heads, groups)
    keys, values = (Refs(x.to(kv, copy=True).unsqueeze(0), (0,)) for x in (own.k, own.v))
    q, gate = own.queries(row)
    out = torch.empty_like(q)
    ops.attend(q, own.k[row.length:], own.v[row.length:], gate, keys, values, (row.length,),
               (row.count,), out)
    return out


def cache_dtype(case: Case, subject: Subject) -> torch.dtype:
    """Return the type of a case's caches; one narrower than f32 is a candidate's to offer."""
    name = case.given.get("kv", "f32")
    if subject.candidate is not None and name != "f32" and name not in subject.candidate.kv:
        raise Declined(f"it does not offer keys and values in {name}, as KV = ({name!r},) would")
    return kv_type(name)


def kv_budget(case: Case) -> Budget:
    """Return how far from f32 a case's narrower caches may lead."""
    return load_contract(CONTRACT).parity.kv[case["kv"]]


def select_op(case: Case, subject: Subject, name: str) -> Callable[..., None]:
    """Return the op that a case judges: on the CPU as it is, else what a device would run.

    A case on a device may ask for the portable kernel in place of the one that the path takes.
    """
    op = getattr(subject.path, name)
    if subject.candidate is not None:
        own = subject.candidate.op(name)
        if own is None:
            raise Declined(f"it offers no {name}")
        op = own
    elif case.given.get("kernel") == "triton":
        op = getattr(import_module(f"{__package__}.kernel_{name}"), name)
    elif case.tier == "interpret":
        op = on_tier(op, "interpret")
    return op  # type: ignore[no-any-return]


def check_rotated(judge: Judge, subject: Subject, got: Tensor, want: Tensor, turned: int,
                **where: int | str) -> None:
    """Hold rotated heads to bits, or what turns to the budget of one's own and what passes to bits.

    What passes is copied, and a copy is the same in any arithmetic.
    """
    if subject.candidate is None or subject.candidate.bitwise:
        judge.equal("rotate", got, want, rule="truth", **where)  # type: ignore[arg-type]
        return
    judge.equal("rotate", got[..., turned:], want[..., turned:], rule="truth",
                **where)  # type: ignore[arg-type]
    judge.budget("rotate", got[..., :turned].flatten(0, 1), want[..., :turned].flatten(0, 1),
                 own_budget(), **where)  # type: ignore[arg-type]


@cache
def own_budget() -> Budget:
    """Return the contract's budget, for candidates of their own arithmetic and for f64."""
    budget = load_contract(CONTRACT).parity.own
    if budget is None:
        raise SuiteError(f"{CONTRACT.name} has no budget for an arithmetic of one's own")
    return budget
