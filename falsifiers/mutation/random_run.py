"""Running one mutant after another against tests that pytest has collected once.

Each is tried in a forked child, where everything is imported already: the child plants the change,
runs the tests until one fails, and goes away with whatever the change did. A test that takes much
more than it does without a mutant has failed too. Whichever runs first loads what all share, so
that each is allowed the time of the slowest beside its own.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import resource
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from falsifiers.judging.errors import SuiteError
from falsifiers.mutation.operators import Change
from falsifiers.mutation.planting import plant

MOST_MEMORY = 2 << 30
"""Bytes that a child may take more than its parent has."""


@dataclass(frozen=True)
class Fate:
    """What became of one mutant."""

    change: Change
    by: str
    """The test that failed; empty when none did."""
    how: str
    """`failed`, `time` or `crash`; `survived`; or `not planted` with the reason in `by`."""
    seconds: float

    @property
    def dead(self) -> bool:
        """Whether a test noticed it."""
        return self.how in ("failed", "time", "crash")


@dataclass
class Trial:
    """A pytest plugin: in place of running the tests once, runs them on each mutant."""

    root: Path
    changes: Sequence[Change]
    on_fate: Callable[[Fate], None] = lambda fate: None
    fates: list[Fate] = field(default_factory=list)
    trouble: str = ""
    _took: dict[str, float] = field(default_factory=dict)
    _failed: bool = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Let Hypothesis draw as it does elsewhere, and not make what it found shorter."""
        from hypothesis import Phase, settings
        settings.register_profile("mutants", settings.get_profile("gate"),
                                  phases=[Phase.explicit, Phase.generate])
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests without a mutant, then with each."""
        if session.testsfailed or not session.items:
            self.trouble = f"{session.testsfailed} of the test files could not be collected" \
                if session.testsfailed else "there are no tests"
            return True
        for module in dict.fromkeys(change.module for change in self.changes):
            importlib.import_module(module)  # what a test would load late has nothing to change
        first = self._forked(None, session.items)
        if first.by or first.how != "survived":
            self.trouble = f"without any mutant the tests do not pass: {first.how} {first.by}"
            return True
        kills: Counter[str] = Counter()
        for change in self.changes:
            order = sorted(session.items, key=lambda item: (-kills[item.nodeid],
                                                            self._took[item.nodeid]))
            fate = self._forked(change, order)
            kills[fate.by] += fate.dead
            self.fates.append(fate)
            self.on_fate(fate)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note that a test failed."""
        self._failed = self._failed or report.failed

    def _forked(self, change: Change | None, items: Sequence[pytest.Item]) -> Fate:
        """Run the tests in a child, and return how that ended."""
        started, (read, write) = time.perf_counter(), os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of threads, none of which the child needs
            child = os.fork()
        if not child:
            os.close(read)
            self._child(change, items, write)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            told = [json.loads(line) for line in pipe.read().splitlines()]
        _, status = os.waitpid(child, 0)
        took = time.perf_counter() - started
        if change is None:
            self._took = dict(told)
            how = "survived" if os.waitstatus_to_exitcode(status) == 0 else "failed"
            return Fate(Change("", "", "", "", 0, (), pytest), "", how, took)  # type: ignore[arg-type]
        return _fate(change, told[-1] if told else "", os.waitstatus_to_exitcode(status), took)

    def _child(self, change: Change | None, items: Sequence[pytest.Item], write: int) -> None:
        """Run the tests until one fails; tell each before it runs, or how long each took."""
        code = 3
        try:
            for sink in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sink)
            _limit_memory()
            code = self._run(change, items, write)
        finally:
            os._exit(code)

    def _run(self, change: Change | None, items: Sequence[pytest.Item], write: int) -> int:
        if change is not None:
            try:
                plant(change, self.root)
            except Exception as error:  # what cannot be planted was noticed by no test
                told = str(error) if isinstance(error, SuiteError) else f"{change.id}: {error!r}"
                os.write(write, json.dumps(told).encode() + b"\n")
                return 2
        for item, following in zip(items, [*items[1:], None], strict=True):
            if change is not None:
                os.write(write, json.dumps(item.nodeid).encode() + b"\n")
            work = allowed(self._took, item.nodeid)
            signal.setitimer(signal.ITIMER_VIRTUAL, work)
            signal.setitimer(signal.ITIMER_REAL, 20.0 + 5 * work)
            began = time.process_time()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                return 1
            if change is None:
                took = time.process_time() - began
                os.write(write, json.dumps([item.nodeid, took]).encode() + b"\n")
        return 0


def allowed(took: Mapping[str, float], name: str) -> float:
    """Return the seconds of work that a test may take, by what each took without a mutant."""
    return 1.0 + 4 * (took.get(name, 20.0) + max(took.values(), default=0.0))


def _fate(change: Change, last: str, code: int, took: float) -> Fate:
    """Return what a child's end says of its mutant."""
    if code == 0:
        return Fate(change, "", "survived", took)
    if code == 2:
        return Fate(change, last, "not planted", took)
    clocks = (-signal.SIGVTALRM, -signal.SIGALRM)
    return Fate(change, last, "failed" if code == 1 else "time" if code in clocks else "crash",
                took)


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def tried(changes: Sequence[Change], tests: Sequence[str], root: Path,
          on_fate: Callable[[Fate], None] = lambda fate: None) -> list[Fate]:
    """Try each mutant against the tests; raise `SuiteError` when those do not pass without one."""
    trial = Trial(root, changes, on_fate)
    with _in(root), contextlib.redirect_stdout(io.StringIO()) as said:
        pytest.main([*tests, "-q", "-s", "-p", "no:cacheprovider", "--device", "cpu",
                     f"--rootdir={root}"], plugins=[trial])
    if trial.trouble:
        raise SuiteError(f"{trial.trouble} ({' '.join(tests)})"
                         + (f"\n{said.getvalue()[-2000:]}" if "collected" in trial.trouble else ""))
    return trial.fates


@contextlib.contextmanager
def _in(root: Path) -> Iterator[None]:
    """Work in a folder."""
    before = Path.cwd()
    os.chdir(root)
    try:
        yield
    finally:
        os.chdir(before)
