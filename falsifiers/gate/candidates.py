"""Candidates: a user's kernels or engine, loaded from a file, a module or a program.

A candidate module defines functions with the names of a phase's ops, or `engine(model)` that
returns an engine. It may define `ARITHMETIC` (default "own"), `prepare(weight)`,
`supports(case) -> str | None`, `io_dtype` and `KV`, its cache types other than f32.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Protocol

from contracts.schema import Case
from falsifiers.gate.phase_status import DECODE_PHASES
from falsifiers.judging.errors import Declined, SuiteError

EXAMPLE_SPEC = "module:phases.p3_row_twin.kernel_exact"


class CandidateKind(Protocol):
    """A kind of candidate that is not Python; its module calls `register_kind` on import."""

    def check(self, spec: str) -> None:
        """Raise `SuiteError` for an invalid spec, without running the candidate."""

    def absolute(self, spec: str) -> str:
        """Return the spec with absolute paths."""

    def load(self, spec: str, offer: Any) -> Any:
        """Return an object with the functions of a phase; `offer` is its class.

        `offer` is None for the functions of every phase.
        """


KINDS: dict[str, CandidateKind] = {}
"""Kinds of candidates by prefix, `cmd` of `cmd:PROGRAM`."""
ARITHMETIC_PATTERN = re.compile(r"own|ordered|exact-[0-9]+")
"""The valid declarations; a misspelt one must not select the budget rule."""


def register_kind(prefixes: Iterable[str], kind: CandidateKind) -> None:
    """Register a kind of candidate for these prefixes."""
    KINDS.update(dict.fromkeys(prefixes, kind))


@dataclass(frozen=True)
class Candidate:
    """A loaded candidate and its declarations; other attributes are those of `target`."""

    name: str
    """The spec from the command line."""
    target: Any
    """The module or the object."""

    @property
    def arithmetic(self) -> str:
        """The declared arithmetic; `exact-…` and `ordered` are compared bitwise with the engine."""
        return str(getattr(self.target, "ARITHMETIC", "own"))

    @property
    def bitwise(self) -> bool:
        """Whether the truth rule is bitwise for it."""
        return self.arithmetic == "ordered" or self.arithmetic.startswith("exact-")

    @property
    def io_dtype(self) -> Any:
        """The torch dtype its functions take and return, or None for f32."""
        return getattr(self.target, "io_dtype", None)

    @property
    def kv(self) -> tuple[str, ...]:
        """The types of keys and values that it supports besides f32, `("f16", "bf16")`."""
        types = getattr(self.target, "KV", ())
        return (types,) if isinstance(types, str) else tuple(types)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)

    def op(self, name: str) -> Callable[..., Any] | None:
        """Return its function of that name, or None."""
        found = getattr(self.target, name, None)
        return found if callable(found) else None

    def must_offer(self, ops: Iterable[str]) -> None:
        """Raise `SuiteError` if it has none of a phase's ops, since nothing of it would run."""
        names = [*ops, "engine"]
        if not any(self.op(name) for name in names):
            raise SuiteError(f"candidate {self.name} offers none of the functions that this phase "
                             f"judges: {', '.join(names)}")

    def prepare(self, weight: Any) -> Any:
        """Return the weight in the candidate's layout; call it once for each weight."""
        prepare = self.op("prepare")
        return prepare(weight) if prepare else weight

    def refuse(self, case: Case) -> None:
        """Raise `Declined` with the candidate's reason if it does not support the case."""
        supports = self.op("supports")
        try:
            reason = supports(case) if supports else None
        except KeyError as missing:  # supports() reads a parameter that this case lacks
            raise Declined(f"its supports(case) asks for {missing}, which the case does not "
                           f"have") from None
        if reason is not None and not isinstance(reason, str):
            raise SuiteError(f"candidate {self.name}: supports(case) returned {reason!r}, but "
                             f"should return None or a reason")
        if reason is not None:
            raise Declined(reason or "no reason given")


