"""Calls of ops with state carry it both ways, and the returned state is compared."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import rowtwin
from contracts.schema import Case
from falsifiers.judging.errors import SuiteError
from falsifiers.judging.verdict import Finding
from falsifiers.tensor_files.safetensors_file import read_tensors, write_tensors
from falsifiers.vectors import exchange
from falsifiers.vectors.exchange import VectorSet


def some(phase: str, select: Callable[[Case], bool]) -> VectorSet:
    """Return a phase's vectors with only the selected cases."""
    every = rowtwin.phase_vectors(phase)
    return replace(every, cases=tuple(filter(select, every.cases)))


def export_answered(folder: Path, vectors: VectorSet) -> Path:
    """Export calls with correct answers, and return the folder of the answers."""
    exchange.export(folder, vectors)
    shutil.copytree(folder / "expected", folder / "outputs", dirs_exist_ok=True)
    assert {v.outcome for v in exchange.check(folder, vectors)} == {"passed"}
    return folder / "outputs"


def add_one(path: Path, name: str, at: tuple[int, ...]) -> None:
    tensors, metadata = read_tensors(path, 1 << 22)
    tensors[name][at] += 1
    write_tensors(path, tensors, metadata)


def first(folder: Path, vectors: VectorSet) -> Finding:
    return next(v.finding for v in exchange.check(folder, vectors) if v.finding is not None)


def test_wrong_state_in_an_answer_is_located(tmp_path: Path) -> None:
    vectors = some("5", lambda case: case["op"] == "conv_step")
    outputs = export_answered(tmp_path / "p5", vectors)
    add_one(min(outputs.glob("conv_step-384x3-m5-*")), "states", (2, 7, 1))
    found = first(outputs.parent, vectors)
    assert (found.rule, found.where["m"], found.where["row"]) == ("twin", 5, 2)
    assert found.where["element"] == "[7, 1]"
    assert found.sentence.startswith("state[row 2, slot ")


def test_answer_must_not_change_old_keys(tmp_path: Path) -> None:
    vectors = some("6", lambda case: case.falsifier in ("pads_do_nothing", "heads_are_grouped"))
    outputs = export_answered(tmp_path / "p6", vectors)
    old = (1, 69, 0, 200)  # a key from before the call
    add_one(next(outputs.glob("attend-h2-g1-m2-t2-*")), "keys", old)
    found = first(outputs.parent, vectors)
    assert (found.rule, found.rung) == ("law", "frame")
    assert found.sentence.startswith("keys[1, 69, 0, 200] has a wrong value after the step")


def test_argmax_and_norms_are_judged_row_by_row(tmp_path: Path) -> None:
    vectors = some("4", lambda case: case.falsifier.startswith(("argmax", "kernels"))
                  and case.given.get("vocab", 509) == 509)
    outputs = export_answered(tmp_path / "p4", vectors)
    path = next(outputs.glob("argmax-2x509-*"))
    add_one(path, "out", (1,))
    found = first(outputs.parent, vectors)
    assert found.sentence.startswith("argmax[row 1, zeros of both signs]=3, but should be 2 ")
    write_tensors(path, {"out": torch.tensor([2.0, -1.0])}, {"arithmetic": vectors.arithmetic})
    assert first(outputs.parent, vectors).sentence == (
        "row 1 of [2, 509] logits is answered by -1, which marks NaN, but the row has none")
    shutil.copy(outputs.parent / "expected" / path.name, path)
    add_one(next(outputs.glob("norm-3x2x300-*")), "out", (2, 1, 7))
    found = first(outputs.parent, vectors)
    assert (found.rule, found.rung, found.where["element"]) == ("truth", "bits", "[2, 1, 7]")


@pytest.mark.parametrize(("phase", "why"), [
    ("7", "a server's states between requests"), ("0", "a scheduler is not an op"),
    ("9", "phase '9' has no vectors: choose one of 3, 4, 5, 6, 8")])
def test_phase_without_vectors_is_refused(phase: str, why: str) -> None:
    with pytest.raises(SuiteError, match=why) as refused:
        rowtwin.phase_vectors(phase)
    assert str(refused.value).endswith("choose one of 3, 4, 5, 6, 8")
