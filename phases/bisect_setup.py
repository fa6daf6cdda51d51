"""Build the `Setup` of a bisection from a subject, a mutant, a model and a device."""

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
"""The fields of a path that call all others."""


def make_setup(subject: Subject, phase: str, wrong: Mutant | None, model: str,
             layers: Sequence[int] | None, device: str, against: str,
             reference_path: Callable[[], Path], ops: Sequence[str]) -> Setup:
    """Return a setup for a subject, or for a mutant of it, over some of a model's layers.

    `reference_path` builds the path of the phase that `against` names, else the phase's own path.
    On the device `interpret` the phase's own `ops` run as Triton kernels in the interpreter. On
    `emulate` all ops run as on a device. For a mutant, only its own ops run so. A mutant is built
    again for each run, because it may carry state.
    """
    if against == "auto":
        is_own = subject.candidate is not None and not subject.candidate.bitwise
        against = "alone" if is_own else "oracle"
    oracle = select_layers(_load_model(model, subject), layers)
    placed = oracle.to(device) if device == "cuda" else oracle
    subject = replace(subject, models=lambda name: placed)
    trusted = reference_path() if subject.candidate else subject.path if wrong else oracle.ops

    batched = p4.path()  # P3's own step has no batch in which its mutants could be wrong

    def build() -> Subject:
        found = subject if wrong is None else wrong.build(subject)
        if wrong is not None and _replaces_product(found):
            found = replace(found, path=path_with_product(batched, found.candidate))
        if device == "emulate":
            return replace(found, path=_emulate_path(found.path, subject.path))
        return _use_kernels(found, subject, ops) if device == "interpret" else found

    if wrong is not None and _replaces_product(build()):
        trusted = batched

    def path() -> Any:
        return build().path

    solo_path, reference = {
        "oracle": (None, "the oracle"),
        "alone": (path, "itself at m = 1"),
    }.get(against, (reference_path, f"{against} at m = 1"))
    name = subject.candidate.name if subject.candidate else wrong and wrong.name
    return Setup(name=f"{name} in {phase}" if name else phase, against=reference,
                 model=build().models(model), path=path, solo_path=solo_path,
                 oracle=oracle if solo_path is None else placed, trusted_path=trusted, rows=Rows)


def select_layers(model: Model, layers: Sequence[int] | None) -> Model:
    """Return the model with only these layers, in this order."""
    if layers is None:
        return model
    if not layers or not all(0 <= i < model.config.layers for i in layers):
        raise SuiteError(f"layers {list(layers)} are not in the model, whose layers are 0 to "
                         f"{model.config.layers - 1}")
    config = replace(model.config, layers=len(layers),
                     recurrent=tuple(model.config.recurrent[i] for i in layers))
    selected = tuple(model.weights.layers[i] for i in layers)
    return replace(model, config=config, weights=replace(model.weights, layers=selected))


def _load_model(model: str, subject: Subject) -> Model:
    loaded: Model = subject.models(model) if model in testmodels.NAMES else Model.load(model)
    return loaded


def _replaces_product(subject: Subject) -> bool:
    return subject.candidate is not None and subject.candidate.op("gemv_rows") is not None


def _emulate_path(path: Path, right: Path) -> Path:
    """Return a path that emulates device kernels on the CPU; for a mutant, only in its own ops."""
    from engine.emulate.emulator import emulated

    def run_emulated(op: Callable[..., Any], *args: Any, **options: Any) -> Any:
        with emulated():
            return op(*args, **options)

    changed = [f.name for f in fields(path) if getattr(path, f.name) is not getattr(right, f.name)]
    ops: dict[str, Any] = {name: partial(run_emulated, getattr(path, name))
                           for name in changed or WHOLE_STEP_OPS}
    return replace(path, **ops)


def _use_kernels(subject: Subject, right: Subject, ops: Sequence[str]) -> Subject:
    """Replace the CPU references of `ops` by their Triton kernels; for a mutant, only its own ops.

    The products of a step are not among them: the interpreter takes minutes for those.
    """
    path = subject.path
    names = [f.name for f in fields(path) if f.name in ops]
    if path is not right.path:
        names = [n for n in names if getattr(path, n) is not getattr(right.path, n)]
    kernels = {name: on_tier(getattr(path, name), "interpret") for name in names}
    return replace(subject, path=replace(path, **kernels))
