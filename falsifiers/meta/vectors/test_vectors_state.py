"""Ops that keep state send it along and back, and what comes back is judged as any state is."""

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


def some(phase: str, wanted: Callable[[Case], bool]) -> VectorSet:
    """Return those cases of a phase's vectors that are wanted."""
    every = rowtwin.phase_vectors(phase)
    return replace(every, cases=tuple(filter(wanted, every.cases)))


def answered(folder: Path, wanted: VectorSet) -> Path:
    """Export calls, answer them rightly, and return the folder of the answers."""
    exchange.export(folder, wanted)
    shutil.copytree(folder / "expected", folder / "outputs", dirs_exist_ok=True)
    assert {v.outcome for v in exchange.check(folder, wanted)} == {"passed"}
    return folder / "outputs"


def added_to(path: Path, name: str, at: tuple[int, ...]) -> None:
    tensors, told = read_tensors(path, 1 << 22)
    tensors[name][at] += 1
    write_tensors(path, tensors, told)


def first(folder: Path, wanted: VectorSet) -> Finding:
    return next(v.finding for v in exchange.check(folder, wanted) if v.finding is not None)


def test_state_that_an_answer_leaves_is_located(tmp_path: Path) -> None:
    wanted = some("5", lambda case: case["op"] == "conv_step")
    outputs = answered(tmp_path / "p5", wanted)
    added_to(min(outputs.glob("conv_step-384x3-m5-*")), "states", (2, 7, 1))
    found = first(outputs.parent, wanted)
    assert (found.rule, found.where["m"], found.where["row"]) == ("twin", 5, 2)
    assert found.where["element"] == "[7, 1]"
    assert found.sentence.startswith("state[row 2, slot ")


def test_cache_that_an_answer_leaves_is_held_to_what_it_was(tmp_path: Path) -> None:
    wanted = some("6", lambda case: case.falsifier in ("pads_do_nothing", "heads_are_grouped"))
    outputs = answered(tmp_path / "p6", wanted)
    old = (1, 69, 0, 200)  # of a row that the slot held before
    added_to(next(outputs.glob("attend-h2-g1-m2-t2-*")), "keys", old)
    found = first(outputs.parent, wanted)
    assert (found.rule, found.rung) == ("law", "frame")
    assert found.sentence.startswith("keys[1, 69, 0, 200] is not what it should be")


def test_argmax_and_norms_are_judged_row_by_row(tmp_path: Path) -> None:
    wanted = some("4", lambda case: case.falsifier.startswith(("argmax", "kernels"))
                  and case.given.get("vocab", 509) == 509)
    outputs = answered(tmp_path / "p4", wanted)
    path = next(outputs.glob("argmax-2x509-*"))
    added_to(path, "out", (1,))
    found = first(outputs.parent, wanted)
    assert found.sentence.startswith("argmax[row 1, zeros of both signs]=3, but should be 2 ")
    write_tensors(path, {"out": torch.tensor([2.0, -1.0])}, {"arithmetic": wanted.arithmetic})
    assert first(outputs.parent, wanted).sentence == (
        "row 1 of [2, 509] logits is answered by -1, which says that it holds NaN, but it holds "
        "none")
    shutil.copy(outputs.parent / "expected" / path.name, path)
    added_to(next(outputs.glob("norm-3x2x300-*")), "out", (2, 1, 7))
    found = first(outputs.parent, wanted)
    assert (found.rule, found.rung, found.where["element"]) == ("truth", "bits", "[2, 1, 7]")


@pytest.mark.parametrize(("phase", "why"), [
    ("7", "a server's states between requests"), ("0", "a scheduler is no op"),
    ("9", "phase '9' has no vectors: choose one of 3, 4, 5, 6, 8")])
def test_phase_without_vectors_is_refused(phase: str, why: str) -> None:
    with pytest.raises(SuiteError, match=why) as refused:
        rowtwin.phase_vectors(phase)
    assert str(refused.value).endswith("choose one of 3, 4, 5, 6, 8")
