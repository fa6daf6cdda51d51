"""Wrong steps that every phase with a path must detect, built from the subject's right step.

A step is `step_rows(path, model, pool, tokens, rows, sink) -> logits`. This module uses only the
fields of these objects and `rows.spans(tokens)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from falsifiers.judging.subject import Subject

Step = Callable[..., Any]


def wrap_step(wrong: Callable[[Step], Step]) -> Callable[[Subject], Subject]:
    """Return a builder that wraps the subject's step."""
    def build(subject: Subject) -> Subject:
        step = wrong(subject.path.step_rows)
        return replace(subject, path=replace(subject.path, step_rows=step))

    return build


def in_slot_order(step: Step) -> Step:
    """Compute and return rows in the order of their slots."""
    def run(path: Any, model: Any, pool: Any, tokens: Sequence[int], rows: Any, sink: Any) -> Any:
        order = sorted(range(len(rows.slots)), key=lambda i: rows.slots[i])
        spans = rows.spans(tokens)
        arranged = [token for i in order for token in spans[i][2]]
        picked = {name: tuple(getattr(rows, name)[i] for i in order)
                  for name in ("slots", "positions", "counts")}
        return step(path, model, pool, arranged, replace(rows, **picked), sink)

    return run


def chunks_from_zero(step: Step) -> Step:
    """Clear the state before a chunk of several tokens."""
    def run(path: Any, model: Any, pool: Any, tokens: Sequence[int], rows: Any, sink: Any) -> Any:
        for slot, _, chunk in rows.spans(tokens):
            if len(chunk) > 1:
                pool.slot(slot).clear()
        return step(path, model, pool, tokens, rows, sink)

    return run


def in_a_kept_buffer(step: Step) -> Step:
    """Return logits in one buffer for each width, as a captured graph might."""
    buffers: dict[int, Tensor] = {}

    def run(path: Any, model: Any, pool: Any, tokens: Sequence[int], rows: Any, sink: Any) -> Any:
        logits = step(path, model, pool, tokens, rows, sink)
        buffer = buffers.setdefault(len(rows.slots), torch.empty_like(logits))
        return buffer.copy_(logits)

    return run


def unchecked(subject: Subject) -> Subject:
    """Give the subject a path that does not validate its arguments."""
    def step(self: Any, model: Any, pool: Any, tokens: Sequence[int], rows: Any,
             sink: Any = None) -> Any:
        return self.step_rows(self, model, pool, tokens, rows, sink)

    kind: Any = type("Unchecked", (type(subject.path),), {"step": step})
    values = {field.name: getattr(subject.path, field.name) for field in fields(subject.path)}
    return replace(subject, path=kind(**values))
