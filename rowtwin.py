"""Wiring: assembles the subjects of the gate from the packages, and mounts their commands.

A command's module is imported when the command runs, so that `--help` is fast.
"""

from __future__ import annotations

import importlib
from dataclasses import fields, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from falsifiers.console.cli_app import escape_non_utf8, make_group, run_app

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from contracts.golden import GoldenMakers
    from contracts.schema import Case, Contract
    from falsifiers.bisect.paired_runs import Setup
    from falsifiers.judging.matrix import Bank
    from falsifiers.judging.subject import Subject
    from falsifiers.vectors.exchange import VectorSet
    from reports.user_model import UserModel

ROOT = Path(__file__).parent
DECODE_PHASES = ("p1", "p3", "p4", "p5", "p6", "p8")
SERVING_PHASES = ("p0", "p2", "p7")
COMMANDS = {
    "doctor": ("reports.doctor_cli", "Print what can be proven on this machine, and how."),
    "gate": ("falsifiers.gate.cli", "Judge phases: PASS, FAIL or UNMEASURABLE, with evidence."),
    "report": ("reports.cli", "Judge every phase and write a page to look at."),
    "claims": ("reports.claims_cli", "Compare what the contracts claim with what is shown."),
    "mutants": ("falsifiers.mutation.cli", "Attack every mutant and print the kill matrix."),
    "weak": ("phases.bench.cli", "Show which mutants common styles of test miss."),
    "bisect": ("falsifiers.bisect.cli", "Find the first op where a batch differs from its rows."),
    "trace": ("falsifiers.bisect.trace_cli", "Write every op of a run, step by step, to files."),
    "vectors": ("falsifiers.vectors.cli", "Judge a program in any language by files of calls."),
    "receipt": ("falsifiers.mutation.cli", "Run the device cases here and store the receipts."),
    "paths": ("phases.paths_cli", "Print which kernel runs each op of a decode path, by tier."),
    "bench": ("phases.bench.cli", "Measure kernels on a device against the memory floor."),
    "serve": ("phases.p2_engine_serve.cli", "Serve a model over the OpenAI API, in batches."),
    "model": ("engine.cli", "Make or inspect a GGUF file."),
    "generate": ("engine.cli", "Continue a text, token by token."),
    "logits": ("engine.cli", "Write teacher-forced logits of a model."),
    "golden": ("contracts.cli", "Make or check the golden logits."),
    "witness": ("falsifiers.witness.cli", "Take a server's witness, or check one."),
}


def phase_package(phase: str) -> str | None:
    """Return the dotted package of a phase that has an increment, or None."""
    if phase == "engine":
        return "engine"
    found = sorted(ROOT.glob(f"phases/{phase}_*/increment.py"))
    return f"phases.{found[0].parent.name}" if found else None


def newest_phase(chain: tuple[str, ...]) -> str | None:
    """Return the last phase of a chain that is built, or None."""
    return next((phase for phase in reversed(chain) if phase_package(phase)), None)


def _import_increment(phase: str | None, chain: tuple[str, ...]) -> Any:
    from falsifiers.judging.errors import SuiteError
    name = newest_phase(chain) if phase == "newest" else phase
    if name is None:
        return None
    package = phase_package(name) if name in chain else None
    if package is None:
        built = ", ".join(p for p in chain if phase_package(p)) or "none"
        raise SuiteError(f"phase {name!r} is not built; built phases of its chain: {built}")
    return importlib.import_module(f"{package}.increment")


@cache
def assemble(path: str | None = "newest", stack: str | None = "newest",
             candidate: str | None = None, phase: str | None = None) -> Subject:
    """Return the subject of a run: a decode path and a serving stack by their phases' names.

    `newest` means the last phase that is built, None means no path or stack. A candidate's
    functions replace the path's ops of the same name; for a program, `phase` chooses its calls.
    Raises `SuiteError` for an unknown name.
    """
    from falsifiers.gate.candidates import load_candidate
    from falsifiers.judging.subject import Subject
    register_candidate_kinds()
    offered = (load_candidate(candidate, partial(_program_offer, phase))
               if candidate is not None else None)
    decode, serving = (_import_increment(path, DECODE_PHASES),
                       _import_increment(stack, SERVING_PHASES))
    ops = decode.path() if decode else None
    if offered is not None and ops is not None:
        ops = replace(ops, **{f.name: op for f in fields(ops) if (op := offered.op(f.name))})
    return Subject(name=candidate or "in-tree", models=load_model, path=ops,
                   stack=serving.stack() if serving else None, candidate=offered,
                   engine=importlib.import_module("engine.parts").engine_parts())


