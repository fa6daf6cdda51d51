"""The pytest plugin: selects cases from contracts, records a verdict for each, proves or refuses.

Loaded once, by `pytest_plugins` in conftest.py. Torch and triton are imported only inside hooks
that run after the tier is fixed, and inside tests.
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
from falsifiers.judging import outcome
from falsifiers.judging.errors import Declined, SuiteError, Unmeasurable

CANDIDATE, DEVICE, THOROUGH, VERDICTS = "--candidate", "--device", "--thorough", "--verdicts"
CASES = "--cases"
MARKERS = ("engine", *(f"phase{n}" for n in range(9)))
FALSIFIER_FILE = "test_falsifier.py"

_tiers = pytest.StashKey[TierSelection]()
_contracts = pytest.StashKey[dict[Path, Contract]]()
_given = pytest.StashKey[tuple[Case, ...] | None]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the suite's options, in one group."""
    group = parser.getgroup("rowtwin", "batch-parity gate")
    group.addoption(CANDIDATE, metavar="SPEC", default=None,
                    help="judge file:/abs/path.py, module:pkg.attr, cmd:PROGRAM or vectors:DIR "
                         "instead of the in-tree kernels (default: in-tree)")
    group.addoption(DEVICE, metavar="TIER", default="auto", choices=tiers.DEVICES,
                    help=f"run one tier of {', '.join(tiers.DEVICES[1:])}, or what is here "
                         f"(default: auto)")
    group.addoption(THOROUGH, action="store_true", default=False,
                    help="run every case of the contracts (default: the quick ones)")
    group.addoption(CASES, metavar="FILE", default=None, type=Path,
                    help="judge the cases of this JSON file in place of the contracts' own "
                         "(default: the contracts')")
    group.addoption(VERDICTS, metavar="FILE", default=None, type=Path,
                    help="write one JSON line a case (default: none)")


def pytest_configure(config: pytest.Config) -> None:
    """Register markers, fix Triton's mode before anything imports it, load the contracts."""
    for marker in MARKERS:
        config.addinivalue_line("markers", f"{marker}: tests of {marker}, set from their folder")
    for line in ("tier(name): a test beside the cases that runs in one tier",
                 "emulated: a test of CUDA C++ on the CPU; left out, and told, where it cannot be",
                 "long: a test that --thorough alone runs; left out, and told, without it"):
        config.addinivalue_line("markers", line)
    try:
        chosen = tiers.select_tiers(config.getoption(DEVICE))
        tiers.fix_triton_mode(chosen)
        contracts = load_contracts(config.rootpath / "contracts")
        if config.getoption(CANDIDATE) is not None:  # empty where a shell's variable is not set
            candidates.check_spec(config.getoption(CANDIDATE))
        given = config.getoption(CASES)
        config.stash[_given] = read_cases(given) if given else None
    except (ContractError, SuiteError) as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[_tiers] = chosen
    config.stash[_contracts] = {config.rootpath / c.package.replace(".", "/"): c
                                for c in contracts.values()}
    _load_hypothesis_profile()
    if not hasattr(config, "workerinput"):  # a worker sends its verdicts to the controller
        config.pluginmanager.register(
            VerdictReporter(config, contracts, chosen, config.getoption(VERDICTS)), "rowtwin-ledger"
        )


