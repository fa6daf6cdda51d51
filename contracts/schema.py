"""Contracts: what parity means for a phase, as data, loaded into frozen records.

A contract lists the claim, the ops, the falsifiers with the diagnosis printed on failure, the
table of cases and the mutants. A list under `given` is an axis: one row stands for the product
of its axes. An unknown key is an error that names file and line.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

if TYPE_CHECKING:
    from yaml import SafeLoader
else:  # by libyaml where it was built in: every process of a run loads every contract
    SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

HERE = Path(__file__).parent
FIELD = re.compile(r"\{(\w+)\}")
"""An axis in a case's id; nothing else of a format string counts."""
Tier = Literal["cpu", "interpret", "cuda", "emulate"]
"""Where a case is judged: PyTorch, Triton's interpreter, a device, or a device emulated."""
DEVICE: tuple[Tier, ...] = ("cuda", "emulate")
"""Those whose cases run kernels for a device."""
StatedTier = Literal["cpu", "interpret", "cuda"]
"""What a row of a contract may state; cases of `emulate` are made of those of `cuda`."""
CASE_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.=+-]*$")


class ContractError(Exception):
    """A contract file is broken; the message names the file and the line."""


class _InconsistentError(ValueError):
    """Two parts of a contract contradict each other; `loc` is the part to blame."""

    def __init__(self, message: str, *loc: int | str) -> None:
        super().__init__(message)
        self.loc = loc


class Record(BaseModel):
    """A frozen record that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Budget(Record):
    """How far from bitwise a truth comparison may be, why, and the floor that was measured."""

    cosine: float = Field(gt=0, le=1)
    """The least cosine of any row."""
    norm: float = Field(ge=0)
    """The most by which any row's norm ratio may leave 1."""
    near_tie: float = Field(ge=0)
    """A top-2 margin below this, over the row's standard deviation, excuses a changed argmax."""
    reason: str = Field(min_length=20)
    """Why bitwise cannot hold."""
    measured: str = Field(min_length=10)
    """The floor measured, with its conditions."""


class Parity(Record):
    """The two rules: twin is always bitwise; truth is bitwise or a budget."""

    twin: Literal["bitwise"]
    truth: Literal["bitwise"] | Budget
    own: Budget | None = None
    """Truth of a candidate whose arithmetic is its own; None where none is taken."""
    kv: dict[Literal["f16", "bf16"], Budget] = {}
    """How far from f32 caches of a narrower type may lead; empty where there are none."""


class Falsifier(Record):
    """One attack on the claim; its test is the function `test_<id>`."""

    id: str = Field(pattern=r"^[a-z][a-z0-9_]+$")
    attacks: str = Field(min_length=10)
    """What it tries to break, in one sentence."""
    if_fails: str = Field(min_length=20)
    """The diagnosis printed on failure."""


class Row(Record):
    """One row of the case table, before its axes are multiplied out."""

    falsifier: str
    tier: tuple[StatedTier, ...] = ("cpu",)
    id: str
    """The case's id with its axes as fields, `nano-m{m}`."""
    given: dict[str, Any] = {}
    quick: bool = True
    """Whether the default selection runs it; `--thorough` runs all."""
    must_claim: bool = True
    """Whether the phase needs this case to pass."""

    @model_validator(mode="before")
    @classmethod
    def _one_tier(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("tier"), str):
            return {**data, "tier": (data["tier"],)}
        return data


class Case(Record):
    """One concrete configuration."""

    phase: str
    falsifier: str
    tier: Tier
    name: str
    given: dict[str, Any]
    quick: bool
    must_claim: bool
    repro: str = ""
    """The command that runs it alone, when no contract's table holds it."""

    @property
    def id(self) -> str:
        """The full id, `p1/streams_equal_solo[cpu-nano-m3]`."""
        return f"{self.phase}/{self.falsifier}[{self.tier}-{self.name}]"

    @property
    def label(self) -> str:
        """What a message ends in, `p1 streams_equal_solo, cpu-nano-m3`."""
        return f"{self.phase} {self.falsifier}, {self.tier}-{self.name}"

    def __getitem__(self, key: str) -> Any:
        """Return one given value; the contract must name it."""
        return self.given[key]