def register_candidate_kinds() -> None:
    """Register `cmd:PROGRAM` and `vectors:DIR` as kinds of candidate."""
    importlib.import_module("falsifiers.vectors.candidate_kinds")


def _program_offer(phase: str | None) -> Any:
    from phases.vector_sets import program_offer
    return program_offer(phase)


@cache
def load_model(name: str) -> Any:
    """Load a test model by name; its file is generated on first use and cached."""
    return importlib.import_module("engine.testmodels").load(name)


def subject_for(case: Case, candidate: str | None = None) -> Subject:
    """Return the subject of a case: its phase's increment, on its tier's device.

    A case can name another path in `given` (`path: p1`, `path: newest`). A candidate is used only
    in phases of the decode path.
    """
    path = case.given.get("path", case.phase if case.phase in DECODE_PHASES else None)
    if path is None and case.phase in SERVING_PHASES[1:]:
        path = "newest"
    stack = case.phase if case.phase in SERVING_PHASES else None
    offered = candidate if case.phase in DECODE_PHASES else None
    subject = assemble(path, stack, offered, case.phase)
    if subject.candidate is not None:
        subject.candidate.must_offer(phase_contract(case.phase).ops)
    if case.tier == "emulate":
        emulator = importlib.import_module("engine.emulate.emulator")
        return replace(subject, around=emulator.emulated, faults=(emulator.KernelFault,))
    return replace(subject, device="cuda" if case.tier == "cuda" else "cpu")


@cache
def phase_contract(phase: str) -> Contract:
    """Load a phase's contract."""
    from contracts.load import load_contract
    return load_contract(ROOT / "contracts" / f"{phase}.yaml")


def phase_bank(phase: str) -> Bank:
    """Return a phase's falsifiers and mutants, ready for the kill matrix."""
    from falsifiers.judging.matrix import Bank
    from falsifiers.judging.subject import Mutant
    contract = phase_contract(phase)
    tests = importlib.import_module(f"{contract.package}.test_falsifier")
    build = importlib.import_module(f"{contract.package}.mutants").MUTANTS
    named = {f.id: getattr(tests, f"test_{f.id}", None) for f in contract.falsifiers}
    mutants = [Mutant(m.id, m.fault, m.killed_by, build[m.id], m.source, m.device, m.emulated)
               for m in contract.mutants]
    return Bank(contract, {name: test for name, test in named.items() if test is not None},
                mutants, subject_for)


def _require_ops(candidate: Any, name: str) -> None:
    from falsifiers.judging.errors import SuiteError
    if any(candidate.op(op) for op in ("engine", "step")):
        raise SuiteError(f"{name} has its own step or engine; use a candidate of single ops here")


def parse_decode_phase(name: str) -> str:
    """Return the id of a phase of the decode path by `p5`, `5` or `newest`."""
    from falsifiers.judging.errors import SuiteError
    phase = newest_phase(DECODE_PHASES) if name == "newest" else f"p{name.removeprefix('p')}"
    if phase not in DECODE_PHASES:
        raise SuiteError(f"{name!r} is no phase of the decode path: choose one of "
                         f"{', '.join(p.removeprefix('p') for p in DECODE_PHASES)}")
    return phase


def decode_path(name: str) -> Any:
    """Return a decode path by its phase's name, or the newest with a candidate's ops in it."""
    if name == "newest" or name in DECODE_PHASES:
        return assemble(name, None).path
    subject = assemble("newest", None, name)
    _require_ops(subject.candidate, name)
    return replace(subject.path, name=name)


def receipt_benchmarks() -> dict[str, tuple[str, Any]]:
    """Return the benchmarks that `rowtwin receipt` runs: by name, the phase and a function."""
    def gemv(tell: Any) -> Any:
        from phases.bench.gemv import measure
        return measure((1, 2, 4, 8, 16), tell=tell)

    def step(tell: Any) -> Any:
        from phases.bench.step_timing import measure_for_receipt
        return measure_for_receipt(decode_path("p1"), decode_path("newest"), tell)

    decode = newest_phase(DECODE_PHASES)
    return {"gemv": ("p3", gemv), "step": (decode, step)} if decode else {}


