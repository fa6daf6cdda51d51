"""Receipts: verdicts from a device, stored with the digest of the code that ran."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from contracts.schema import Contract
from falsifiers.gate.phase_status import DeviceProof
from falsifiers.judging.errors import SuiteError
from falsifiers.judging.matrix import MutantResult
from falsifiers.judging.verdict import Record, Verdict

FOLDER = Path("reports/receipts")


class Receipt(Record):
    """The verdicts of one phase on one device."""

    phase: str
    device: str
    """The device's own name."""
    measured: str
    """The day, `2026-01-31`."""
    versions: dict[str, str]
    """torch, triton, driver, python."""
    digest: str
    """The `phase_digest` of the code that ran."""
    verdicts: tuple[Verdict, ...]
    mutants: tuple[MutantResult, ...] = ()
    """Rows of the kill matrix for mutants that need a device."""
    sanitizer: Mapping[str, str] = Field(default_factory=dict)
    """The summary of each compute-sanitizer tool for the `sanitized` falsifiers."""


def load_receipts(phase: str, root: Path) -> list[Receipt]:
    """Read the phase's receipts of every device; raise `SuiteError` for a broken file."""
    found = []
    for path in sorted((root / FOLDER).glob(f"*/{phase}.json")):
        try:
            found.append(Receipt.model_validate_json(path.read_bytes()))
        except (OSError, ValueError) as error:
            raise SuiteError(f"{path}: is not a receipt: {str(error).splitlines()[0]}") from None
    return found


def device_proof(contract: Contract, root: Path) -> DeviceProof:
    """Return `fresh` if this code passed on a device, `stale` for other code, or `none`."""
    receipts = load_receipts(contract.phase, root)
    now = phase_digest(contract, root) if receipts else ""
    if any(receipt.digest == now and verdicts_prove(contract, receipt.verdicts)
           and not sanitizer_faults(receipt.sanitizer) for receipt in receipts):
        return "fresh"
    return "stale" if receipts else "none"


def sanitizer_faults(summaries: Mapping[str, str]) -> list[str]:
    """Return the summaries of tools that count an error, a warning or a hazard."""
    return [f"{tool}: {text}" for tool, text in summaries.items()
            if "SUMMARY" in text and any(int(n) for n in re.findall(r"(\d+) (?:error|hazard|warn)",
                                                                    text))]


def verdicts_prove(contract: Contract, verdicts: Iterable[Verdict]) -> bool:
    """Return whether every quick device case passed and no device case failed."""
    must = {case.id for case in contract.expand() if case.tier == "cuda" and case.quick}
    on_device = [v for v in verdicts if v.phase == contract.phase and v.tier == "cuda"]
    passed = {v.case for v in on_device if v.outcome == "passed"}
    bad = any(v.outcome in ("failed", "error") for v in on_device)
    return bool(passed) and must <= passed and not bad


def phase_digest(contract: Contract, root: Path) -> str:
    """Return the digest of a phase's kernels, the arithmetic and the contract."""
    return sources_digest(kernel_files(contract.package, root),
                          root / "contracts" / f"{contract.phase}.yaml", root)


def sources_digest(modules: Iterable[Path], contract: Path, root: Path) -> str:
    """Return a sha256 of sources, without layout and comments, and of a contract's data."""
    total = hashlib.sha256()
    for path in sorted(modules):
        total.update(f"{path.relative_to(root).as_posix()}\n".encode())
        source = path.read_text(encoding="utf-8")
        total.update((canonical_ast(ast.parse(source)) if path.suffix == ".py" else
                      without_comments(source)).encode())
    data = yaml.safe_load(contract.read_bytes())
    data.pop("emulated", None)  # the tier emulate needs no device
    for mutant in data.get("mutants", ()):
        mutant.pop("fault", None)  # a description does not change what ran
    total.update(json.dumps(data, sort_keys=True, default=str).encode())
    return total.hexdigest()


def without_comments(source: str) -> str:
    """Return CUDA C++ without line comments and with white space folded."""
    return " ".join(" ".join(line.split("//")[0] for line in source.splitlines()).split())


def canonical_ast(node: Any) -> str:
    """Return a syntax tree as text without empty fields, the same for every Python version."""
    if isinstance(node, ast.AST):
        fields = ((name, value) for name, value in ast.iter_fields(node)
                  if value is not None and value != [])
        inside = ",".join(f"{name}={canonical_ast(value)}" for name, value in fields)
        return f"{type(node).__name__}({inside})"
    if isinstance(node, list):
        return "[" + ",".join(map(canonical_ast, node)) + "]"
    return repr(node)


def kernel_files(package: str, root: Path) -> set[Path]:
    """Return the kernel files that the package's increment imports, and the arithmetic."""
    folder = root / package.replace(".", "/")
    seen: set[Path] = set()
    waiting = [folder / "increment.py", *folder.glob("kernel_*.py")]
    if package == "engine":
        waiting += folder.glob("kernels/*.py")
    while waiting:
        path = waiting.pop()
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        waiting += imported_files(path, root)
        if path.name == "increment.py":  # its table names kernels, which no import does
            waiting += path.parent.glob("kernel_*.py")
    arithmetic = root / "engine/arithmetic.py"
    kernels = {path for path in seen if path.name.startswith("kernel_")
               or (path.parent == root / "engine/kernels" and path.name != "__init__.py")}
    sources = {cuda for path in kernels for cuda in path.parent.glob("*.cu*")}
    return kernels | sources | ({arithmetic} if arithmetic.is_file() else set())


def imported_files(path: Path, root: Path) -> Iterator[Path]:
    """Yield the repository's files that a module imports, in functions too."""
    for name in imported_names(ast.parse(path.read_bytes())):
        yield root / f"{name.replace('.', '/')}.py"
        yield root / name.replace(".", "/") / "__init__.py"


def imported_names(module: ast.Module) -> Iterator[str]:
    """Yield every dotted name that a module imports; `from a import b` gives `a` and `a.b`."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
