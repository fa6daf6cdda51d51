"""What the harnesses of several phases share: models, engines, budgets and how an op is called."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contracts.load import CONTRACTS_FOLDER, load_contract
from contracts.schema import Budget, Case
from engine.candidate import Engine, engine_of, is_whole
from engine.path import Rows
from falsifiers.instruments.deterministic_dot import deterministic_dots
from falsifiers.judging.batch_driver import make_prompt
from falsifiers.judging.errors import SuiteError
from falsifiers.judging.judge import Judge
from falsifiers.judging.subject import Subject


@contextmanager
def quiet_call() -> Iterator[None]:
    """Call an op in this block: its warnings are no parity fault, and its dots have fixed bits."""
    with warnings.catch_warnings(), np.errstate(all="ignore"), deterministic_dots():
        warnings.simplefilter("ignore")
        yield


@cache
def own_budget(phase: str) -> Budget:
    """Return the budget of a phase for candidates that declare their own arithmetic."""
    budget = load_contract(CONTRACTS_FOLDER / f"{phase}.yaml").parity.own
    if budget is None:
        raise SuiteError(f"contracts/{phase}.yaml has no budget for candidates that declare their "
                         f"own arithmetic: add `parity.own`")
    return budget


def has_own_arithmetic(subject: Subject) -> bool:
    """Return whether the subject is a candidate that declares its own arithmetic."""
    return subject.candidate is not None and not subject.candidate.bitwise


def load_cpu_model(case: Case, subject: Subject) -> Any:
    """Return a case's model on the CPU, with caches of the case's type."""
    return subject.models(case["model"]).with_kv(case.given.get("kv", "f32"))


def load_model(case: Case, subject: Subject) -> Any:
    """Return a case's model on the case's device, with caches of the case's type."""
    model = load_cpu_model(case, subject)
    return model if subject.device == "cpu" else model.to(subject.device)


def build_engine(case: Case, subject: Subject) -> tuple[Engine, Any]:
    """Return the engine under test and its model, both on the case's device."""
    model = load_model(case, subject)
    candidate = subject.candidate if is_whole(subject.candidate) else None
    return engine_of(subject.path, candidate, model), model


def first_difference(got: Tensor, want: Tensor) -> list[int] | None:
    """Return the index of the first value whose bits differ, or None.

    Any two NaN of a 16-bit type are equal, since each converter returns a NaN of its own.
    """
    bits = {4: torch.int32, 2: torch.int16}[got.element_size()]
    differs = got.contiguous().view(bits) != want.contiguous().view(bits)
    if bits == torch.int16:
        differs &= ~(torch.isnan(got) & torch.isnan(want))
    return differs.nonzero()[0].tolist() if bool(differs.any()) else None


def check_step_of_kernels(judge: Judge, case: Case, subject: Subject,
                          kernels: Mapping[str, Any]) -> None:
    """Compare a step whose ops are these kernels with the step of the subject's path."""
    model, m = load_model(case, subject), case["m"]
    rows = Rows(tuple(range(m))[::-1], (0,) * m, tuple(1 + i % 2 for i in range(m)))
    tokens, results = make_prompt(7, sum(rows.counts), model.config.vocab), []
    for path in (replace(subject.path, **kernels), subject.path):
        pool = model.new_pool(m, 4)
        results.append({"logits": path.step(model, pool, tokens, rows),
                        **{f"slot {s}, {name}": view for s in range(m)
                           for name, view in pool.slot(s).named().items()}})
    for name, got in results[0].items():
        judge.equal(name, got, results[1][name], rule="truth")