class Contract(Record):
    """What one phase claims and how the claim is attacked."""

    phase: str = Field(pattern=r"^(engine|p[0-8])$")
    package: str
    """The dotted package that holds the increment, `phases.p1_looped_step`."""
    title: str
    claim: str = Field(min_length=20)
    not_proven: str = Field(min_length=10)
    """What a pass does not say."""
    ops: tuple[str, ...]
    parity: Parity
    falsifiers: tuple[Falsifier, ...] = Field(min_length=1)
    cases: tuple[Row, ...] = Field(min_length=1)
    sanitized: tuple[str, ...] = ()
    """Falsifiers whose device cases a receipt also runs under compute-sanitizer."""
    emulated: dict[str, tuple[str, ...]] = {}
    """Device cases that are also judged on the CPU, where the device is emulated: a falsifier's, by
    patterns of their names. A receipt is not about them."""
    mutants: tuple[str, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> Contract:
        known = [falsifier.id for falsifier in self.falsifiers]
        _once("falsifier", known, "falsifiers")
        _once("mutant", list(self.mutants), "mutants")
        seen, there = set[str](), list[tuple[str, str]]()
        for number, row in enumerate(self.cases):
            if row.falsifier not in known:
                raise _InconsistentError(
                    f"case {row.id!r} names unknown falsifier {row.falsifier!r}",
                    "cases", number, "falsifier")
            for case in self._cases_of(number):
                if case.id in seen:
                    raise _InconsistentError(f"case {case.id!r} stands twice", "cases", number)
                seen.add(case.id)
                if case.tier == "cuda":
                    there.append((case.falsifier, case.name))
        for name in self.sanitized:
            if not any(falsifier == name for falsifier, _ in there):
                raise _InconsistentError(f"{name!r} has no device case to be sanitized",
                                         "sanitized")
        for name, patterns in self.emulated.items():
            for pattern in patterns:
                if not any(of == name and fnmatchcase(case, pattern) for of, case in there):
                    raise _InconsistentError(f"{name!r} has no device case {pattern!r} to be "
                                             f"emulated", "emulated", name)
        idle = sorted(set(known) - {row.falsifier for row in self.cases})
        if idle:
            raise _InconsistentError(f"falsifier {idle[0]!r} has no case",
                                     "falsifiers", known.index(idle[0]))
        return self

    def expand(self) -> Iterator[Case]:
        """Yield every concrete case of the table."""
        for number in range(len(self.cases)):
            yield from self._cases_of(number)

    def _cases_of(self, number: int) -> Iterator[Case]:
        row = self.cases[number]
        axes = {k: v if isinstance(v, list) else [v] for k, v in row.given.items()}
        for tier, *values in itertools.product(row.tier, *axes.values()):
            given = dict(zip(axes, values, strict=True))
            try:
                name = "".join(str(given[part]) if place % 2 else part
                               for place, part in enumerate(FIELD.split(row.id)))
            except KeyError as error:
                raise _InconsistentError(
                    f"case id {row.id!r} cannot be filled in from given: {error} is missing",
                    "cases", number, "id") from None
            if not CASE_NAME.match(name):
                raise _InconsistentError(
                    f"case id {name!r} holds a character that cannot stand in a test's name",
                    "cases", number, "id")
            case = Case(phase=self.phase, falsifier=row.falsifier, tier=tier, name=name,
                        given=given, quick=row.quick, must_claim=row.must_claim)
            yield case
            patterns = self.emulated.get(row.falsifier, ()) if tier == "cuda" else ()
            if any(fnmatchcase(name, pattern) for pattern in patterns):
                yield case.model_copy(update={"tier": "emulate"})


def _once(what: str, ids: list[str], key: str) -> None:
    for number, one in enumerate(ids):
        if one in ids[:number]:
            raise _InconsistentError(f"{what} {one!r} stands twice", key, number)


class OnceLoader(SafeLoader):
    """A safe YAML loader that refuses a key that stands twice."""


def _mapping(loader: OnceLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node)
        if key in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"key {key!r} stands twice", key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


OnceLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def _line_of(node: yaml.Node | None, path: tuple[int | str, ...]) -> int:
    """Return the line of the deepest node on `path`, for an error message."""
    line = node.start_mark.line + 1 if node is not None else 1
    for step in path:
        found: yaml.Node | None = None
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(step):
                    found, line = value, key.start_mark.line + 1
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) \
                and step < len(node.value):
            found = node.value[step]
            line = found.start_mark.line + 1
        if found is None:
            return line
        node = found
    return line


def load_contract(path: Path) -> Contract:
    """Load one contract file; raise `ContractError` naming file and line when it is broken."""
    try:
        return _parsed(path, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ContractError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ContractError(f"{path}: is not UTF-8 text") from None


@lru_cache(maxsize=64)
def _parsed(path: Path, text: str) -> Contract:
    """Return the contract that a file's text is; a process reads the same text once."""
    try:
        data = yaml.load(text, Loader=OnceLoader)
    except (TypeError, ValueError, RecursionError) as error:  # a value that YAML cannot build
        raise ContractError(f"{path}:1: is not a contract: {str(error).splitlines()[0]}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        problem = getattr(error, "problem", None) or "is not YAML"
        raise ContractError(f"{path}:{line}: {problem}") from None
    try:
        contract = Contract.model_validate(data)
    except ValidationError as error:
        node = yaml.compose(text, Loader=OnceLoader)
        raise ContractError(_sentence(path, node, error)) from None
    if contract.phase != path.stem:
        line = _line_of(yaml.compose(text, Loader=OnceLoader), ("phase",))
        raise ContractError(f"{path}:{line}: phase: {contract.phase!r} stands in a file for "
                            f"{path.stem!r}")
    return contract


def _sentence(path: Path, node: yaml.Node | None, error: ValidationError) -> str:
    """Say in one line what is wrong, and in which file and line it stands."""
    first = max(error.errors(), key=lambda one: len(one["loc"]))  # the deepest says most
    cause = first.get("ctx", {}).get("error")
    loc = first["loc"] + (cause.loc if isinstance(cause, _InconsistentError) else ())
    where = ".".join(str(part) for part in loc) or "contract"
    message = re.sub(r"^Value error, ", "", first["msg"])
    if first["type"] == "extra_forbidden":
        message = "unknown key"
    return f"{path}:{_line_of(node, loc)}: {where}: {message}"


def load_all(folder: Path = HERE) -> dict[str, Contract]:
    """Load every contract of a folder, by phase, `engine` first."""
    files = sorted(folder.glob("*.yaml"))
    return {contract.phase: contract for contract in map(load_contract, files)}
