"""Candidates: somebody's kernels or engine, loaded from a file or a module, judged as they are.

A candidate module has the functions of a phase under the phase's own names, or `engine(model)`
that returns a whole engine; or a program in any language stands behind them. It may define
`ARITHMETIC` ("own" when absent), `prepare(weight)`, `supports(case) -> str | None`, `io_dtype` and
`KV`, the narrow caches that it takes.
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
    """A kind of candidate that is not Python; its module calls `register` when it is imported."""

    def check(self, spec: str) -> None:
        """Raise `SuiteError` when the spec cannot be a candidate; run nothing."""

    def absolute(self, spec: str) -> str:
        """Return the spec with every path in it made absolute."""

    def load(self, spec: str, offer: Any) -> Any:
        """Return the functions of a phase, `offer`, answered by this candidate.

        `offer` is None where no phase was named.
        """


KINDS: dict[str, CandidateKind] = {}
"""By prefix, `cmd` of `cmd:PROGRAM`."""
ARITHMETIC_PATTERN = re.compile(r"own|ordered|exact-[0-9]+")
"""What a candidate may declare; a misspelt name must not lower it to a budget."""


def register_kind(prefixes: Iterable[str], kind: CandidateKind) -> None:
    """Add a kind of candidate, by the prefixes of its specs."""
    KINDS.update(dict.fromkeys(prefixes, kind))


@dataclass(frozen=True)
class Candidate:
    """What was offered, and what it says about itself; its own attributes show through."""

    name: str
    """As it was named on the command line."""
    target: Any
    """The module or the object."""

    @property
    def arithmetic(self) -> str:
        """The declared arithmetic; `exact-…` and `ordered` are held to bits against the engine."""
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
        """The types of keys and values that it takes beside f32, `("f16", "bf16")`."""
        named = getattr(self.target, "KV", ())
        return (named,) if isinstance(named, str) else tuple(named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)

    def op(self, name: str) -> Callable[..., Any] | None:
        """Return its function of that name, or None."""
        found = getattr(self.target, name, None)
        return found if callable(found) else None

    def must_offer(self, ops: Iterable[str]) -> None:
        """Raise `SuiteError` when it has none of a phase's ops: the tree's would be judged."""
        names = [*ops, "engine"]
        if not any(self.op(name) for name in names):
            raise SuiteError(f"candidate {self.name} offers none of the functions that this phase "
                             f"judges: {', '.join(names)}")

    def prepare(self, weight: Any) -> Any:
        """Return the weight in the candidate's own layout; call it once a weight."""
        own = self.op("prepare")
        return own(weight) if own else weight

    def refuse(self, case: Case) -> None:
        """Raise `Declined` with the candidate's reason when it does not take the case."""
        own = self.op("supports")
        try:
            reason = own(case) if own else None
        except KeyError as missing:  # a case of a kind that was not thought of when it was written
            raise Declined(f"its supports(case) asks for {missing}, which the case does not "
                           f"have") from None
        if reason is not None and not isinstance(reason, str):
            raise SuiteError(f"candidate {self.name}: supports(case) returned {reason!r}, but "
                             f"should return None or a reason")
        if reason is not None:
            raise Declined(reason or "no reason given")


def check_phases(spec: str, phases: Iterable[str]) -> None:
    """Raise `SuiteError` when a candidate has a part in none of these phases.

    Of a ladder, the phases in which it has none are judged as the tree has them.
    """
    if {*phases}.isdisjoint(DECODE_PHASES):
        raise SuiteError(f"candidate {spec} has no part in {', '.join(phases)}: candidates are "
                         f"judged in one of {', '.join(DECODE_PHASES)}")


def check_spec(spec: str) -> None:
    """Raise `SuiteError` when a candidate cannot be what it says, without running any of it."""
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
        for node in tree.body:  # said once here; what is worked out is known when it is loaded
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) \
                    and "ARITHMETIC" in {ast.unparse(target) for target in node.targets}:
                check_arithmetic(spec, str(node.value.value))
    elif kind != "module" or not rest:
        raise SuiteError(
            f"unknown candidate {spec!r}: give file:/abs/path.py, module:pkg.attr, "
            f"cmd:PROGRAM or vectors:DIR (a kernel of the tree is {EXAMPLE_SPEC}, say)"
        )
    elif importlib.util.find_spec(rest.split(".")[0]) is None:
        raise SuiteError(f"candidate {spec}: there is no module {rest.split('.')[0]!r}")


def make_absolute(spec: str) -> str:
    """Return the spec with a file's path made absolute, for a process in another folder."""
    kind, _, rest = spec.partition(":")
    if kind in KINDS and rest:
        return KINDS[kind].absolute(spec)
    return f"file:{Path(rest).expanduser().resolve()}" if kind == "file" and rest else spec


def load_candidate(spec: str, offer: Callable[[], Any] | None = None) -> Candidate:
    """Load a candidate by its kind and name; raise `SuiteError` when it cannot be.

    `offer` returns the functions of a phase that a program or a directory answers, a subclass of
    `falsifiers.vectors.calls.ExternalOps`. Without it the functions are those of every phase.
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
    """Raise `SuiteError` when a candidate declares an arithmetic that there is not."""
    if not ARITHMETIC_PATTERN.fullmatch(arithmetic):
        raise SuiteError(f"candidate {spec}: ARITHMETIC is {arithmetic!r}, but should be "
                         f"'ordered', 'exact-' and the bits kept, or 'own'")


class _UncachedLoader(SourceFileLoader):
    """Compiles a file each time: a cached .pyc passes for one edited within the same second."""

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of what the file holds."""
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
