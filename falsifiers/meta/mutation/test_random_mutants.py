"""Random mutants: what is changed, how it is planted, what is told of those that live."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

import rowtwin
from falsifiers.judging.errors import SuiteError
from falsifiers.mutation import random_mutants
from falsifiers.mutation.operators import Change, changes
from falsifiers.mutation.planting import plant
from falsifiers.mutation.random_mutants import PARTS, Score, draw, lines, triage
from falsifiers.mutation.random_run import Fate, allowed

TOY = """\
\"\"\"A toy.\"\"\"

from functools import cache

LIMIT = 3
FIRST = 1
NAME = "toy"
Either = int | list[int]
Many = dict[str, int | str]


@cache
def least(a: int = FIRST) -> int:
    \"\"\"Return the least, 7.\"\"\"
    assert a != 9
    return a if a < LIMIT and not a == 2 else 0


class Box:
    size: int = 4

    @property
    def full(self) -> bool:
        return self.held >= 2

    def put(self, n):
        self.held = n + 1
        if n % 2:
            raise ValueError(f"{n + 1} is odd")
        for i, _ in zip([i for i in range(n) if i], range(n), strict=False):
            self.held += i
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Return the toy, imported from a tree of its own."""
    (tmp_path / "toy_of_mutants.py").write_text(TOY)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("toy_of_mutants")
    del sys.modules["toy_of_mutants"]


def made(tmp_path: Path) -> dict[str, Change]:
    (tmp_path / "toy_of_mutants.py").write_text(TOY)
    return {change.id.removeprefix("toy_of_mutants.py "): change
            for change in changes("toy_of_mutants.py", tmp_path)}


def test_changes_are_small_and_each_has_a_name_of_its_own(tmp_path: Path) -> None:
    assert list(made(tmp_path)) == [
        "LIMIT: LIMIT = 3 -> LIMIT = 4", "FIRST: FIRST = 1 -> FIRST = 2",
        "least: return a if a < LIMIT and (not a == 2) else 0 -> return None",
        "least: if a < LIMIT and (not a == 2) -> if not (a < LIMIT and (not a == 2))",
        "least: a < LIMIT and (not a == 2) -> a < LIMIT or not a == 2",
        "least: a < LIMIT -> a <= LIMIT", "least: a < LIMIT -> a >= LIMIT",
        "least: not a == 2 -> a == 2", "least: a == 2 -> a != 2", "least: a == 2 -> a == 3",
        "least: a if a < LIMIT and (not a == 2) else 0 -> a if a < LIMIT and (not a == 2) else 1",
        "Box.full: return self.held >= 2 -> return None",
        "Box.full: self.held >= 2 -> self.held > 2", "Box.full: self.held >= 2 -> self.held < 2",
        "Box.full: self.held >= 2 -> self.held >= 3",
        "Box.put: self.held = n + 1 -> pass", "Box.put: n + 1 -> n - 1", "Box.put: n + 1 -> n + 2",
        "Box.put: if n % 2 -> if not n % 2", "Box.put: n % 2 -> n // 2", "Box.put: n % 2 -> n % 3",
        "Box.put: raise ValueError('...') -> pass",
        "Box.put: if i -> if not i",
        "Box.put: self.held += i -> self.held -= i", "Box.put: self.held += i -> pass"]


def test_change_reaches_everyone_who_holds_the_function(toy: ModuleType, tmp_path: Path) -> None:
    found, held, box = made(tmp_path), toy.least, toy.Box()
    plant(found["least: a == 2 -> a == 3"], tmp_path)
    assert [held(a) for a in (0, 1, 2)] == [0, 1, 2]
    box.put(0)
    plant(found["Box.full: self.held >= 2 -> self.held < 2"], tmp_path)
    assert box.full


def test_change_of_a_value_reaches_those_who_imported_it(toy: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "toy_of_another.py").write_text("from toy_of_mutants import LIMIT\n")
    other = importlib.import_module("toy_of_another")
    plant(made(tmp_path)["LIMIT: LIMIT = 3 -> LIMIT = 4"], tmp_path)
    assert (toy.LIMIT, other.LIMIT, toy.least(3)) == (4, 4, 3)


def test_change_of_what_is_not_loaded_is_refused(tmp_path: Path) -> None:
    for name in ("least: a == 2 -> a == 3", "LIMIT: LIMIT = 3 -> LIMIT = 4"):
        with pytest.raises(SuiteError, match="loaded"):
            plant(made(tmp_path)[name], tmp_path)


def test_change_of_a_value_that_is_a_default_is_refused(toy: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match="was read when the module was loaded"):
        plant(made(tmp_path)["FIRST: FIRST = 1 -> FIRST = 2"], tmp_path)
    assert toy.FIRST == 1


LOOP = """\
def up(n):
    i = 0
    while i < n:
        i += 1
    return i if n else -1
