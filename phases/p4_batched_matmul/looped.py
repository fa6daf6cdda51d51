"""The looped step remade from `forward_single`, and how two steps' traces are held together.

The two report in different orders: one op for all tokens here, one token for all ops there. So
the looped trace is gathered by op and slot, and read in the order of the batched one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.model import Model
from engine.path import Rows, Sink
from engine.state import Pool
from falsifiers.judge import Judge

LAST_ONLY = ("output_norm", "head")
"""Ops that the batched step runs for the last token of a row alone."""


def looped(model: Model, pool: Pool, tokens: Sequence[int], rows: Rows,
           sink: Sink | None = None) -> Tensor:
    """Advance each row by its tokens, one after another; return logits f32[m, vocab]."""
    logits, at = [], 0
    for slot, position, count in zip(rows.slots, rows.positions, rows.counts, strict=True):
        logits.append(model.prefill(tokens[at:at + count], pool.slot(slot), position, sink))
        at += count
    return torch.stack(logits)


@dataclass
class Trace:
    """A sink that keeps what it is told."""

    order: list[tuple[str, int]] = field(default_factory=list)
    """Op and slot, in the order of their first report."""
    inputs: dict[tuple[str, int], list[tuple[Tensor, ...]]] = field(default_factory=dict)
    outputs: dict[tuple[str, int], list[Tensor]] = field(default_factory=dict)

    def __call__(self, op: str, slot: int, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Take one report."""
        key = (op, slot)
        if key not in self.outputs:
            self.order.append(key)
            self.inputs[key], self.outputs[key] = [], []
        self.inputs[key].append(inputs)
        self.outputs[key].append(output)

    def joined(self, key: tuple[str, int]) -> tuple[list[Tensor], Tensor]:
        """Return an op's inputs and output for a slot, all tokens of it together."""
        kept = slice(-1, None) if key[0] in LAST_ONLY else slice(None)
        inputs = [torch.cat(parts) for parts in zip(*self.inputs[key][kept], strict=True)]
        axis = 1 if key[0].endswith(".gates") else 0  # decay and strength, then tokens
        return inputs, torch.cat(self.outputs[key][kept], dim=axis)


def hold_traces(judge: Judge, got: Trace, want: Trace, **where: int | str) -> None:
    """Hold every op's inputs and output to the other trace's, in the order of `got`.

    The first that differs is the first place where the two steps part.
    """
    lost = [key for key in want.order if key not in got.outputs]
    judge.law(not lost, f"the step reports no {lost[0][0] if lost else ''} for slot "
              f"{lost[0][1] if lost else ''}")
    for key in got.order:
        at = {"op": key[0], "slot": key[1], **where}
        judge.law(key in want.outputs, f"the step reports {key[0]} for slot {key[1]}, which the "
                  f"looped step does not run")
        (ins, out), (want_ins, want_out) = got.joined(key), want.joined(key)
        for number, (x, y) in enumerate(zip(ins, want_ins, strict=True)):
            judge.equal(f"input {number}", x, y, rule="truth", **at)  # type: ignore[arg-type]
        judge.equal("output", out, want_out, rule="truth", **at)  # type: ignore[arg-type]
