"""Traces as files: a line a tensor in `index.jsonl`, a safetensors file a step.

The format is for other engines too (`docs/traces.md`); what comes from outside is checked line by
line, and a file is weighed against its index before it is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from falsifiers.console.atomic_directory import write_atomically
from falsifiers.console.cli_app import escape_non_utf8
from falsifiers.judging.errors import SuiteError
from falsifiers.tensor_files.safetensors_file import (
    MAX_HEADER_BYTES,
    UnreadableError,
    read_bytes,
    read_tensors,
    write_tensors,
)

if TYPE_CHECKING:
    from torch import Tensor

    from falsifiers.bisect.paired_runs import BatchRun, SoloRun, Step

INDEX = "index.jsonl"
MAX_INDEX_BYTES = 1 << 28
"""Bytes that an index may have."""
MAX_STEP_BYTES = 1 << 32
"""Bytes that the tensors of a step may have; they are read together."""
DTYPE_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
}
DTYPE_NAMES = {"torch.float64": "F64", "torch.float32": "F32", "torch.float16": "F16",
         "torch.bfloat16": "BF16", "torch.int64": "I64", "torch.int32": "I32",
         "torch.int16": "I16", "torch.int8": "I8", "torch.uint8": "U8"}
"""Torch's name of a type as safetensors has it."""


PrintableText = Annotated[str, Field(pattern=r"^\P{C}+$", max_length=300)]
"""Text that can be printed as it is."""


class IndexLine(BaseModel):
    """A line of an index; keys that it does not know are an engine's own and left alone."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class HeaderLine(IndexLine):
    """The first line."""

    format: Literal["rowtwin-trace"]
    version: Literal[1]
    engine: PrintableText = "not named"
    """What ran, in words."""
    model: PrintableText = "not named"


DType = Literal["F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8"]


class RowLine(IndexLine):
    """What a step gave one slot."""

    slot: int = Field(ge=0)
    position: int = Field(ge=0)
    """Tokens that the slot held before."""
    tokens: tuple[int, ...] = Field(min_length=1)


class StepLine(IndexLine):
    """A step; the lines of its tensors follow."""

    step: int = Field(ge=0)
    file: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """The safetensors file of its tensors, beside the index."""
    rows: tuple[RowLine, ...] = Field(min_length=1)


class TensorLine(IndexLine):
    """One tensor of the last step: what an op was given or made for one slot."""

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
    """The first entry counts tokens of the row; what holds no values would agree with anything."""

    @property
    def id(self) -> str:
        """The op's id, `3.project.attn_qkv`."""
        return self.op if self.layer is None else f"{self.layer}.{self.op}"

    @property
    def byte_count(self) -> int:
        """How many bytes its values take."""
        return DTYPE_BYTES[self.dtype] * prod(self.shape)


@dataclass
class TraceStep:
    """A step of a trace, and its tensors in the order in which they were reported."""

    folder: Path
    line: StepLine
    tensors: list[TensorLine] = field(default_factory=list)

    def values(self) -> dict[str, Tensor]:
        """Read the step's tensors by key, each held to its line."""
        path, size = self.folder / self.line.file, sum(one.byte_count for one in self.tensors)
        try:
            held, _ = read_tensors(
                path, min(size, MAX_STEP_BYTES), MAX_HEADER_BYTES + 512 * len(self.tensors)
            )
        except UnreadableError as error:
            raise SuiteError(str(error)) from None
        for one in self.tensors:
            if one.tensor not in held:
                raise SuiteError(f"{path} has no tensor {one.tensor!r}, which the index names")
            x = held[one.tensor]
            if (DTYPE_NAMES.get(str(x.dtype)), tuple(x.shape)) != (one.dtype, one.shape):
                raise SuiteError(
                    f"{path}: {one.tensor!r} is {DTYPE_NAMES.get(str(x.dtype), x.dtype)} "
                    f"{list(x.shape)}, but the index says {one.dtype} "
                    f"{list(one.shape)}"
                )
        return held


@dataclass(frozen=True)
class TraceDir:
    """A trace that was read; its tensors are read a step at a time."""

    folder: Path
    header: HeaderLine
    steps: list[TraceStep]

    @cached_property
    def description(self) -> str:
        """What made it, in words."""
        return f"{escape_non_utf8(str(self.folder))} ({self.header.engine})"


