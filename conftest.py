"""Wiring for pytest: loads the plugin and gives tests what the repository assembles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import rowtwin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from contracts.schema import Case
    from falsifiers.subject import Subject

pytest_plugins = ["falsifiers.plugin", "pytester"]


@pytest.fixture
def subject(case: Case, request: pytest.FixtureRequest) -> Iterator[Subject]:
    """Yield what the case judges: its own phase's part of the tree, or the candidate."""
    subject = rowtwin.subject_for(case, request.config.getoption("--candidate"))
    with subject.around():
        yield subject


@pytest.fixture(scope="session")
def path() -> Any:
    """Return the newest decode path."""
    return rowtwin.assemble(path="newest", stack=None).path


@pytest.fixture(scope="session")
def looped() -> Any:
    """Return P1's path, which runs the rows of a step one after another."""
    return rowtwin.assemble(path="p1", stack=None).path


@pytest.fixture(scope="session")
def stack() -> Any:
    """Return the newest serving stack."""
    return rowtwin.assemble(path=None, stack="newest").stack


@pytest.fixture
def emulated() -> Iterator[None]:
    """Run a test where kernels for a device take tensors of the CPU."""
    from engine.emulate import run
    with run.emulated():
        yield
