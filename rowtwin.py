"""Wiring: assembles what is judged from the packages, and mounts their commands lazily.

A command's module is imported when the command is run, so that `--help` answers at once.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from contracts.golden import Makers
    from contracts.schema import Case, Contract
    from falsifiers.mutants import Bank
    from falsifiers.sample import Sample
    from falsifiers.subject import Subject
    from reports.own_model import Opened

ROOT = Path(__file__).parent
DECODE = ("p1", "p3", "p4", "p5", "p6", "p8")
SERVING = ("p0", "p2", "p7")
READER_GONE = 141  # as a shell tells a death by SIGPIPE
COMMANDS = {
    "gate": ("falsifiers.cli", "Judge phases: PASS, FAIL or UNMEASURABLE, with evidence."),
    "report": ("reports.cli", "Judge every phase and write a page to look at."),
    "mutants": ("falsifiers.cli", "Attack every mutant and print the kill matrix."),
    "weak": ("phases.cli", "Show what common styles of test let pass."),
    "receipt": ("falsifiers.cli", "Judge the device cases here and keep the receipts."),
    "bench": ("phases.cli", "Measure kernels on a device, beside the memory floor."),
    "serve": ("phases.p2_engine_serve.cli", "Serve a model over the OpenAI API, in batches."),
    "model": ("engine.cli", "Make or inspect a GGUF file."),
    "generate": ("engine.cli", "Continue a text, token by token."),
    "logits": ("engine.cli", "Write teacher-forced logits of a model."),
    "golden": ("contracts.cli", "Make or check the golden logits."),
    "witness": ("falsifiers.witness.cli", "Take a server's witness, or check one."),
}


def package_of(phase: str) -> str | None:
    """Return the dotted package of a phase that has an increment, or None."""
    if phase == "engine":
        return "engine"
    found = sorted(ROOT.glob(f"phases/{phase}_*/increment.py"))
    return f"phases.{found[0].parent.name}" if found else None


def newest(chain: tuple[str, ...]) -> str | None:
    """Return the last phase of a chain that is built, or None."""
    return next((phase for phase in reversed(chain) if package_of(phase)), None)


def _increment(phase: str | None, chain: tuple[str, ...]) -> Any:
    from falsifiers.errors import SuiteError
    name = newest(chain) if phase == "newest" else phase
    if name is None:
        return None
    package = package_of(name) if name in chain else None
    if package is None:
        built = ", ".join(p for p in chain if package_of(p)) or "none"
        raise SuiteError(f"phase {name!r} is not built; of its chain there are: {built}")
    return importlib.import_module(f"{package}.increment")


@cache
def assemble(path: str | None = "newest", stack: str | None = "newest",
             candidate: str | None = None) -> Subject:
    """Return what is judged: a decode path and a serving stack by their phases' names.

    `newest` takes the last that is built, None leaves the part out. A candidate's functions
    stand in for the path's ops of the same name. Raises `SuiteError` for an unknown part.
    """
    from falsifiers.candidates import load
    from falsifiers.subject import Subject
    offered = load(candidate) if candidate else None
    decode, serving = _increment(path, DECODE), _increment(stack, SERVING)
    ops = decode.path() if decode else None
    if offered is not None and ops is not None:
        ops = replace(ops, **{f.name: own for f in fields(ops) if (own := offered.op(f.name))})
    return Subject(name=candidate or "in-tree", models=load_model, path=ops,
                   stack=serving.stack() if serving else None, candidate=offered,
                   engine=importlib.import_module("engine.surface").surface())


@cache
def load_model(name: str) -> Any:
    """Load a test model by name, made on first use and kept."""
    return importlib.import_module("engine.testmodels").load(name)


def subject_for(case: Case, candidate: str | None = None) -> Subject:
    """Return the subject that a case is about: its own phase's increment, on its tier's device.

    A case may choose another path with a given `path` (`p1`, `newest`).
    """
    path = case.given.get("path", case.phase if case.phase in DECODE else None)
    if path is None and case.phase in SERVING[1:]:
        path = "newest"
    stack = case.phase if case.phase in SERVING else None
    subject = assemble(path, stack, candidate)
    if subject.candidate is not None:
        subject.candidate.must_offer(contract_of(case.phase).ops)
    return replace(subject, device="cuda" if case.tier == "cuda" else "cpu")


@cache
def contract_of(phase: str) -> Contract:
    """Load a phase's contract."""
    from contracts.schema import load_contract
    return load_contract(ROOT / "contracts" / f"{phase}.yaml")


def bank(phase: str) -> Bank:
    """Return a phase's falsifiers and mutants, ready for the kill matrix."""
    from falsifiers.mutants import Bank
    contract = contract_of(phase)
    tests = importlib.import_module(f"{contract.package}.test_falsifier")
    wrong = importlib.import_module(f"{contract.package}.mutants")
    named = {f.id: getattr(tests, f"test_{f.id}", None) for f in contract.falsifiers}
    return Bank(contract, {name: test for name, test in named.items() if test is not None},
                wrong.MUTANTS, subject_for)


