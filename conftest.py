"""Loads the pytest plugin and defines the fixtures of the repository."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import rowtwin

rowtwin.register_candidate_kinds()

if TYPE_CHECKING:
    from collections.abc import Iterator

    from contracts.schema import Case
    from falsifiers.judging.subject import Subject

refusal_key = pytest.StashKey[str]()
"""Why a worker's candidate cannot be judged in the selected phases."""
pytest_plugins = ["falsifiers.gate.pytest_plugin", "pytester"]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Raise `UsageError` before any case runs if the candidate cannot be judged in the phases."""
    named = session.config.getoption("--candidate")
    if named is None:
        return
    from falsifiers.gate.candidates import check_phases
    from falsifiers.gate.pytest_plugin import item_case
    from falsifiers.judging.errors import SuiteError
    from phases.vector_sets import require_programs
    phases = sorted({case.phase for item in session.items if (case := item_case(item)) is not None})
    try:
        if phases:
            check_phases(named, phases)
        if named.startswith("cmd:"):
            require_programs(named, phases)
    except SuiteError as error:
        if not hasattr(session.config, "workerinput"):
            raise pytest.UsageError(str(error)) from None
        session.config.stash[refusal_key] = str(error)  # exiting a worker is a crash


@pytest.fixture
def subject(case: Case, request: pytest.FixtureRequest) -> Iterator[Subject]:
    """Yield the subject of the case: its phase's increment, or the candidate."""
    if reason := request.config.stash.get(refusal_key, ""):
        from falsifiers.judging.errors import SuiteError
        raise SuiteError(reason)
    subject = rowtwin.subject_for(case, request.config.getoption("--candidate"))
    with subject.around():
        yield subject


@pytest.fixture(scope="session")
def path() -> Any:
    """Return the newest decode path."""
    return rowtwin.assemble(path="newest", stack=None).path


@pytest.fixture(scope="session")
def looped_path() -> Any:
    """Return P1's path, which runs the rows of a step one after another."""
    return rowtwin.assemble(path="p1", stack=None).path


@pytest.fixture(scope="session")
def stack() -> Any:
    """Return the newest serving stack."""
    return rowtwin.assemble(path=None, stack="newest").stack


@pytest.fixture
def emulated() -> Iterator[None]:
    """Run a test in the emulator, where CUDA kernels accept CPU tensors."""
    from engine.emulate import emulator
    with emulator.emulated():
        yield
