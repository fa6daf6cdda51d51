"""Wrong batched steps: rows, tokens and slots taken for one another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from engine.model import Model
from engine.path import Path, RowOperands, Rows, Sink, Step
from engine.quantised import Activations, rows_of
from engine.state import Pool, Refs
from falsifiers.judging.subject import Subject
from phases.p4_batched_matmul.batched_step import BatchedStep, step_rows
from phases.p4_batched_matmul.looped import looped_step

Builder = Callable[[Subject], Subject]


def with_step(wrong: Step | type) -> Builder:
    """Return a builder that gives the subject's path another step, built anew if it has state."""
    def build(subject: Subject) -> Subject:
        step = wrong() if isinstance(wrong, type) else wrong
        return replace(subject, path=replace(subject.path, step_rows=step))

    return build


def with_batched_step(wrong: type[BatchedStep]) -> Builder:
    """Return a builder whose step is a variant of the batched one."""
    def run(path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
            sink: Sink | None) -> Tensor:
        return wrong(path, model, pool, rows, sink).run(tokens)

    return with_step(run)


def row_by_row(path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
               sink: Sink | None) -> Tensor:
    logits = []
    for slot, position, own in rows.spans(tokens):
        one = Rows((slot,), (position,), (len(own),))
        logits.append(step_rows(path, model, pool, own, one, sink)[0])
    return torch.stack(logits)


def token_by_token(path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                   sink: Sink | None) -> Tensor:
    return looped_step(model, pool, tokens, rows, sink)


class HeadAtEveryToken(BatchedStep):
    def last_tokens(self, hidden: Tensor) -> Tensor:
        return hidden

    def logits(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        x = self.add_norm("output_norm", hidden, mixed, self.model.weights.output_norm)[1]
        all_logits = self.multiply(self.model.weights.head, x)
        return all_logits[[own.stop - 1 for own in self.rows.slices]]


class TokenOfTheRowNumber(BatchedStep):
    def last_tokens(self, hidden: Tensor) -> Tensor:
        return hidden[:len(self.rows.counts)]


class HeadOnTheFirstToken(BatchedStep):
    def last_tokens(self, hidden: Tensor) -> Tensor:
        return hidden[[own.start for own in self.rows.slices]]


class ResidualFromTheNorm(BatchedStep):
    def add_norm(self, op: str, hidden: Tensor, mixed: Tensor | None, weight: Tensor,
                 slices: list[slice] | None = None) -> tuple[Tensor, Activations]:
        total, x = super().add_norm(op, hidden, mixed, weight, slices)
        return (rows_of(x) if op.endswith("post_attention_norm") else total), x


class PositionsOfTheFirstRow(BatchedStep):
    @cached_property
    def operands(self) -> RowOperands:
        first = replace(self.rows, positions=self.rows.positions[:1] * len(self.rows.slots))
        return replace(self.rows.operands_on(self.pool), positions=torch.tensor(first.of_tokens()))


class OnePositionAChunk(BatchedStep):
    @cached_property
    def operands(self) -> RowOperands:
        turned = [position for _, position, own in self.rows.spans(range(sum(self.rows.counts)))
                  for _ in own]
        return replace(self.rows.operands_on(self.pool), positions=torch.tensor(turned))


class WindowByRow(BatchedStep):
    def state(self, kind: str, index: int) -> Refs:
        if kind == "conv":
            return self.pool.refs(kind, index, range(len(self.rows.slots)))
        return super().state(kind, index)


def slots_by_row(path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                 sink: Sink | None) -> Tensor:
    counted = replace(rows, slots=tuple(range(len(rows.slots))))
    return step_rows(path, model, pool, tokens, counted, sink)


class StateByLastCall:
    """Copies the first row's states back into the slot that stood first in the last step."""

    def __init__(self) -> None:
        self.first_slot: int | None = None

    def __call__(self, path: Path, model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
                 sink: Sink | None) -> Tensor:
        logits = step_rows(path, model, pool, tokens, rows, sink)
        if self.first_slot is not None and self.first_slot < pool.slots:
            pool.slot(rows.slots[0]).copy_to(pool.slot(self.first_slot))
        self.first_slot = rows.slots[0]
        return logits
