"""A directory of vectors is written completely or not at all, in the published format."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

from falsifiers.console import atomic_directory
from falsifiers.judging.errors import SuiteError
from falsifiers.meta.vectors.test_vectors import few
from falsifiers.tensor_files.safetensors_file import UnreadableError, read_tensors
from falsifiers.vectors import exchange, manifest
from falsifiers.vectors.calls import Call

SCHEMA = Path(__file__).parents[3] / "docs" / "vectors.schema.json"


@pytest.mark.parametrize("exists", [False, True])
def test_export_that_fails_leaves_nothing(tmp_path: Path, *, exists: bool) -> None:
    folder = tmp_path / "p3" if exists else tmp_path / "new" / "p3"
    if exists:
        folder.mkdir()
    fails = iter([False] * 5)

    def fail_late(call: Call) -> dict[str, Tensor]:
        if next(fails, True):
            raise OSError(28, "No space left on device")
        return few().reference_answer(call)

    with pytest.raises(SuiteError, match="No space left on device"):
        exchange.export(folder, replace(few(), reference_answer=fail_late))
    assert list(tmp_path.rglob("*")) == ([folder] if exists else [])


@pytest.mark.parametrize("exists", [False, True])
def test_folder_gets_its_files_once_all_are_written(tmp_path: Path, *, exists: bool) -> None:
    folder = tmp_path / "a" / "b"
    if exists:
        folder.mkdir(parents=True)
    with atomic_directory.write_atomically(folder, "last") as directory:
        for name in ("last", "zero"):
            (directory / name).touch()
        assert not (folder / "last").exists()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "last", "zero"]


def test_published_schema_is_the_manifest_s() -> None:
    assert json.loads(SCHEMA.read_text()) == manifest.json_schema()


def test_file_that_is_larger_than_expected_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UnreadableError, match="1,099,511,627,776 bytes, but at most"):
        read_tensors(path, 4)
