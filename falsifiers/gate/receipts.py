"""Receipts: verdicts measured on a device, kept with the digest of the code they are about."""

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
    """What one phase did on one device."""

    phase: str
    device: str
    """The device's own name."""
    measured: str
    """The day, `2026-01-31`."""
    versions: dict[str, str]
    """torch, triton, driver, python."""
    digest: str
    """What `digest_of` returned for the code that was measured."""
    verdicts: tuple[Verdict, ...]
    mutants: tuple[MutantResult, ...] = ()
    """Rows of the kill matrix that only a device can show."""
    sanitizer: Mapping[str, str] = Field(default_factory=dict)
    """What each tool of compute-sanitizer said of the contract's `sanitized` falsifiers."""


def load_receipts(phase: str, root: Path) -> list[Receipt]:
    """Read the phase's receipts of every device; raise `SuiteError` naming a broken file."""
    found = []
    for path in sorted((root / FOLDER).glob(f"*/{phase}.json")):
        try:
            found.append(Receipt.model_validate_json(path.read_bytes()))
        except (OSError, ValueError) as error:
            raise SuiteError(f"{path}: is not a receipt: {str(error).splitlines()[0]}") from None
    return found


def device_proof(contract: Contract, root: Path) -> DeviceProof:
    """Say whether a device has shown this very code to pass, an older one, or none."""
    receipts = load_receipts(contract.phase, root)
    now = phase_digest(contract, root) if receipts else ""
    if any(receipt.digest == now and verdicts_prove(contract, receipt.verdicts)
           and not sanitizer_faults(receipt.sanitizer) for receipt in receipts):
        return "fresh"
    return "stale" if receipts else "none"


def sanitizer_faults(said: Mapping[str, str]) -> list[str]:
    """Return the tools' summaries that count an error or a hazard."""
    return [f"{tool}: {text}" for tool, text in said.items()
            if "SUMMARY" in text and any(int(n) for n in re.findall(r"(\d+) (?:error|hazard|warn)",
                                                                    text))]


def verdicts_prove(contract: Contract, verdicts: Iterable[Verdict]) -> bool:
    """Return whether these verdicts hold every quick device case, and none that is bad."""
    must = {case.id for case in contract.expand()
            if case.tier == "cuda" and case.quick}
    mine = [v for v in verdicts if v.phase == contract.phase and v.tier == "cuda"]
    passed = {v.case for v in mine if v.outcome == "passed"}
    bad = any(v.outcome in ("failed", "error") for v in mine)
    return bool(passed) and must <= passed and not bad


def phase_digest(contract: Contract, root: Path) -> str:
    """Return the digest of the kernels a phase's path loads, the arithmetic and the contract."""
    return sources_digest(kernel_files(contract.package, root),
                  root / "contracts" / f"{contract.phase}.yaml", root)


def sources_digest(modules: Iterable[Path], contract: Path, root: Path) -> str:
    """Return a sha256 over sources without layout or comments, and over a contract's data."""
    total = hashlib.sha256()
    for path in sorted(modules):
        total.update(f"{path.relative_to(root).as_posix()}\n".encode())
        source = path.read_text(encoding="utf-8")
        total.update((canonical_ast(ast.parse(source)) if path.suffix == ".py" else
                      without_comments(source)).encode())
    data = yaml.safe_load(contract.read_bytes())
    data.pop("emulated", None)  # what is also judged without a device says nothing of a device
    for mutant in data.get("mutants", ()):
        mutant.pop("fault", None)  # a sentence about a mutant changes nothing that was measured
    total.update(json.dumps(data, sort_keys=True, default=str).encode())
    return total.hexdigest()


def without_comments(source: str) -> str:
    """Return CUDA C++ without its line comments and with white space folded."""
    return " ".join(" ".join(line.split("//")[0] for line in source.splitlines()).split())


def canonical_ast(node: Any) -> str:
    """Return a syntax tree as text, the same for every Python: empty fields are left out."""
    if isinstance(node, ast.AST):
        fields = ((name, value) for name, value in ast.iter_fields(node)
                  if value is not None and value != [])
        inside = ",".join(f"{name}={canonical_ast(value)}" for name, value in fields)
        return f"{type(node).__name__}({inside})"
    if isinstance(node, list):
        return "[" + ",".join(map(canonical_ast, node)) + "]"
    return repr(node)


def kernel_files(package: str, root: Path) -> set[Path]:
    """Return the kernel modules of a package, those that its increment reaches, and arithmetic."""
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
    """Yield the repository's files that a module imports by name, wherever the import stands."""
    for name in imported_names(ast.parse(path.read_bytes())):
        yield root / f"{name.replace('.', '/')}.py"
        yield root / name.replace(".", "/") / "__init__.py"


def imported_names(module: ast.Module) -> Iterator[str]:
    """Yield every dotted name a module imports; for `from a import b` both `a` and `a.b`."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