def path_of(name: str) -> Any:
    """Return a decode path by its phase's name, or the newest with a candidate's ops in it."""
    from falsifiers.errors import SuiteError
    if name == "newest" or name in DECODE:
        return assemble(name, None).path
    subject = assemble("newest", None, name)
    if any(subject.candidate.op(own) for own in ("engine", "step")):
        raise SuiteError(f"{name} brings a step of its own; ops of a path are what can be timed")
    return replace(subject.path, name=name)


def measures() -> dict[str, tuple[str, Any]]:
    """Return what `rowtwin receipt` measures beside verdicts: by name, the phase and a function."""
    def gemv(tell: Any) -> Any:
        products = importlib.import_module("phases.p3_row_twin.speed")
        return products.measure((1, 2, 4, 8, 16), tell=tell)

    def step(tell: Any) -> Any:
        run = importlib.import_module("phases.step_run")
        return run.kept(path_of("p1"), path_of("newest"), tell)

    decode = newest(DECODE)
    return {"gemv": ("p3", gemv), "step": (decode, step)} if decode else {}


def open_model(file: str, candidate: str | None = None) -> Opened:
    """Open a user's own GGUF file for a report: the newest path, or a candidate, over it."""
    from engine.candidate import engine_of
    from engine.model import Model
    from engine.path import Rows
    from reports.own_model import Opened
    model, subject = Model.load(file), assemble("newest", None, candidate)

    def oracle(tokens: Sequence[int]) -> Iterator[Any]:
        state = model.new_state(len(tokens))
        for position, token in enumerate(tokens):
            yield model.forward_single(token, state, position)

    c = model.config
    return Opened(
        name=readable(file), size=Path(file).stat().st_size,
        shape=f"{c.layers} layers ({sum(c.recurrent)} recurrent), width {c.embd}, "
              f"feed-forward {c.ffn}, vocabulary {c.vocab:,}",
        vocab=c.vocab, path=subject.path.name, rows=Rows, oracle=oracle,
        engine=engine_of(subject.path, subject.candidate, model), project=subject.path.project,
        matrices=list(model.weights.matrices()))


def sample_weights(file: str, tensors: int, seed: int, named: Sequence[str]) -> Sample:
    """Draw tensors of a user's own GGUF file for P3's attack."""
    return cast("Sample", importlib.import_module("phases.p3_row_twin.weights").sample(
        file, tensors, seed, named))


def golden_makers() -> Makers:
    """Return what makes the goldens: test models, transformers on their weights, and the engine."""
    from contracts.golden import Makers
    from engine import testmodels

    def independent(path: Path, prompts: Sequence[Sequence[int]]) -> Any:
        return importlib.import_module("engine.independent").logits_of(path, prompts)

    def own(name: str, prompt: Sequence[int]) -> list[Any]:
        model = load_model(name)
        state = model.new_state(len(prompt))
        return [model.forward_single(token, state, i) for i, token in enumerate(prompt)]

    def provenance() -> dict[str, str]:
        return {name: importlib.import_module(name).__version__
                for name in ("transformers", "torch")}

    return Makers(testmodels.path_of, lambda name: load_model(name).config.vocab, independent, own,
                  provenance)


def witness_page(witness: dict[str, Any]) -> str:
    """Return a witness as a page to look at."""
    return str(importlib.import_module("reports.witness_page").page(witness))


class LazyCommand(TyperCommand):
    """Stands for a command until it is run; its module is imported then."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None,
                     **extra: Any) -> Any:
        """Hand over to the real command."""
        assert self.name is not None
        module = importlib.import_module(COMMANDS[self.name][0])
        group: Any = typer.main.get_group(module.app)
        return group.commands[self.name].make_context(info_name, args, parent=parent, **extra)


class LazyGroup(TyperGroup):
    """The commands of COMMANDS, none of them imported before it is run."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a stand-in for the command of that name, or None."""
        if cmd_name not in COMMANDS:
            return None
        return LazyCommand(cmd_name, help=COMMANDS[cmd_name][1], add_help_option=False)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a reader that went away is not a failure of what is judged."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _drop_output()
            raise typer.Exit(READER_GONE) from None


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def readable(text: str) -> str:
    r"""Return text with the bytes of a path that is not UTF-8 as `\xff`."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


app = typer.Typer(cls=LazyGroup, add_completion=False, no_args_is_help=True,
                  epilog="Example: rowtwin gate --phase 1")


@app.callback()
def root(ctx: typer.Context) -> None:
    """Does row i of a batch get exactly what it would have got alone?"""
    ctx.obj = bank
    ctx.meta["open_model"] = open_model
    ctx.meta["assemble"] = assemble
    ctx.meta["golden"] = golden_makers
    ctx.meta["path_of"] = path_of
    ctx.meta["figures"] = measures
    ctx.meta["sample_weights"] = sample_weights
    ctx.meta["witness_page"] = witness_page


def main() -> None:
    """Run the command line; a user's mistake ends in one sentence and exit code 2."""
    try:
        if sys.stdout is None:
            raise SystemExit("rowtwin: standard output is closed")
        try:
            typer.main.get_command(app).main(prog_name="rowtwin")
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        sys.exit(READER_GONE)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _drop_output()
        print(f"rowtwin: the output cannot be written: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        from contracts.schema import ContractError
        from engine.errors import InputError
        from falsifiers.errors import SuiteError
        if not isinstance(error, (InputError, ContractError, SuiteError)):
            raise
        print(f"rowtwin: {readable(str(error))}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
