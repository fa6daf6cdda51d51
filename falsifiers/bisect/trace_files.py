"""Traces as files: `index.jsonl` with one line for each tensor, and one safetensors file a step.

Other engines write the format too (`docs/traces.md`). So each line of the index is validated, and
a file's size is checked against the index before it is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from falsifiers.console.atomic_directory import write_atomically
from falsifiers.console.cli_app import escape_non_utf8
from falsifiers.judging.errors import SuiteError
from falsifiers.tensor_files.documents import parse_json, reading
from falsifiers.tensor_files.safetensors_file import (
    MAX_HEADER_BYTES,
    byte_count,
    dtype_name,
    read_bytes,
    read_tensors,
    write_tensors,
)

if TYPE_CHECKING:
    from torch import Tensor

    from falsifiers.bisect.paired_runs import BatchRun, SoloRun, Step
    from falsifiers.bisect.trace import Trace

INDEX = "index.jsonl"
MAX_INDEX_BYTES = 1 << 28
"""Bytes that an index may have."""
MAX_STEP_BYTES = 1 << 32
"""Bytes that the tensors of a step may have; they are read together."""

PrintableText = Annotated[str, Field(pattern=r"^\P{C}+$", max_length=300)]
"""Text that is safe to print."""


class IndexLine(BaseModel):
    """A line of an index; unknown keys belong to the engine that wrote it and are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class HeaderLine(IndexLine):
    """The first line."""

    format: Literal["rowtwin-trace"]
    version: Literal[1]
    engine: PrintableText = "not named"
    """A description of the engine."""
    model: PrintableText = "not named"


DType = Literal["F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8"]


class RowLine(IndexLine):
    """One row of a step."""

    slot: int = Field(ge=0)
    position: int = Field(ge=0)
    """Tokens in the slot before the step."""
    tokens: tuple[int, ...] = Field(min_length=1)


class StepLine(IndexLine):
    """A step; the lines of its tensors follow."""

    step: int = Field(ge=0)
    file: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """The safetensors file of its tensors, in the directory of the index."""
    rows: tuple[RowLine, ...] = Field(min_length=1)


class TensorLine(IndexLine):
    """One tensor of the latest step: an op's input or output for one slot."""

    slot: int = Field(ge=0)
    layer: int | None = Field(ge=0)
    """None outside the layers."""
    op: PrintableText
    name: PrintableText
    """`output`, or `input 0` and so on."""
    tensor: str
    """Its key in the step's file."""
    dtype: DType
    shape: tuple[Annotated[int, Field(ge=1)], ...] = Field(min_length=1)
    """The first size counts tokens of the row; a size of 0 is refused, as it equals anything."""

    @property
    def id(self) -> str:
        """The op's id, `3.project.attn_qkv`."""
        return self.op if self.layer is None else f"{self.layer}.{self.op}"


@dataclass
class TraceStep:
    """A step of a trace, with its tensors in the order of their reports."""

    folder: Path
    line: StepLine
    tensors: list[TensorLine] = field(default_factory=list)

    def values(self) -> dict[str, Tensor]:
        """Read the step's tensors by key; check each against its line of the index."""
        path = self.folder / self.line.file
        size = sum(byte_count(line.dtype, line.shape) for line in self.tensors)
        with reading(str(path)):
            tensors, _ = read_tensors(path, min(size, MAX_STEP_BYTES),
                                      MAX_HEADER_BYTES + 512 * len(self.tensors))
        for line in self.tensors:
            if line.tensor not in tensors:
                raise SuiteError(f"{path} has no tensor {line.tensor!r}, which the index names")
            x = tensors[line.tensor]
            if (dtype_name(x), tuple(x.shape)) != (line.dtype, line.shape):
                raise SuiteError(f"{path}: {line.tensor!r} is {dtype_name(x)} {list(x.shape)}, but "
                                 f"the index says {line.dtype} {list(line.shape)}")
        return tensors


@dataclass(frozen=True)
class TraceDir:
    """The index of a trace; the tensors are read one step at a time."""

    folder: Path
    header: HeaderLine
    steps: list[TraceStep]

    @cached_property
    def description(self) -> str:
        """The directory and the engine."""
        return f"{escape_non_utf8(str(self.folder))} ({self.header.engine})"