"""
TRY = """\
import json, sys
from pathlib import Path
from falsifiers.mutation.operators import changes
from falsifiers.mutation.random_run import tried
root = Path(sys.argv[1])
fates = tried(changes("loop.py", root), ["test_loop.py"], root)
print(json.dumps({fate.change.id: fate.how for fate in fates}))
"""


def ran(*words: str, cwd: Path = rowtwin.ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=cwd, capture_output=True, text=True,
                          check=False)


def toy_tree(folder: Path, test: str) -> None:
    (folder / "loop.py").write_text(LOOP)
    (folder / "conftest.py").write_text(
        "from hypothesis import settings\nsettings.register_profile('gate', derandomize=True)\n\n"
        "def pytest_addoption(parser):\n    parser.addoption('--device')\n")
    (folder / "test_loop.py").write_text(  # it imports as late as most tests of a phase do
        f"def test_up():\n    from loop import up\n    {test}\n")


def test_fate_of_each_mutant_is_told(tmp_path: Path) -> None:
    toy_tree(tmp_path, "assert up(3) == 3")
    done = ran("-c", TRY, str(tmp_path))
    assert json.loads(done.stdout) == {
        "loop.py up: i = 0 -> i = 1": "survived",
        "loop.py up: i < n -> i <= n": "failed", "loop.py up: i < n -> i >= n": "failed",
        "loop.py up: i += 1 -> i -= 1": "time", "loop.py up: i += 1 -> i += 2": "failed",
        "loop.py up: i += 1 -> pass": "time", "loop.py up: return i if n else -1 -> return None":
        "failed", "loop.py up: if n -> if not n": "failed", "loop.py up: -1 -> -2": "survived"}


def test_whichever_runs_first_may_load_what_all_share() -> None:
    took = {"loads": 9.0, "uses": 0.1}
    assert all(allowed(took, name) > 9.0 + took[name] for name in took)


def test_tests_that_fail_by_themselves_kill_nothing(tmp_path: Path) -> None:
    toy_tree(tmp_path, "assert up(3) == 4")
    assert "without any mutant the tests do not pass" in ran("-c", TRY, str(tmp_path)).stderr


def test_sample_of_the_tree_dies() -> None:
    done = ran("rowtwin.py", "mutants", "--random", "--part", "gate", "--count", "6",
               "--seed", "7")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 of 6 died" in done.stdout


def test_draw_follows_its_seed_alone() -> None:
    part = PARTS["gate"]
    one, same, other, every = ([change.id for change in draw(part, count, seed)]
                               for count, seed in ((5, 1), (5, 1), (5, 2), (0, 1)))
    assert one == same != other
    assert every == [change.id for change in part.changes()]


@pytest.mark.parametrize("name", PARTS)
def test_parts_are_files_there_are_and_ids_are_unique(name: str) -> None:
    part = PARTS[name]
    assert all((rowtwin.ROOT / name.partition("::")[0]).is_file()
               for name in (*part.files, *part.tests))
    ids = [change.id for change in part.changes()]
    assert len(set(ids)) == len(ids) > 5


def test_triage_is_of_mutants_and_tests_that_exist() -> None:
    ids = {change.id for part in PARTS.values() for change in part.changes()}
    tests = {test.partition("::")[0] for part in PARTS.values() for test in part.tests}
    for name, one in triage().items():
        assert name in ids
        if one.test:
            file, test = one.test.split("::")
            assert file in tests
            assert f"def {test}(" in (rowtwin.ROOT / file).read_text(encoding="utf-8")


ONE = "- {mutant: a, equivalent: It changes nothing at all.}\n"


@pytest.mark.parametrize(("text", "why"), [
    (ONE + ONE, "a mutant twice"), ("- {", "not a list"), ("7", "not a list"),
    (ONE.replace("equivalent", "equal"), "not a list"), ("- {mutant: a}", "must be equivalent or"),
    ("- {mutant: a, test: some test}", "not a list"),
    ("- {mutant: a, equivalent: no}", "not a list")])
def test_broken_triage_is_refused_in_a_sentence(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "odd.yaml").write_text(text)
    with pytest.raises(SuiteError, match=why):
        triage(tmp_path / "odd.yaml")


def test_score_leaves_out_what_is_equivalent_or_was_not_planted() -> None:
    change = PARTS["gate"].changes()[0]
    fates = tuple(Fate(change, "why", how, 1.0)
                  for how in ("failed", "time", "crash", "survived", "not planted"))
    score = Score("gate", 90, fates, 2)
    assert (score.dead, score.tried, len(score.survivors)) == (3, 4, 1)
    told = lines([score])
    assert told[0].startswith(f"gate: survived: {change.id}")
    assert told[-1].endswith("3 of 4 died (75.0 %), 1 of them by the time they took; 2 equivalent; "
                             "6 of 90 drawn")


@pytest.mark.parametrize(("words", "why"), [
    (["--random", "--full"], "give one of"), (["--full"], "give --phase"),
    (["--random", "--phase", "1"], "--part chooses"), (["--part", "gate"], "about --random"),
    (["--seed", "0"], "--seed is about --random"), (["--count", "0"], "--count is about --random"),
    (["--random", "--part", "gat"], "unknown part 'gat'"),
    (["--random", "--count", "-1"], "--count must be 0 or more"),
    (["--smallest", "none.json"], "holds no matrix")])
def test_options_that_do_not_fit_are_refused(words: list[str], why: str) -> None:
    shown = CliRunner().invoke(rowtwin.app, ["mutants", *words])
    assert isinstance(shown.exception, SuiteError)
    assert why in str(shown.exception)


def test_equivalent_mutants_are_counted_and_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Change] = []
    known = PARTS["gate"].changes()[3]
    monkeypatch.setattr(random_mutants, "triage", lambda: {known.id: random_mutants.Triaged(
        mutant=known.id, equivalent="It is the same, they say.")})

    def tried(due: list[Change], *rest: object) -> list[Fate]:
        seen.extend(due)
        return []

    monkeypatch.setattr(random_mutants, "tried", tried)
    (score,) = random_mutants.run(["gate"], 0, 0, lambda fate: None)
    assert (score.equivalent, len(seen)) == (1, len(PARTS["gate"].changes()) - 1)
    assert known not in seen


def test_part_of_which_none_could_be_planted_is_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_mutants, "tried", lambda due, *rest: [
        Fate(change, "no such function is loaded", "not planted", 1.0) for change in due])
    with pytest.raises(SuiteError, match="none of the 2 mutants drawn of gate could be planted"):
        random_mutants.run(["gate"], 2, 0, lambda fate: None)