def open_model(file: str, candidate: str | None = None) -> UserModel:
    """Open a user's GGUF file for a report, with the newest path or a candidate."""
    from engine.candidate import engine_of
    from engine.model import Model
    from engine.path import Rows
    from reports.user_model import UserModel
    model, subject = Model.load(file), assemble("newest", None, candidate)

    def oracle(tokens: Sequence[int]) -> Iterator[Any]:
        state = model.new_state(len(tokens))
        for position, token in enumerate(tokens):
            yield model.forward_single(token, state, position)

    c = model.config
    return UserModel(
        name=escape_non_utf8(file), size=Path(file).stat().st_size,
        shape=f"{c.layers} layers ({sum(c.recurrent)} recurrent), width {c.embd}, "
              f"feed-forward {c.ffn}, vocabulary {c.vocab:,}",
        vocab=c.vocab, path=subject.path.name, rows=Rows, oracle=oracle,
        engine=engine_of(subject.path, subject.candidate, model), project=subject.path.project,
        matrices=list(model.weights.matrices()))


def build_bisect_setup(model: str, phase: str, candidate: str | None, against: str, device: str,
                       layers: Sequence[int] | None = None, mutant: str | None = None) -> Setup:
    """Return what `rowtwin bisect` compares: a phase's path or a candidate, and a second path.

    `layers` are the layers of the model to use; a mutant replaces the path of its phase.
    """
    from phases.bisect_setup import make_setup
    name = parse_decode_phase(phase)
    subject = assemble(name, None, candidate)
    if candidate is not None:
        _require_ops(subject.candidate, candidate)
        from phases.candidate_path import path_with_candidate
        subject = replace(subject, path=path_with_candidate(subject, phase_contract(name).ops))
    other = None if against in ("auto", "oracle", "alone") else parse_decode_phase(against)
    return make_setup(
        subject, name, phase_bank(name).mutant(mutant) if mutant else None, model, layers, device,
        against, lambda: decode_path(other or name), phase_contract(name).ops)


def find_case(name: str, candidate: str | None) -> tuple[Case, Bank, Subject]:
    """Return a case by its id, its phase's falsifiers and mutants, and its subject."""
    from falsifiers.gate.candidates import check_phases
    from falsifiers.gate.runner import contracts_by_phase
    from falsifiers.gate.runner import find_case as case_of
    case = case_of(name, contracts_by_phase())
    if candidate is not None:
        check_phases(candidate, [case.phase])
    return case, phase_bank(case.phase), subject_for(case, candidate)


def phase_vectors(phase: str) -> VectorSet:
    """Return the calls of a phase for programs in other languages."""
    from phases.vector_sets import load_vector_set
    return load_vector_set(phase, phase_bank)


def golden_makers() -> GoldenMakers:
    """Return the functions that compute goldens: test models, transformers and the engine."""
    from contracts.golden import GoldenMakers
    from engine import testmodels
    from engine.transformers_logits import compute_logits

    def engine_logits(name: str, prompt: Sequence[int]) -> list[Any]:
        model = load_model(name)
        state = model.new_state(len(prompt))
        return [model.forward_single(token, state, i) for i, token in enumerate(prompt)]

    def provenance() -> dict[str, str]:
        return {name: importlib.import_module(name).__version__
                for name in ("transformers", "torch")}

    return GoldenMakers(testmodels.model_path, lambda name: load_model(name).config.vocab,
                        compute_logits, engine_logits, provenance)


app = typer.Typer(cls=make_group(COMMANDS), add_completion=False, no_args_is_help=True,
                  epilog="Example: rowtwin gate --phase 1")


@app.callback()
def root() -> None:
    """Compare each row of a batch with the same row run by itself."""


def _user_errors() -> tuple[type[Exception], ...]:
    from contracts.load import ContractError
    from engine.errors import InputError
    from falsifiers.judging.errors import SuiteError
    return InputError, ContractError, SuiteError


def main() -> None:
    """Run the command line; a user's mistake ends in one sentence and exit code 2."""
    run_app(app, _user_errors)


if __name__ == "__main__":
    main()
