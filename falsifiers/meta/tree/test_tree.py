"""Checks the repository's rules: imports, the files of a phase, and fields of contracts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from contracts.load import load_contracts
from contracts.schema import Budget, Contract, Falsifier, Parity
from falsifiers.gate.phase_status import DECODE_PHASES, SERVING_PHASES
from falsifiers.gate.receipts import imported_names

ROOT = Path(__file__).parents[3]
PACKAGES = ("contracts", "engine", "falsifiers", "phases", "reports")
MAY_IMPORT = {
    "contracts": set[str](), "engine": set[str](), "falsifiers": {"contracts"},
    "phases": {"engine", "contracts", "falsifiers"}, "reports": {"contracts", "falsifiers"}}
ROOMS = {
    "judging": set[str](), "instruments": {"judging"}, "console": {"judging"},
    "tensor_files": {"judging"}, "gate": {"judging", "instruments", "console"},
    "mutation": {"judging", "console", "gate"},
    "bisect": {"judging", "console", "tensor_files", "gate", "mutation"},
    "vectors": {"judging", "console", "tensor_files", "gate", "bisect"},
    "witness": {"judging", "console"}}
"""The folders of `falsifiers/`, and the other folders that each may import."""
SHAPE = {"__init__.py", "increment.py", "reference.py", "mutants.py", "test_falsifier.py"}


def sources(*packages: str) -> list[Path]:
    return [path for package in packages for path in sorted((ROOT / package).rglob("*.py"))]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes())


def imports_of(path: Path) -> Iterator[str]:
    """Yield the repository's modules that a file imports, by `import_module` too."""
    names = list(imported_names(tree(path)))
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            names += [arg.value for arg in node.args
                      if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    yield from (name for name in names if name.split(".")[0] in (*PACKAGES, "rowtwin", "conftest"))


def is_command(path: Path) -> bool:
    """Return whether a file defines commands: `cli.py`, `trace_cli.py`."""
    return path.stem == "cli" or path.stem.endswith("_cli")


def is_wiring(path: Path) -> bool:
    """Return whether a file is a command, a test outside the phases, or the engine's mutants."""
    folder = path.relative_to(ROOT).parts[0]
    return is_command(path) or (folder != "phases" and path.name.startswith("test_")) or \
        (folder == "engine" and path.name.startswith("mutants"))


def may_enter(path: Path, name: str) -> bool:
    """Return whether a file of `falsifiers/` may import a dotted name of another folder there."""
    home, target = path.relative_to(ROOT).parts[1], name.split(".")[1]
    if home not in ROOMS or is_command(path) or target == home:  # meta, or `falsifiers/__init__.py`
        return True
    return target in ROOMS[home]


def chain_of(phase: str) -> tuple[str, ...]:
    return DECODE_PHASES if phase in DECODE_PHASES else SERVING_PHASES


def allowed(path: Path, name: str) -> bool:
    """Return whether a file may import a dotted name of the repository."""
    parts, wanted = path.relative_to(ROOT).parts, name.split(".")
    home, target = parts[0], wanted[0]
    if target in MAY_IMPORT[home] or (is_wiring(path) and target in (*PACKAGES, "rowtwin")):
        return True
    if target != home:
        return False
    if home == "falsifiers" and len(wanted) > 1:
        return may_enter(path, name)
    if home != "phases" or len(parts) == 2 or parts[1] == "bench" or \
            len(wanted) == 1 or wanted[1] == parts[1]:
        return True  # phases/*.py and phases/bench serve every phase
    if not re.match(r"p\d_|bench$", wanted[1]):
        return True  # phases/*.py: what several phases share
    phase, imported = parts[1].split("_")[0], wanted[1].split("_")[0]
    before = chain_of(phase)[:chain_of(phase).index(phase)]
    return bool(before) and imported == before[-1] and wanted[2:3] in ([], ["increment"])


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_follow_the_table(package: str) -> None:
    forbidden = [f"{path.relative_to(ROOT)} imports {name}" for path in sources(package)
                 for name in imports_of(path) if not allowed(path, name)]
    assert forbidden == []


@pytest.mark.parametrize(("file", "name", "may"), [
    ("engine/ops.py", "falsifiers.judging.judge", False), ("engine/ops.py", "engine.blocks", True),
    ("engine/test_ops.py", "falsifiers.judging.judge", True),
    ("contracts/golden.py", "rowtwin", False), ("reports/test_cli.py", "rowtwin", True),
    ("phases/p3_row_twin/test_falsifier.py", "rowtwin", False),
    ("contracts/schema.py", "engine", False),
    ("falsifiers/judging/judge.py", "engine.state", False),
    ("falsifiers/gate/cli.py", "rowtwin", True), ("falsifiers/gate/runner.py", "rowtwin", False),
    ("falsifiers/gate/runner.py", "falsifiers.judging.errors", True),
    ("falsifiers/gate/runner.py", "falsifiers.mutation.mutants", False),
    ("falsifiers/judging/judge.py", "falsifiers.gate.tiers", False),
    ("falsifiers/witness/take.py", "falsifiers.gate.runner", False),
    ("falsifiers/bisect/session.py", "falsifiers.vectors.calls", False),
    ("phases/p3_row_twin/increment.py", "phases.p1_looped_step.increment", True),
    ("phases/bench/step_timing.py", "phases.p4_batched_matmul.increment", True),
    ("phases/bench/step_timing.py", "rowtwin", False), ("phases/bench/cli.py", "rowtwin", True),
    ("phases/p3_row_twin/increment.py", "phases.p1_looped_step.reference", False),
    ("phases/p5_batched_gdn/mutants.py", "phases.wrong_refs", True),
    ("phases/p5_batched_gdn/mutants.py", "phases.bench.gdn", False),
    ("phases/p4_batched_matmul/increment.py", "phases.p1_looped_step.increment", False),
    ("phases/p2_engine_serve/increment.py", "phases.p1_looped_step.increment", False),
    ("phases/p2_engine_serve/increment.py", "phases.p0_scheduler.increment", True),
    ("reports/cli.py", "engine.model", True), ("reports/produce.py", "engine.model", False)])
def test_import_table_allows_only_the_design(file: str, name: str, may: bool) -> None:
    assert allowed(ROOT / file, name) is may


def phases() -> list[Path]:
    return sorted(path for path in (ROOT / "phases").glob("p[0-8]_*") if path.is_dir()
                  and any(path.glob("*.py")))


@pytest.mark.parametrize("package", phases(), ids=lambda path: path.name)
def test_phase_has_the_files_of_every_phase(package: Path) -> None:
    assert SHAPE - {path.name for path in package.glob("*.py")} == set()
    names = {node.name for node in tree(package / "increment.py").body
             if isinstance(node, ast.FunctionDef)}
    assert ("path" if package.name.split("_")[0] in DECODE_PHASES else "stack") in names


def test_every_phase_has_a_contract_and_every_contract_one_package() -> None:
    contracts = load_contracts(ROOT / "contracts")
    assert {f"phases.{path.name}" for path in phases()} <= {c.package for c in contracts.values()}
    for phase, contract in contracts.items():
        assert contract.package.split(".")[-1].split("_")[0] == phase


def cap_of(path: Path) -> int:
    """Return the line limit of a source; kernels have a higher one."""
    kernel = path.name.startswith("kernel_") or path.suffix in (".cu", ".cuh")
    return 400 if kernel else 300


def test_no_source_is_longer_than_its_cap() -> None:
    files = [path for package in PACKAGES for kind in ("py", "h", "cu", "cuh")
             for path in (ROOT / package).rglob(f"*.{kind}")]
    lengths = {path.relative_to(ROOT): len(path.read_text().splitlines())
               for path in [*files, *ROOT.glob("*.py")]}
    assert {str(path): n for path, n in lengths.items() if n > cap_of(path)} == {}


FORBIDDEN = {
    "a rerun": r"mark\.flaky|--reruns|reruns\s*=",
    "an assertion that cannot fail": r"^\s*assert (True|1)\s*(,|#|$)",
    "a skip": r"pytest\.(skip|importorskip)\(|mark\.skip",
    "an expected failure that is not strict": r"mark\.xfail(?!.*strict=True)",
    "unfinished work": r"\b(TODO|FIXME|XXX|NotImplementedError)\b",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_repository_has_none(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what], re.MULTILINE)
    found = [str(path.relative_to(ROOT)) for path in [*sources(*PACKAGES), *ROOT.glob("*.py")]
             if path != Path(__file__) and pattern.search(path.read_text())]
    assert found == []


@pytest.mark.parametrize("text", [
    "    @pytest.mark.flaky(2)\n", "    assert True\n", "    assert True, 'x'\n",
    "@pytest.mark.xfail(reason='x')\n", "pytest.skip('x')\n", "    raise NotImplementedError\n"])
def test_forbidden_patterns_are_found(text: str) -> None:
    assert any(re.search(pattern, text, re.MULTILINE) for pattern in FORBIDDEN.values())


@cache
def attributes_read() -> set[str]:
    """Return the attributes that code reads, outside of the schema and the tests."""
    return {node.attr for path in [*sources(*PACKAGES), ROOT / "rowtwin.py"]
            if path.name != "schema.py" and "test_" not in path.name
            for node in ast.walk(tree(path))
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}


@pytest.mark.parametrize("record", [Contract, Parity, Budget, Falsifier])
def test_every_field_of_a_contract_is_read(record: type[Contract]) -> None:
    assert set(record.model_fields) - {"cases"} - attributes_read() == set()


def keys_read(folder: Path) -> set[str]:
    """Return the string keys that a package or rowtwin.py reads by subscript or `get`."""
    keys: set[str] = set()
    for path in [*folder.glob("*.py"), ROOT / "rowtwin.py"]:
        for node in ast.walk(tree(path)):
            found = node.slice if isinstance(node, ast.Subscript) else \
                node.args[0] if isinstance(node, ast.Call) and node.args \
                and getattr(node.func, "attr", "") == "get" else None
            if isinstance(found, ast.Constant) and isinstance(found.value, str):
                keys.add(found.value)
    return keys


@pytest.mark.parametrize("phase", load_contracts(ROOT / "contracts"))
def test_every_parameter_of_a_contract_is_read(phase: str) -> None:
    contract = load_contracts(ROOT / "contracts")[phase]
    parameters = {key for row in contract.cases for key in row.given}
    assert parameters - keys_read(ROOT / contract.package.replace(".", "/")) == set()


@pytest.mark.parametrize("phase", load_contracts(ROOT / "contracts"))
def test_contract_and_tests_name_the_same_falsifiers(phase: str) -> None:
    contract = load_contracts(ROOT / "contracts")[phase]
    path = ROOT / contract.package.replace(".", "/") / "test_falsifier.py"
    tests = {node.name.removeprefix("test_") for node in tree(path).body
             if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}
    assert tests == {falsifier.id for falsifier in contract.falsifiers}
