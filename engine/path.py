"""A path: the full set of ops that a step runs, and the rows that a step names.

Phases replace parts of a path with `dataclasses.replace`; nothing about a batch is ambient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor

from engine import ops
from engine.errors import InputError
from engine.op_table import TIERS, Function, name_of, of_activations, of_parts
from engine.state import Ints, Pool, Table, to_device

if TYPE_CHECKING:
    from engine.model import Model


T = TypeVar("T")


class Sink(Protocol):
    """Receives every op of a step when it ends; the only hook."""

    def __call__(self, op: str, slot: int, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Take the op's id (`3.project.attn_qkv`), its slot, inputs and output."""


@dataclass(frozen=True)
class RowOperands:
    """The rows of a step in the form that ops take."""

    positions: Tensor
    """Each token's position in its own sequence, i64[t] on the state's device."""
    lengths: Ints
    """Tokens in each row's state before the step."""
    counts: Ints
    table: Table
    reach: int
    """Positions that the rotary table must have."""


@dataclass(frozen=True)
class Rows:
    """Which slots a step advances, from which position, by how many tokens."""

    slots: tuple[int, ...]
    positions: tuple[int, ...]
    """Tokens in each slot's state before the step."""
    counts: tuple[int, ...]
    """Tokens of each row in this step: 1 is decode, more is a prefill chunk."""
    operands: RowOperands | None = None
    """The rows in the form that ops take, if the caller prepared it; else the step does."""

    @staticmethod
    def decode(slots: Sequence[int], positions: Sequence[int]) -> Rows:
        """Return rows of one token each."""
        return Rows(tuple(slots), tuple(positions), (1,) * len(slots))

    @property
    def slices(self) -> list[slice]:
        """The slice of each row among the step's tokens."""
        ends = accumulate(self.counts)
        return [slice(end - count, end) for end, count in zip(ends, self.counts, strict=True)]

    def spans(self, tokens: Sequence[T]) -> list[tuple[int, int, Sequence[T]]]:
        """Return each row's slot, position and slice of the step's tokens."""
        return [(slot, position, tokens[span]) for slot, position, span
                in zip(self.slots, self.positions, self.slices, strict=True)]

    def of_tokens(self) -> list[int]:
        """Return each token's position in its own sequence, row after row."""
        return [position + i for _, position, span in self.spans(range(sum(self.counts)))
                for i in range(len(span))]

    def operands_on(self, pool: Pool) -> RowOperands:
        """Return the rows in the form that ops take; built here unless the caller prepared it."""
        if self.operands is not None:
            return self.operands
        positions = to_device(torch.tensor(self.of_tokens()), pool.device)
        reach = max(p + c for p, c in zip(self.positions, self.counts, strict=True))
        return RowOperands(positions, Ints(self.positions), Ints(self.counts),
                           pool.table(self.slots), reach)


def check_step(model: Model, pool: Pool, tokens: Sequence[int], rows: Rows) -> None:
    """Raise `InputError` with the wrong value if a step cannot run; no state changes."""
    m = len(rows.slots)
    if m == 0:
        raise InputError("a step of no rows is refused")
    if not m == len(rows.positions) == len(rows.counts):
        raise InputError(f"a step of {m} slots has {len(rows.positions)} positions and "
                         f"{len(rows.counts)} counts")
    if sum(rows.counts) != len(tokens):
        raise InputError(f"a step of {sum(rows.counts)} tokens by its counts was given "
                         f"{len(tokens)}")
    for slot, position, count in zip(rows.slots, rows.positions, rows.counts, strict=True):
        if not 0 <= slot < pool.slots:
            raise InputError(f"slot {slot} is outside the pool of {pool.slots} slots")
        if rows.slots.count(slot) > 1:
            raise InputError(f"slot {slot} appears twice in one step")
        if count < 1:
            raise InputError(f"slot {slot} has a count of {count}, but a row needs 1 or more")
        if position < 0:
            raise InputError(f"slot {slot} has a position of {position}, but positions begin at 0")
        if position + count > pool.capacity:
            raise InputError(f"slot {slot} would reach position {position + count}, past its "
                             f"capacity of {pool.capacity}")
    for token in tokens:
        check_token(model, token)


def check_token(model: Model, token: int) -> None:
    """Refuse a token id outside the vocabulary."""
    if not 0 <= token < model.config.vocab:
        raise InputError(f"token {token} is outside the vocabulary of {model.config.vocab}")


Step = Callable[["Path", "Model", Pool, Sequence[int], Rows, "Sink | None"], Tensor]


def one_by_one(path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
               steps: int) -> list[list[int]]:
    """Take greedy steps, the host choosing each next token; return each row's tokens."""
    chosen: list[list[int]] = []
    for step in range(steps):
        at = tuple(position + step for position in rows.positions)
        tokens = path.forward_batch_greedy(model, pool, tokens, Rows.decode(rows.slots, at))
        chosen.append(tokens)
    return [list(column) for column in zip(*chosen, strict=True)]


@dataclass(frozen=True)
class FusedOps:
    """The products of a path and its ops that run others, as a step calls them.

    Callers omit the ops that such an op runs. A product takes f32 rows or the
    `QuantisedActivations` that the op before it returned.
    """

    add_norm: Function
    norm_rotate: Function
    project: Function
    project_all: Function