def load_trace(folder: Path) -> TraceDir:
    """Read a trace's index; raise `SuiteError` with file and line when it is invalid."""
    if not folder.is_dir():
        raise SuiteError(f"{folder} is not a directory of a trace")
    path = folder / INDEX
    with reading(str(path)):
        text = read_bytes(path, MAX_INDEX_BYTES).decode("utf-8").removesuffix("\n")
    header, steps = None, list[TraceStep]()
    for number, line_text in enumerate(text.split("\n") if text else (), 1):
        with reading(f"{path}:{number}"):
            line = _parse_line(line_text, first=header is None)
        if isinstance(line, HeaderLine):
            header = line
            continue
        step = steps[-1].line if steps else None
        fault = ""
        if isinstance(line, StepLine):
            if len({row.slot for row in line.rows}) < len(line.rows):
                fault = f"a slot has two rows in step {line.step}"
            elif step is not None and line.step <= step.step:
                fault = f"step {line.step} comes after step {step.step}"
            steps.append(TraceStep(folder, line))
        elif step is None:
            fault = "a tensor comes before the first step"
        elif line.slot not in {row.slot for row in step.rows}:
            fault = f"slot {line.slot} has no row in step {step.step}"
        else:
            steps[-1].tensors.append(line)
        if fault:
            raise SuiteError(f"{path}:{number}: {fault}")
    if header is None or not steps:
        raise SuiteError(f"{path} has no step")
    return TraceDir(folder, header, steps)


def _parse_line(text: str, first: bool) -> HeaderLine | StepLine | TensorLine:
    data = parse_json(text)
    if first:
        return HeaderLine.model_validate(data)
    is_step = isinstance(data, dict) and "rows" in data
    return (StepLine if is_step else TensorLine).model_validate(data)


def record_trace(folder: Path, run: BatchRun | SoloRun, steps: Sequence[Step],
                 header: dict[str, str]) -> int:
    """Run the steps and write each when it ends; return the number of bytes written.

    An interrupted run leaves no files.
    """
    size = 0
    with (write_atomically(folder, INDEX) as directory,
          (directory / INDEX).open("w", encoding="utf-8") as index):
        index.write(json.dumps({"format": "rowtwin-trace", "version": 1, **header}) + "\n")
        for number, step in enumerate(steps):
            lines, tensors = _run_step(run, number, step)
            write_tensors(directory / lines[0]["file"], tensors, {})
            index.writelines(json.dumps(line) + "\n" for line in lines)
            size += sum(x.nbytes for x in tensors.values())
    return size


def _run_step(run: BatchRun | SoloRun, number: int,
              step: Step) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Run one step; return its lines and its tensors by key."""
    from falsifiers.bisect.divergence import split_op_id
    from falsifiers.bisect.trace import Trace
    trace = Trace()
    run.join(step)
    logits = run.advance(step, trace)
    rows = [{"slot": slot, "position": position, "tokens": list(tokens)}
            for slot, position, tokens in step.spans()]
    lines: list[dict[str, Any]] = [
        {"step": number, "file": f"step-{number:06}.safetensors", "rows": rows}]
    tensors: dict[str, Tensor] = {}
    for slot, op_id, name, x in _reported_tensors(trace, step, logits):
        layer, op = split_op_id(op_id)
        key = str(len(tensors))
        tensors[key] = x.cpu()
        lines.append({"slot": slot, "layer": layer, "op": op, "name": name, "tensor": key,
                      "dtype": dtype_name(x), "shape": list(x.shape)})
    return lines, tensors


def _reported_tensors(trace: Trace, step: Step,
                      logits: Tensor) -> Iterator[tuple[int, str, str, Tensor]]:
    import torch
    for op, slot in trace.order:
        for name, tokens in trace.tensors_of((op, slot)).items():
            yield slot, op, name, torch.stack(tokens)
    for row, slot in enumerate(step.slots):
        yield slot, "logits", "output", logits[row:row + 1]
