"""Candidates that lie in the ways a careless harness lets pass, made from any right op or step.

Each keeps what it needs in itself and is made anew for every attack.
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
"""Writes into its last argument."""
Step = Callable[..., Tensor]


def gives_the_previous_output(right: Op) -> Op:
    """Do the work, and hand out what the last call of that shape gave."""
    kept: dict[Any, Tensor] = {}

    def run(*args: Any) -> None:
        out = args[-1]
        right(*args)
        now = out.clone()
        out.copy_(kept.get(out.shape, now))
        kept[out.shape] = now

    return run


def reads_its_inputs_late(right: Op) -> Op:
    """Do a call's work when the next one comes."""
    waiting: list[tuple[Any, ...]] = []

    def run(*args: Any) -> None:
        for call in waiting:
            right(*call)
        waiting[:] = [args]

    return run


def writes_behind_its_output(right: Op) -> Op:
    """Write one value behind the last of the output."""
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
    lie.__name__: lie for lie in (gives_the_previous_output, reads_its_inputs_late,
                                  writes_behind_its_output, writes_into_its_input, gives_one_nan)}


def gives_the_previous_logits(right: Step) -> Step:
    """Step, and return the logits that the last step of that width gave."""
    kept: dict[Any, Tensor] = {}

    def run(*args: Any) -> Tensor:
        now = right(*args)
        before = kept.get(now.shape, now)
        kept[now.shape] = now.clone()
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
    """Change one value of a slot that the step does not name, where there is one."""
    def run(path: Any, model: Any, pool: Any, tokens: Any, rows: Any, sink: Any) -> Tensor:
        logits = right(path, model, pool, tokens, rows, sink)
        for slot in set(range(pool.slots)) - set(rows.slots):
            next(iter(pool.slot(slot).named().values())).view(-1)[0] += 1.0
            break
        return logits

    return run


STEPS: dict[str, Callable[[Step], Step]] = {
    lie.__name__: lie for lie in (gives_the_previous_logits, gives_one_nan_logit,
                                  writes_into_another_slot)}


def faulty_ops(name: str, lie: Callable[[Op], Op], killer: str) -> Mutant:
    """Return the subject whose path has a lying op of this name."""
    def build(subject: Subject) -> Subject:
        wrong = lie(getattr(subject.path, name))
        return replace(subject, path=replace(subject.path, **{name: wrong}))

    return _mutant(lie, killer, build)


def faulty_products(right: Op, arithmetic: str, lie: Callable[[Op], Op], killer: str) -> Mutant:
    """Return the subject with a lying product, offered as outsiders offer theirs."""
    def build(subject: Subject) -> Subject:
        target = SimpleNamespace(gemv_rows=lie(right), ARITHMETIC=arithmetic)
        return replace(subject, candidate=Candidate("liar", target))

    return _mutant(lie, killer, build)


def faulty_steps(lie: Callable[[Step], Step], killer: str) -> Mutant:
    """Return the subject whose path steps by a lie."""
    def build(subject: Subject) -> Subject:
        wrong = lie(subject.path.step_rows)
        return replace(subject, path=replace(subject.path, step_rows=wrong))

    return _mutant(lie, killer, build)


def _mutant(lie: Callable[..., Any], killer: str, build: Callable[[Subject], Subject]) -> Mutant:
    return Mutant(lie.__name__, lie.__doc__ or "", (killer,), build)
