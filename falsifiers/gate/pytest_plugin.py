"""The pytest plugin: selects cases from contracts and records a verdict for each.

`pytest_plugins` in conftest.py loads it. Hooks and tests import torch and triton only after the
tier is selected.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from contracts.load import ContractError, load_contracts
from contracts.schema import Case, Contract
from falsifiers.gate import candidates, tiers
from falsifiers.gate.tiers import TierSelection
from falsifiers.gate.verdict_reporter import VerdictReporter
from falsifiers.judging.errors import Declined, SuiteError, Unmeasurable
from falsifiers.judging.verdict import explain_failure, make_verdict, repro_command

CANDIDATE, DEVICE, THOROUGH, VERDICTS = "--candidate", "--device", "--thorough", "--verdicts"
CASES = "--cases"
MARKERS = ("engine", *(f"phase{n}" for n in range(9)))
FALSIFIER_FILE = "test_falsifier.py"

_tiers = pytest.StashKey[TierSelection]()
_contracts = pytest.StashKey[dict[Path, Contract]]()
_cases = pytest.StashKey[tuple[Case, ...] | None]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the suite's options, in one group."""
    group = parser.getgroup("rowtwin", "batch-parity gate")
    group.addoption(CANDIDATE, metavar="SPEC", default=None,
                    help="judge file:/abs/path.py, module:pkg.attr, cmd:PROGRAM or vectors:DIR "
                         "(default: the kernels of this repository)")
    group.addoption(DEVICE, metavar="TIER", default="auto", choices=tiers.DEVICES,
                    help=f"run one tier of {', '.join(tiers.DEVICES[1:])}, or all that are "
                         f"available (default: auto)")
    group.addoption(THOROUGH, action="store_true", default=False,
                    help="run every case of the contracts (default: only the quick ones)")
    group.addoption(CASES, metavar="FILE", default=None, type=Path,
                    help="judge the cases of this JSON file (default: the contracts' cases)")
    group.addoption(VERDICTS, metavar="FILE", default=None, type=Path,
                    help="write a JSON line for each case (default: no file)")


def pytest_configure(config: pytest.Config) -> None:
    """Register markers, set Triton's mode before it is imported, and load the contracts."""
    for marker in MARKERS:
        config.addinivalue_line("markers", f"{marker}: tests of {marker}, set from their folder")
    for line in ("tier(name): a test, other than a case, that runs in one tier",
                 "emulated: a test of CUDA C++ on the CPU; deselected without a compiler",
                 "long: a test that needs --thorough; deselected without it"):
        config.addinivalue_line("markers", line)
    try:
        chosen = tiers.select_tiers(config.getoption(DEVICE))
        tiers.fix_triton_mode(chosen)
        contracts = load_contracts(config.rootpath / "contracts")
        # an empty spec is checked too: the user's shell variable may be unset
        if config.getoption(CANDIDATE) is not None and not hasattr(config, "workerinput"):
            candidates.check_spec(config.getoption(CANDIDATE))
        path = config.getoption(CASES)
        config.stash[_cases] = read_cases(path) if path else None
    except (ContractError, SuiteError) as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[_tiers] = chosen
    config.stash[_contracts] = {config.rootpath / c.package.replace(".", "/"): c
                                for c in contracts.values()}
    _load_hypothesis_profile()
    if not hasattr(config, "workerinput"):  # workers send verdicts to the controller
        reporter = VerdictReporter(config, contracts, chosen, config.getoption(VERDICTS))
        config.pluginmanager.register(reporter, "rowtwin-verdicts")