def check_phases(spec: str, phases: Iterable[str]) -> None:
    """Raise `SuiteError` if none of these phases judges candidates.

    With --through, phases that judge no candidate run with the repository's code.
    """
    if {*phases}.isdisjoint(DECODE_PHASES):
        raise SuiteError(f"candidate {spec} has no part in {', '.join(phases)}: candidates are "
                         f"judged in one of {', '.join(DECODE_PHASES)}")


def check_spec(spec: str) -> None:
    """Raise `SuiteError` for an invalid spec or file, without running the candidate."""
    kind, _, rest = spec.partition(":")
    if kind in KINDS and rest:
        KINDS[kind].check(spec)
    elif kind == "file" and rest:
        path = Path(rest).expanduser()
        try:
            tree = ast.parse(path.read_bytes(), filename=str(path))
        except OSError as error:
            raise SuiteError(f"candidate {spec}: {path} cannot be read: {error.strerror}") from None
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None) or 1
            raise SuiteError(f"candidate {spec}: {path}:{line}: {error}") from None
        for node in tree.body:  # a computed ARITHMETIC is checked after loading
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) \
                    and "ARITHMETIC" in {ast.unparse(target) for target in node.targets}:
                check_arithmetic(spec, str(node.value.value))
    elif kind != "module" or not rest:
        raise SuiteError(
            f"unknown candidate {spec!r}: give file:/abs/path.py, module:pkg.attr, "
            f"cmd:PROGRAM or vectors:DIR, for example {EXAMPLE_SPEC}"
        )
    elif importlib.util.find_spec(rest.split(".")[0]) is None:
        raise SuiteError(f"candidate {spec}: there is no module {rest.split('.')[0]!r}")


def make_absolute(spec: str) -> str:
    """Return the spec with an absolute path, for a process in another folder."""
    kind, _, rest = spec.partition(":")
    if kind in KINDS and rest:
        return KINDS[kind].absolute(spec)
    return f"file:{Path(rest).expanduser().resolve()}" if kind == "file" and rest else spec


def load_candidate(spec: str, offer: Callable[[], Any] | None = None) -> Candidate:
    """Load a candidate; raise `SuiteError` if that fails.

    `offer` returns the subclass of `falsifiers.vectors.calls.ExternalOps` for a program or a
    directory. The default has the functions of every phase.
    """
    check_spec(spec)
    kind, _, rest = spec.partition(":")
    try:
        target = KINDS[kind].load(spec, offer() if offer else None) if kind in KINDS else \
            _load_file(Path(rest).expanduser()) if kind == "file" else _load_attribute(rest)
    except SuiteError:
        raise
    except Exception as error:
        raise SuiteError(f"candidate {spec} cannot be loaded: "
                         f"{type(error).__name__}: {error}") from error
    candidate = Candidate(spec, target)
    check_arithmetic(spec, candidate.arithmetic)
    return candidate


def check_arithmetic(spec: str, arithmetic: str) -> None:
    """Raise `SuiteError` for an unknown ARITHMETIC."""
    if not ARITHMETIC_PATTERN.fullmatch(arithmetic):
        raise SuiteError(f"candidate {spec}: ARITHMETIC is {arithmetic!r}, but should be "
                         f"'ordered', 'exact-BITS' or 'own'")


class _UncachedLoader(SourceFileLoader):
    """Compiles a file every time, since a .pyc is stale for an edit within the same second."""

    def get_code(self, fullname: str) -> CodeType:
        """Return the compiled source of the file."""
        return self.source_to_code(self.get_data(self.path), self.path)


def _load_file(path: Path) -> ModuleType:
    name = f"rowtwin_candidate_{path.stem}"
    spec = importlib.util.spec_from_file_location(
        name, path, loader=_UncachedLoader(name, str(path.resolve())))
    if path.suffix != ".py" or spec is None or spec.loader is None:
        raise SuiteError(f"candidate file:{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # triton and dataclasses look a function's module up by name
    spec.loader.exec_module(module)
    return module


def _load_attribute(dotted: str) -> Any:
    head, *rest = dotted.split(".")
    target: Any = importlib.import_module(head)
    for part in rest:
        if not hasattr(target, part) and isinstance(target, ModuleType):
            importlib.import_module(f"{target.__name__}.{part}")
        target = getattr(target, part)
    return target
