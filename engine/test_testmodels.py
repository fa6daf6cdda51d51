"""Test models are written once, under a name with the digest of their sources."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engine import testmodels
from engine.errors import InputError

ROOT = Path(testmodels.__file__).parent.parent


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"huge is not known; known are nano, nano-tied, nano-f32"):
        testmodels.model_path("huge")


def test_a_cached_file_is_not_written_again(tmp_path: Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testmodels, "_CACHE", tmp_path / "models")
    path = testmodels.model_path("nano")
    path.write_bytes(b"cached")
    assert testmodels.model_path("nano").read_bytes() == b"cached"


@pytest.mark.parametrize(("name", "tied", "kinds"), [
    ("nano", False, 7), ("nano-tied", True, 7), ("nano-f32", False, 1), ("nano-f32-tied", True, 1)])
def test_a_name_says_what_its_model_is(name: str, tied: bool, kinds: int) -> None:
    from engine.gguf_file import open_gguf

    file = open_gguf(testmodels.model_path(name))
    assert ("output.weight" not in file.tensors) is tied
    assert len({entry.kind for entry in file.tensors.values()}) == kinds


def test_a_changed_source_gives_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    before = testmodels.model_path("nano").name
    testmodels._source_digest.cache_clear()
    monkeypatch.setattr(testmodels, "_SOURCES", testmodels._SOURCES[:-1])
    assert testmodels._source_digest() not in before
    testmodels._source_digest.cache_clear()


def test_two_processes_that_write_one_model_at_once_both_get_it(tmp_path: Path) -> None:
    code = (f"import pathlib; from engine import testmodels; "
            f"testmodels._CACHE = pathlib.Path({str(tmp_path / 'models')!r}); "
            f"print(testmodels.model_path('nano').stat().st_size)")
    runs = [subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE)
            for _ in range(2)]
    sizes = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert sizes[0] == sizes[1]
    assert len(list((tmp_path / "models").iterdir())) == 1


def test_a_model_is_loaded_once_a_process() -> None:
    assert testmodels.load("nano") is testmodels.load("nano")
