"""What `rowtwin bisect` compares, made of the parts that whoever wires the suite hands over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from engine import testmodels
from engine.model import Model
from engine.op_table import on_tier
from engine.path import Path, Rows
from falsifiers.bisect.paired_runs import Setup
from falsifiers.judging.errors import SuiteError
from falsifiers.judging.subject import Mutant, Subject
from phases.candidate_path import path_with_product
from phases.p4_batched_matmul import increment as p4

WHOLE_STEP_OPS = ("step_rows", "argmax", "greedy_rows")
"""The parts of a path that run all others."""


def make_setup(subject: Subject, phase: str, wrong: Mutant | None, model: str,
             layers: Sequence[int] | None, device: str, against: str,
             peer: Callable[[], Path], ops: Sequence[str]) -> Setup:
    """Return a setup for a subject, or for a mutant of it, over a model's layers.

    `peer` makes the path that rows are held to when `against` names a phase, else the phase's
    own. On the device `interpret` the phase's own `ops` run as kernels, under the interpreter; on
    `emulate` all ops run as on a device, the CUDA C++ emulated; of a mutant its own ops alone. A
    mutant is made anew for each run, as it may keep something.
    """
    own = subject.candidate is not None and not subject.candidate.bitwise
    if against == "auto":
        against = "alone" if own else "oracle"
    oracle = select_layers(_load_model(model, subject), layers)
    placed = oracle.to(device) if device == "cuda" else oracle
    subject = replace(subject, models=lambda name: placed)
    right = peer() if subject.candidate else subject.path if wrong else oracle.ops

    batched = p4.path()  # P3's own step has no batch for its mutants to be wrong in

    def made() -> Subject:
        found = subject if wrong is None else wrong.build(subject)
        if wrong is not None and _replaces_product(found):
            found = replace(found, path=path_with_product(batched, found.candidate))
        if device == "emulate":
            return replace(found, path=_emulate_path(found.path, subject.path))
        return _use_kernels(found, subject, ops) if device == "interpret" else found

    if wrong is not None and _replaces_product(made()):
        right = batched

    def tested() -> Any:
        return made().path

    alone: Callable[[], Any] | None = peer
    told = f"{against} with that row alone"
    if against in ("oracle", "alone"):
        alone, told = (None, "the oracle") if against == "oracle" else (tested, "itself alone")
    name = subject.candidate.name if subject.candidate else wrong and wrong.name
    return Setup(name=f"{name} in {phase}" if name else phase, against=told,
                 model=made().models(model), path=tested, solo_path=alone,
                 oracle=oracle if alone is None else placed, trusted_path=right, rows=Rows)


def select_layers(model: Model, layers: Sequence[int] | None) -> Model:
    """Return the model with these of its layers alone, in their order."""
    if layers is None:
        return model
    if not layers or not all(0 <= i < model.config.layers for i in layers):
        raise SuiteError(f"layers {list(layers)} are not some of the model's "
                         f"{model.config.layers}")
    config = replace(model.config, layers=len(layers),
                     recurrent=tuple(model.config.recurrent[i] for i in layers))
    kept = tuple(model.weights.layers[i] for i in layers)
    return replace(model, config=config, weights=replace(model.weights, layers=kept))


def _load_model(model: str, subject: Subject) -> Model:
    found: Model = subject.models(model) if model in testmodels.NAMES else Model.load(model)
    return found


def _replaces_product(subject: Subject) -> bool:
    return subject.candidate is not None and subject.candidate.op("gemv_rows") is not None


def _emulate_path(path: Path, right: Path) -> Path:
    """Return a path that runs kernels for a device on the CPU; those of a mutant's ops alone."""
    from engine.emulate.emulator import emulated

    def within(op: Callable[..., Any], *args: Any, **options: Any) -> Any:
        with emulated():
            return op(*args, **options)

    changed = [f.name for f in fields(path) if getattr(path, f.name) is not getattr(right, f.name)]
    parts: dict[str, Any] = {name: partial(within, getattr(path, name))
                             for name in changed or WHOLE_STEP_OPS}
    return replace(path, **parts)


def _use_kernels(subject: Subject, right: Subject, ops: Sequence[str]) -> Subject:
    """Put the kernels of these ops where the CPU would run their reference; a mutant's own alone.

    The interpreter takes minutes for the products of a step.
    """
    path = subject.path
    names = [f.name for f in fields(path) if f.name in ops]
    if path is not right.path:
        names = [n for n in names if getattr(path, n) is not getattr(right.path, n)]
    return replace(subject, path=replace(path, **{name: on_tier(getattr(path, name), "interpret")
                                                  for name in names}))
