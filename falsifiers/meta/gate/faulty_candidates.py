"""Faulty candidates that a careless harness passes, built from any right op or step.

Each stores its state in a closure and is built again for every attack.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from falsifiers.gate.candidates import Candidate
from falsifiers.judging.subject import Mutant, Subject

Op = Callable[..., None]
"""An op, which writes into its last argument."""
Step = Callable[..., Tensor]


def gives_the_previous_output(right: Op) -> Op:
    """Return the output of the last call with the same shape."""
    outputs: dict[Any, Tensor] = {}

    def run(*args: Any) -> None:
        out = args[-1]
        right(*args)
        now = out.clone()
        out.copy_(outputs.get(out.shape, now))
        outputs[out.shape] = now

    return run


def reads_its_inputs_late(right: Op) -> Op:
    """Do the work of a call during the next one."""
    waiting: list[tuple[Any, ...]] = []

    def run(*args: Any) -> None:
        for call in waiting:
            right(*call)
        waiting[:] = [args]

    return run


def writes_behind_its_output(right: Op) -> Op:
    """Write one value after the end of the output."""
    def run(*args: Any) -> None:
        out = args[-1]
        right(*args)
        last = sum((n - 1) * s for n, s in zip(out.shape, out.stride(), strict=True))
        out.as_strided((1,), (1,), out.storage_offset() + last + 1).fill_(1.0)

    return run


def writes_into_its_input(right: Op) -> Op:
    """Double the last value of the first input that is a tensor of floats."""
    def run(*args: Any) -> None:
        right(*args)
        first = next(x for x in args[:-1] if isinstance(x, Tensor) and x.is_floating_point())
        first[(-1,) * first.dim()] *= 2.0

    return run


def gives_one_nan(right: Op) -> Op:
    """Make the last value of the output NaN."""
    def run(*args: Any) -> None:
        right(*args)
        out = args[-1]
        if out.numel():
            out[(-1,) * out.dim()] = torch.nan

    return run


OPS: dict[str, Callable[[Op], Op]] = {
    fault.__name__: fault for fault in (gives_the_previous_output, reads_its_inputs_late,
                                  writes_behind_its_output, writes_into_its_input, gives_one_nan)}


def gives_the_previous_logits(right: Step) -> Step:
    """Return the logits of the last step with the same width."""
    outputs: dict[Any, Tensor] = {}

    def run(*args: Any) -> Tensor:
        now = right(*args)
        before = outputs.get(now.shape, now)
        outputs[now.shape] = now.clone()
        return before.clone()

    return run


def gives_one_nan_logit(right: Step) -> Step:
    """Make the last logit of the last row NaN."""
    def run(*args: Any) -> Tensor:
        logits = right(*args).clone()
        logits[-1, -1] = torch.nan
        return logits

    return run


def writes_into_another_slot(right: Step) -> Step:
    """Change one value of a slot that is not in the step, if there is one."""
    def run(path: Any, model: Any, pool: Any, tokens: Any, rows: Any, sink: Any) -> Tensor:
        logits = right(path, model, pool, tokens, rows, sink)
        for slot in set(range(pool.slots)) - set(rows.slots):
            next(iter(pool.slot(slot).named().values())).view(-1)[0] += 1.0
            break
        return logits

    return run


STEPS: dict[str, Callable[[Step], Step]] = {
    fault.__name__: fault for fault in (gives_the_previous_logits, gives_one_nan_logit,
                                  writes_into_another_slot)}


def faulty_ops(name: str, fault: Callable[[Op], Op], killer: str) -> Mutant:
    """Return a mutant whose path has the op `name` wrapped by a fault."""
    def build(subject: Subject) -> Subject:
        wrong = fault(getattr(subject.path, name))
        return replace(subject, path=replace(subject.path, **{name: wrong}))

    return _mutant(fault, killer, build)


def faulty_products(right: Op, arithmetic: str, fault: Callable[[Op], Op], killer: str) -> Mutant:
    """Return a mutant with a faulty product in its candidate."""
    def build(subject: Subject) -> Subject:
        target = SimpleNamespace(gemv_rows=fault(right), ARITHMETIC=arithmetic)
        return replace(subject, candidate=Candidate("faulty", target))

    return _mutant(fault, killer, build)


def faulty_steps(fault: Callable[[Step], Step], killer: str) -> Mutant:
    """Return a mutant whose path has a faulty step."""
    def build(subject: Subject) -> Subject:
        wrong = fault(subject.path.step_rows)
        return replace(subject, path=replace(subject.path, step_rows=wrong))

    return _mutant(fault, killer, build)


def _mutant(fault: Callable[..., Any], killer: str, build: Callable[[Subject], Subject]) -> Mutant:
    return Mutant(fault.__name__, fault.__doc__ or "", (killer,), build)