@dataclass(frozen=True)
class Path:
    """The ops of a step, each writing into its `out`, and how a step composes them.

    An op before a product may return its result as `QuantisedActivations`; others return nothing.
    """

    name: str
    step_rows: Step
    """Runs a step that `step` has checked; logits f32[m, vocab] of each row's last token."""
    embed: Callable[..., None] = ops.embed
    norm: Callable[..., None] = ops.norm
    add_norm: Callable[..., Any] = ops.add_norm
    """A residual sum and its norm; its first argument is `norm`."""
    project: Callable[..., None] = ops.project
    project_all: Callable[..., None] = ops.project_all
    """Several matrices with the same rows; its first argument is `project`."""
    conv_step: Callable[..., None] = ops.conv_step
    gates: Callable[..., None] = ops.gates
    delta_step: Callable[..., None] = ops.delta_step
    gated_norm: Callable[..., Any] = ops.gated_norm
    rotate: Callable[..., None] = ops.rotate
    norm_rotate: Callable[..., None] = ops.norm_rotate
    """Queries and keys, normed and rotated; its first arguments are `norm` and `rotate`."""
    attend: Callable[..., Any] = ops.attend
    silu_mul: Callable[..., Any] = ops.silu_mul
    argmax: Callable[..., None] = ops.argmax
    greedy_rows: Callable[..., list[list[int]]] = one_by_one
    """Runs the steps that `decode_greedy` has checked."""

    @cached_property
    def fused(self) -> FusedOps:
        """The ops that run others, chosen once: one kernel if the path has the ops it replaces."""
        return FusedOps(of_parts(self.add_norm, self.norm),
                        of_parts(self.norm_rotate, self.norm, self.rotate),
                        of_activations(self.project),
                        of_activations(of_parts(self.project_all, self.project)))

    def kernels(self) -> dict[str, dict[str, str]]:
        """Return the dotted name of the function that each op runs, by op and tier."""
        return {field.name: {tier: name_of(getattr(self, field.name), tier) for tier in TIERS}
                for field in fields(self) if field.name != "name"}

    def __str__(self) -> str:
        """Return the table of ops and what each tier runs of them."""
        rows = [("op", *TIERS), *((op, *by_tier.values()) for op, by_tier in
                                  self.kernels().items())]
        short = [[cell.replace("phases.", "") for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(*short, strict=True)]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in
                                   zip(row, widths, strict=True)).rstrip() for row in short)

    def step(self, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
             sink: Sink | None = None) -> Tensor:
        """Advance every row by its tokens and return logits f32[m, vocab] of each row's last.

        tokens holds the rows' tokens one row after another, t = sum of counts. A step that
        raises `InputError` changes no state.
        """
        check_step(model, pool, tokens, rows)
        return self.step_rows(self, model, pool, tokens, rows, sink)

    def prefill(self, model: Model, pool: Pool, tokens: Sequence[int], slot: int,
                position: int = 0) -> Tensor:
        """Run one row of T tokens; return the logits f32[vocab] of the last."""
        return self.step(model, pool, tokens, Rows((slot,), (position,), (len(tokens),)))[0]

    def forward_batch_greedy(self, model: Model, pool: Pool, tokens: Sequence[int],
                             rows: Rows) -> list[int]:
        """Run a step and return each row's most likely next token."""
        logits = self.step(model, pool, tokens, rows)
        out = torch.empty(len(rows.slots), dtype=torch.int64, device=logits.device)
        self.argmax(logits, out)
        return [int(token) for token in out.tolist()]

    def decode_greedy(self, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                      steps: int) -> list[list[int]]:
        """Feed one token a row, then the most likely next ones; return `steps` new tokens a row.

        Raises `InputError` before any state changes, or at the first logits with NaN.
        """
        if steps < 1:
            raise InputError(f"{steps} greedy steps are refused: at least 1")
        check_step(model, pool, tokens, rows)
        for slot, position, count in zip(rows.slots, rows.positions, rows.counts, strict=True):
            if count != 1:
                raise InputError(f"slot {slot} has a count of {count}, but greedy steps feed 1")
            if position + steps > pool.capacity:
                raise InputError(f"slot {slot} would reach position {position + steps}, past its "
                                 f"capacity of {pool.capacity}")
        return self.greedy_rows(self, model, pool, tokens, rows, steps)


def traced(path: Path, sink: Sink) -> Path:
    """Return the path with every step reporting its ops to `sink`."""
    def step_rows(path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                  _: Sink | None) -> Tensor:
        return inner(path, model, pool, tokens, rows, sink)

    inner = path.step_rows
    return replace(path, step_rows=step_rows)


def one_row(path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
            sink: Sink | None) -> Tensor:
    """Run a step of one row by `forward_single`, token after token."""
    if len(rows.slots) > 1:
        raise InputError(f"the {path.name} path runs one row at a time, not {len(rows.slots)}")
    return model.prefill(tokens, pool.slot(rows.slots[0]), rows.positions[0], sink).unsqueeze(0)


def reference() -> Path:
    """Return the engine's path: the reference ops, one row a step."""
    return Path("reference", one_row)


def bound(sink: Sink | None, slot: int) -> Callable[[str, tuple[Tensor, ...], Tensor], Any]:
    """Return a reporter for one slot, which does nothing without a sink."""
    if sink is None:
        return lambda op, inputs, output: None
    return partial(_call_sink, sink, slot)


def _call_sink(sink: Sink, slot: int, op: str, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    sink(op, slot, inputs, output)
