"""Wrong steps that every path phase must catch, each made from the subject's own right step.

A step is `step_rows(path, model, pool, tokens, rows, sink) -> logits`; nothing here knows more of
these objects than their fields and `rows.spans(tokens)`.
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
    """Return a builder that puts a wrong step around the subject's own."""
    def build(subject: Subject) -> Subject:
        step = wrong(subject.path.step_rows)
        return replace(subject, path=replace(subject.path, step_rows=step))

    return build


def in_slot_order(step: Step) -> Step:
    """Work and return rows in the order of their slots."""
    def run(path: Any, model: Any, pool: Any, tokens: Sequence[int], rows: Any, sink: Any) -> Any:
        order = sorted(range(len(rows.slots)), key=lambda i: rows.slots[i])
        spans = rows.spans(tokens)
        arranged = [token for i in order for token in spans[i][2]]
        picked = {name: tuple(getattr(rows, name)[i] for i in order)
                  for name in ("slots", "positions", "counts")}
        return step(path, model, pool, arranged, replace(rows, **picked), sink)

    return run


def chunks_from_zero(step: Step) -> Step:
    """Let a chunk of several tokens ignore the state it finds."""
    def run(path: Any, model: Any, pool: Any, tokens: Sequence[int], rows: Any, sink: Any) -> Any:
        for slot, _, own in rows.spans(tokens):
            if len(own) > 1:
                pool.slot(slot).clear()
        return step(path, model, pool, tokens, rows, sink)

    return run


def in_a_kept_buffer(step: Step) -> Step:
    """Return logits in one buffer a width, as a captured graph might."""
    buffers: dict[int, Tensor] = {}

    def run(path: Any, model: Any, pool: Any, tokens: Sequence[int], rows: Any, sink: Any) -> Any:
        logits = step(path, model, pool, tokens, rows, sink)
        kept = buffers.setdefault(len(rows.slots), torch.empty_like(logits))
        return kept.copy_(logits)

    return run


def unchecked(subject: Subject) -> Subject:
    """Give the subject a path that looks at nothing before it works."""
    def step(self: Any, model: Any, pool: Any, tokens: Sequence[int], rows: Any,
             sink: Any = None) -> Any:
        return self.step_rows(self, model, pool, tokens, rows, sink)

    kind: Any = type("Unchecked", (type(subject.path),), {"step": step})
    parts = {field.name: getattr(subject.path, field.name) for field in fields(subject.path)}
    return replace(subject, path=kind(**parts))
