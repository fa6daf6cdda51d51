"""The subject that a falsifier judges, and its mutants: wrong versions that must fail."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Subject:
    """The objects under test; falsifiers receive them and never fetch them."""

    name: str
    """`in-tree`, the candidate as it was named, or the mutant's name."""
    models: Callable[[str], Any]
    """Loads a test model by name (`tiny`, `nano`, `nano-f32`, ...), cached."""
    path: Any = None
    """The ops and the step of the decode path (an `engine.path.Path`)."""
    stack: Any = None
    """The serving stack: what `stack()` of the newest serving phase returned."""
    engine: Any = None
    """The engine's parts below a path (an `engine.parts.EngineParts`)."""
    device: str = "cpu"
    candidate: Any = None
    """The candidate module or object, when there is one."""
    around: Callable[[], AbstractContextManager[None]] = nullcontext
    """The context in which a case runs; on the tier `emulate`, kernels take CPU tensors there."""
    faults: tuple[type[Exception], ...] = ()
    """Exceptions that mean the subject is wrong; any other exception is an error of the case."""


Builder = Callable[[Subject], Subject]
"""Builds the mutant's subject from the right one."""


def mutant_id(wrong: type) -> str:
    """Return the id of the mutant that a class is: `frees_twice` for `FreesTwice`."""
    return re.sub(r"(?<=.)([A-Z])", r"_\1", wrong.__name__).lower()


def stack_mutants(fields: Mapping[str, type], *modules: ModuleType) -> dict[str, Builder]:
    """Return builders for the public classes of `modules`, by mutant id.

    fields: for each field of the serving stack the base class of its faulty versions.
    """
    def build_with(part: type) -> Builder:
        (field,) = [name for name, base in fields.items() if issubclass(part, base)]
        return lambda subject: replace(subject, stack=replace(subject.stack, **{field: part}))

    return {mutant_id(part): build_with(part)
            for module in modules for name, part in vars(module).items()
            if isinstance(part, type) and part.__module__ == module.__name__ and name[0] != "_"}


@dataclass(frozen=True)
class Mutant:
    """A deliberately wrong version, named after its fault."""

    name: str
    fault: str
    """One sentence: what is wrong."""
    killers: tuple[str, ...]
    """The falsifiers that must each kill it."""
    build: Builder
    source: str = ""
    """The public report it comes from (`B036`), or an empty string."""
    device: str = "cpu"
    """`cuda` when the mutant needs a device."""
    emulated: bool = True
    """Whether a mutant of a device terminates on the tier `emulate`."""