def load_trace(folder: Path) -> TraceDir:
    """Read a trace's index; raise `SuiteError` naming file and line when it is none."""
    if not folder.is_dir():
        raise SuiteError(f"{folder} is not a directory of a trace")
    path = folder / INDEX
    try:
        text = read_bytes(path, MAX_INDEX_BYTES).decode("utf-8").removesuffix("\n")
    except UnreadableError as error:
        raise SuiteError(str(error)) from None
    except UnicodeDecodeError:
        raise SuiteError(f"{path} is not UTF-8 text") from None
    head, steps = None, list[TraceStep]()
    for number, told in enumerate(text.split("\n") if text else (), 1):
        line = _parse_line(path, number, told, first=head is None)
        if isinstance(line, HeaderLine):
            head = line
        elif isinstance(line, StepLine):
            slots = [row.slot for row in line.rows]
            if len(set(slots)) < len(slots):
                raise SuiteError(f"{path}:{number}: a slot has two rows in step {line.step}")
            if steps and line.step <= steps[-1].line.step:
                raise SuiteError(f"{path}:{number}: step {line.step} comes after step "
                                 f"{steps[-1].line.step}")
            steps.append(TraceStep(folder, line))
        elif not steps:
            raise SuiteError(f"{path}:{number}: a tensor stands before any step")
        else:
            if line.slot not in {row.slot for row in steps[-1].line.rows}:
                raise SuiteError(f"{path}:{number}: slot {line.slot} has no row in step "
                                 f"{steps[-1].line.step}")
            steps[-1].tensors.append(line)
    if head is None or not steps:
        raise SuiteError(f"{path} holds no step")
    return TraceDir(folder, head, steps)


def _parse_line(
    path: Path, number: int, text: str, first: bool
) -> HeaderLine | StepLine | TensorLine:
    try:
        data = json.loads(text, object_pairs_hook=_unique_keys)
        form = HeaderLine if first else StepLine if isinstance(data, dict) and "rows" in data \
            else TensorLine
        return form.model_validate(data)
    except ValidationError as error:
        told = error.errors()[0]
        where = ".".join(str(part) for part in told["loc"]) or "the whole"
        raise SuiteError(f"{path}:{number}: {where}: {told['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise SuiteError(f"{path}:{number}: is not JSON: {str(error).splitlines()[0]}") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; of a key that stands twice nobody can say what is meant."""
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def record_trace(folder: Path, lane: BatchRun | SoloRun, steps: Sequence[Step],
           told: dict[str, str]) -> int:
    """Run the steps on a lane, writing each as it ends; return how many bytes were written.

    A run that was broken off leaves no trace at all.
    """
    size = 0
    with (
        write_atomically(folder, INDEX) as part,
        (part / INDEX).open("w", encoding="utf-8") as index,
    ):
        index.write(json.dumps({"format": "rowtwin-trace", "version": 1, **told}) + "\n")
        for number, step in enumerate(steps):
            lines, tensors = _run_step(lane, number, step)
            write_tensors(part / lines[0]["file"], tensors, {})
            index.writelines(json.dumps(line) + "\n" for line in lines)
            size += sum(x.nbytes for x in tensors.values())
    return size


def _run_step(lane: BatchRun | SoloRun, number: int,
         step: Step) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Run one step; return its lines and its tensors by key."""
    from falsifiers.bisect.trace import Trace
    trace = Trace()
    lane.join(step)
    logits = lane.advance(step, trace)
    rows = [{"slot": slot, "position": position, "tokens": list(tokens)}
            for slot, position, tokens in step.spans()]
    lines: list[dict[str, Any]] = [
        {"step": number, "file": f"step-{number:06}.safetensors", "rows": rows}]
    tensors: dict[str, Tensor] = {}
    for slot, op, name, x in _reported_tensors(trace, step, logits):
        layer, rest = _split_op_id(op)
        key = str(len(tensors))
        tensors[key] = x.cpu()
        lines.append({"slot": slot, "layer": layer, "op": rest, "name": name, "tensor": key,
                      "dtype": DTYPE_NAMES[str(x.dtype)], "shape": list(x.shape)})
    return lines, tensors


def _reported_tensors(trace: Any, step: Step,
              logits: Tensor) -> Iterator[tuple[int, str, str, Tensor]]:
    import torch
    for op, slot in trace.order:
        for name, tokens in trace.tensors_of((op, slot)).items():
            yield slot, op, name, torch.stack(tokens)
    for row, slot in enumerate(step.slots):
        yield slot, "logits", "output", logits[row:row + 1]


def _split_op_id(op: str) -> tuple[int | None, str]:
    from falsifiers.bisect.divergence import split_op_id
    return split_op_id(op)