def _load_hypothesis_profile() -> None:
    from hypothesis import HealthCheck, settings
    # a verdict must not depend on the machine's speed
    settings.register_profile("gate", derandomize=True, deadline=None, database=None,
                              suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("gate")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Return a line with tiers and versions, and one for each marker that is deselected.

    With xdist only workers know the number of these tests, so the header has no count.
    """
    deselected = [f"tests marked {name} are deselected: {why}"
                  for name, why in deselected_markers(config).items()]
    return [f"rowtwin: {line}"
            for line in (tiers.describe_tiers(config.stash[_tiers]), *deselected)]


def deselected_markers(config: pytest.Config) -> dict[str, str]:
    """Return the markers whose tests do not run here, each with the reason."""
    missing = {"emulated": tiers.emulate_missing(),
               "long": None if config.getoption(THOROUGH) else f"use {THOROUGH}"}
    return {name: why for name, why in missing.items() if why}


class FalsifierFile(pytest.Module):
    """A test_falsifier.py, whose tests must be exactly its contract's falsifiers."""

    def contract(self) -> Contract:
        """Return the contract of this file's package."""
        found = self.config.stash[_contracts].get(self.path.parent)
        if found is None:
            raise self.CollectError(f"{self.path}: no file in contracts/ names this package")
        return found

    def collect(self) -> list[Any]:
        """Collect the cases; raise `CollectError` if tests and falsifiers differ."""
        contract = self.contract()
        tests = {name.removeprefix("test_") for name in vars(self.obj) if name.startswith("test_")}
        ids = {falsifier.id for falsifier in contract.falsifiers}
        for extra, sentence in ((sorted(ids - tests), "is in the contract but has no test"),
                                (sorted(tests - ids), "has a test but is not in the contract")):
            if extra:
                raise self.CollectError(f"{self.path}: falsifier {extra[0]!r} {sentence}")
        return [item for item in super().collect() if item_case(item) is not None]


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> Any:
    """Collect test_falsifier.py files by their contracts; pytest collects other files."""
    if module_path.name == FALSIFIER_FILE:
        return FalsifierFile.from_parent(parent, path=module_path)
    return None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize `case` with the falsifier's cases for the tiers that run here."""
    module = metafunc.definition.getparent(FalsifierFile)
    if module is None or "case" not in metafunc.fixturenames:
        return
    name = metafunc.function.__name__.removeprefix("test_")
    contract, config = module.contract(), metafunc.config
    selected = select_cases(contract, config.stash[_tiers], config.getoption(THOROUGH),
                            config.stash[_cases])
    cases = [case for case in selected if case.falsifier == name]
    metafunc.parametrize("case", cases, ids=[f"{case.tier}-{case.name}" for case in cases])


def select_cases(contract: Contract, chosen: TierSelection, thorough: bool,
                 cases: Sequence[Case] | None = None) -> Iterator[Case]:
    """Yield the cases of the contract's phase that these tiers run, from `cases` if not None."""
    here = chosen.tiers_for(contract)
    for case in contract.expand() if cases is None else cases:
        if case.phase == contract.phase and case.tier in here and (thorough or case.quick):
            yield case


def read_cases(path: Path) -> tuple[Case, ...]:
    """Read a JSON file of cases; raise `SuiteError` if it is invalid."""
    try:
        return TypeAdapter(tuple[Case, ...]).validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SuiteError(f"{path}: is not a list of cases: {str(error).splitlines()[0]}") from None


def folder_marker(path: Path, root: Path) -> str | None:
    """Return the marker of a test file's folder, or None."""
    parts = path.relative_to(root).parts if path.is_relative_to(root) else ()
    if parts[:1] == ("engine",):
        return "engine"
    phase = re.match(r"p(\d)_", parts[1]) if parts[:1] == ("phases",) and len(parts) > 2 else None
    return f"phase{phase[1]}" if phase else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test by its folder before -m selects, and deselect tests of other tiers."""
    for item in items:
        marker = folder_marker(item.path, config.rootpath)
        if marker:
            item.add_marker(marker)
    markers = deselected_markers(config)
    deselected = [item for item in items if _is_other_tier(item, config.stash[_tiers])
                  or any(item.get_closest_marker(marker) for marker in markers)]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item not in deselected]


def _is_other_tier(item: pytest.Item, chosen: TierSelection) -> bool:
    marker = item.get_closest_marker("tier")
    return marker is not None and marker.args[0] not in chosen.run


def pytest_collection_finish(session: pytest.Session) -> None:
    """Limit this process to one torch thread."""
    tiers.limit_torch_threads()


@pytest.fixture
def judge(case: Case) -> Any:
    """Return the judge of the case."""
    from falsifiers.judging.judge import Judge
    return Judge(case)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Raise `Unmeasurable` for a case whose tier is not available, before its fixtures run."""
    case = item_case(item)
    if case is None:
        return
    why = item.config.stash[_tiers].absent.get(case.tier)
    if why is None and case.tier == "cuda":
        import torch
        why = None if torch.cuda.is_available() else "torch finds no usable CUDA device"
    if why is not None:
        raise Unmeasurable(f"the {case.tier} tier was requested, but {why}")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Let a candidate decline a case before the falsifier runs."""
    case = item_case(pyfuncitem)
    candidate = getattr(pyfuncitem.funcargs.get("subject"), "candidate", None)
    if case is not None and isinstance(candidate, candidates.Candidate):
        candidate.refuse(case)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
        item: pytest.Item, call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the verdict to the report that ends a case, and set the report's text."""
    report = yield
    case = item_case(item)
    if case is None or not (call.when == "call" or (call.when == "setup" and call.excinfo)):
        return report
    module = item.getparent(FalsifierFile)
    assert module is not None
    contract, spec = module.contract(), item.config.getoption(CANDIDATE)
    fixtures = getattr(item, "funcargs", {})
    subject = fixtures.get("subject")
    if getattr(subject, "candidate", spec) is None:
        spec = None  # this phase judges no candidate
    verdict = make_verdict(
        case, call.excinfo.value if call.excinfo else None, fixtures.get("judge"),
        subject=spec or "in-tree", seconds=call.duration,
        faults=getattr(subject, "faults", ()),
        repro=repro_command(case, contract.package, spec, item.config.getoption(DEVICE)))
    report.verdict = verdict.model_dump_json()  # type: ignore[attr-defined]
    _set_report_outcome(report, verdict.outcome, explain_failure(verdict, contract), call)
    return report


def _set_report_outcome(report: pytest.TestReport, outcome: str, text: str,
                        call: pytest.CallInfo[None]) -> None:
    """Set a report's outcome to the verdict's, and its text to the explanation."""
    expected = call.excinfo is not None and isinstance(call.excinfo.value,
                                                       (Declined, Unmeasurable))
    if expected:
        report.outcome = "skipped"
        path, line, _ = report.location
        report.longrepr = (path, line or 0, text.splitlines()[0])
    elif outcome == "failed":
        report.outcome, report.longrepr = "failed", text
    elif outcome == "error":
        trace = f"{report.longreprtext}\n\n" if report.outcome == "failed" else ""
        report.outcome, report.longrepr = "failed", trace + text


def item_case(item: object) -> Case | None:
    """Return the case of an item, or None for another test."""
    callspec = getattr(item, "callspec", None)
    case = callspec.params.get("case") if callspec is not None else None
    return case if isinstance(case, Case) else None