def _load_hypothesis_profile() -> None:
    from hypothesis import HealthCheck, settings
    # how fast a machine draws must not decide a verdict
    settings.register_profile("gate", derandomize=True, deadline=None, database=None,
                              suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("gate")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Return a line with the tiers that run and the versions that matter, and one a kind left out.

    It is told here, since under xdist only workers know how many tests that are.
    """
    away = [
        f"tests marked {name} are left out: {why}"
        for name, why in deselected_markers(config).items()
    ]
    return [f"rowtwin: {line}" for line in (tiers.describe_tiers(config.stash[_tiers]), *away)]


def deselected_markers(config: pytest.Config) -> dict[str, str]:
    """Return the marks of tests beside the cases that do not run here, each with the reason."""
    missing = {"emulated": tiers.emulate_missing(),
               "long": None if config.getoption(THOROUGH) else f"{THOROUGH} runs them"}
    return {name: why for name, why in missing.items() if why}


class FalsifierFile(pytest.Module):
    """A test_falsifier.py: its functions and its contract's falsifiers are the same set."""

    def contract(self) -> Contract:
        """Return the contract whose package this file lies in."""
        found = self.config.stash[_contracts].get(self.path.parent)
        if found is None:
            raise self.CollectError(f"{self.path}: no contract names the package it lies in")
        return found

    def collect(self) -> list[Any]:
        """Collect the cases; refuse a file whose functions are not its contract's falsifiers."""
        contract = self.contract()
        has = {name.removeprefix("test_") for name in vars(self.obj) if name.startswith("test_")}
        named = {falsifier.id for falsifier in contract.falsifiers}
        for lone, sentence in ((sorted(named - has), "is in the contract but has no test"),
                               (sorted(has - named), "has a test but is not in the contract")):
            if lone:
                raise self.CollectError(f"{self.path}: falsifier {lone[0]!r} {sentence}")
        return [item for item in super().collect() if item_case(item) is not None]


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> Any:
    """Collect falsifier files by their contracts; leave every other file to pytest."""
    if module_path.name == FALSIFIER_FILE:
        return FalsifierFile.from_parent(parent, path=module_path)
    return None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize `case` with the falsifier's cases of the tiers that run here."""
    module = metafunc.definition.getparent(FalsifierFile)
    if module is None or "case" not in metafunc.fixturenames:
        return
    name = metafunc.function.__name__.removeprefix("test_")
    contract, config = module.contract(), metafunc.config
    wanted = select_cases(contract, config.stash[_tiers], config.getoption(THOROUGH),
                    config.stash[_given])
    cases = [case for case in wanted if case.falsifier == name]
    metafunc.parametrize("case", cases, ids=[f"{case.tier}-{case.name}" for case in cases])


def select_cases(contract: Contract, chosen: TierSelection, thorough: bool,
           given: Sequence[Case] | None = None) -> Iterator[Case]:
    """Yield the contract's cases, or its phase's of those given, that these tiers run."""
    here = chosen.of(contract)
    for case in contract.expand() if given is None else given:
        if case.phase == contract.phase and case.tier in here and (thorough or case.quick):
            yield case


def read_cases(path: Path) -> tuple[Case, ...]:
    """Read a file of cases; raise `SuiteError` naming it when it is none."""
    try:
        return TypeAdapter(tuple[Case, ...]).validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SuiteError(f"{path}: is not a list of cases: {str(error).splitlines()[0]}") from None


def folder_marker(path: Path, root: Path) -> str | None:
    """Return the marker that a test file's folder stands for, or None."""
    parts = path.relative_to(root).parts if path.is_relative_to(root) else ()
    if parts[:1] == ("engine",):
        return "engine"
    phase = re.match(r"p(\d)_", parts[1]) if parts[:1] == ("phases",) and len(parts) > 2 else None
    return f"phase{phase[1]}" if phase else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test by its folder, before -m selects, and leave out those of other tiers."""
    for item in items:
        marker = folder_marker(item.path, config.rootpath)
        if marker:
            item.add_marker(marker)
    marks = deselected_markers(config)
    away = [item for item in items if _is_other_tier(item, config.stash[_tiers])
            or any(item.get_closest_marker(mark) for mark in marks)]
    if away:
        config.hook.pytest_deselected(items=away)
        items[:] = [item for item in items if item not in away]


def _is_other_tier(item: pytest.Item, chosen: TierSelection) -> bool:
    marker = item.get_closest_marker("tier")
    return marker is not None and marker.args[0] not in chosen.run


def pytest_collection_finish(session: pytest.Session) -> None:
    """Give the process one torch thread, wherever torch may take part."""
    tiers.limit_torch_threads()


@pytest.fixture
def judge(case: Case) -> Any:
    """Return the case's own judge."""
    from falsifiers.judging.judge import Judge
    return Judge(case)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a case whose tier cannot be had, before anything is built for it."""
    case = item_case(item)
    if case is None:
        return
    why = item.config.stash[_tiers].absent.get(case.tier)
    if why is None and case.tier == "cuda":
        import torch
        why = None if torch.cuda.is_available() else "torch finds no usable CUDA device"
    if why is not None:
        raise Unmeasurable(f"the {case.tier} tier was asked for, but {why}")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Let a candidate decline a case before its falsifier runs."""
    case = item_case(pyfuncitem)
    candidate = getattr(pyfuncitem.funcargs.get("subject"), "candidate", None)
    if case is not None and isinstance(candidate, candidates.Candidate):
        candidate.refuse(case)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
        item: pytest.Item, call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the verdict to the report that ends a case, and say it in the suite's words."""
    report = yield
    case = item_case(item)
    if case is None or not (call.when == "call" or (call.when == "setup" and call.excinfo)):
        return report
    module = item.getparent(FalsifierFile)
    assert module is not None
    contract, named = module.contract(), item.config.getoption(CANDIDATE)
    given = getattr(item, "funcargs", {})
    subject = given.get("subject")
    if getattr(subject, "candidate", named) is None:
        named = None  # it has no part in this phase
    verdict = outcome.make_verdict(
        case, call.excinfo.value if call.excinfo else None, given.get("judge"),
        subject=named or "in-tree", seconds=call.duration,
        faults=getattr(subject, "faults", ()),
        repro=outcome.repro_command(case, contract.package, named, item.config.getoption(DEVICE)))
    report.verdict = verdict.model_dump_json()  # type: ignore[attr-defined]
    _set_report_outcome(report, verdict.outcome, outcome.explain_failure(verdict, contract), call)
    return report


def _set_report_outcome(
    report: pytest.TestReport, outcome: str, text: str, call: pytest.CallInfo[None]
) -> None:
    """Give a report the outcome its verdict has, and the text a reader needs."""
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
    """Return the case that an item judges, or None for a test of another kind."""
    callspec = getattr(item, "callspec", None)
    case = callspec.params.get("case") if callspec is not None else None
    return case if isinstance(case, Case) else None
