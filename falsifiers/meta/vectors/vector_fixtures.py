"""Directories of steps and single ops with correct answers, which tests then change."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from falsifiers.judging.verdict import Finding, Verdict
from falsifiers.tensor_files.safetensors_file import read_tensors, write_tensors
from falsifiers.vectors import manifest


def answer_rightly(exported: Path, folder: Path) -> Path:
    """Return a directory with a correct answer to every call."""
    shutil.copytree(exported / "expected", folder / "outputs")
    shutil.copy(exported / "manifest.json", folder)
    return folder


def finding_of(verdicts: list[Verdict], case: str) -> Finding:
    """Return the finding of the one failed `rows_equal_solo` case with this name."""
    found = [v.finding for v in verdicts if v.case.endswith(f"vectors-{case}]")
             and v.falsifier == "rows_equal_solo"]
    assert len(found) == 1
    assert found[0] is not None
    return found[0]


def change_answer(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the tensors of an answer."""
    tensors, metadata = read_tensors(path, 1 << 26)
    change(tensors)
    write_tensors(path, tensors, metadata)


def flip_last_bit(tensors: dict[str, torch.Tensor], name: str, at: tuple[int, ...]) -> None:
    """Flip the last bit of one value."""
    tensors[name].view(torch.int32)[at] ^= 1


def step_answer_file(folder: Path, case: str, m: int) -> Path:
    """Return the answer file of the m-row step of a case."""
    (call,) = [call for call in manifest.load_manifest(folder).calls if call.op == "step"
               and f"p4/rows_equal_solo[cpu-vectors-step-{case}]" in call.cases
               and call.inputs["slots"].shape == (m,)
               and (m > 1 or int(call.facts["slots"]) > 1)]
    return folder / "outputs" / f"{call.name}.safetensors"


def row_slots(folder: Path, answer: Path) -> list[int]:
    """Return the slot of each row of a step."""
    slots: list[int] = read_tensors(folder / "inputs" / answer.name, 1 << 26)[0]["slots"].tolist()
    return slots
