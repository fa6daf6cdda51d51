"""A step's time by op, and its number of kernels.

A step run with `traced` leaves a mark in the profile after every op. Kernels launched since the
previous mark belong to that op. Kernels of an unmarked run get their ops from the marked run by
order, so a replayed graph can be split too.
"""

from __future__ import annotations

import difflib
import json
import re
import tempfile
import time
import warnings
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import torch
from torch import Tensor

from engine.config import Config

MARK_PREFIX = "rowtwin op "
DEVICE_EVENTS, HOST_EVENTS = ("kernel", "gpu_memcpy", "gpu_memset"), ("cuda_runtime", "cuda_driver")
LAST_OP = "argmax"
"""The op after a step's last report: the choice of each row's token."""
UNKNOWN_OP = "not told apart"


@dataclass(frozen=True)
class DeviceEvent:
    """A kernel, copy or fill that ran on the device."""

    name: str
    milliseconds: float
    op: str
    """`3.project.attn_qkv`."""
    kernel: bool
    """False for a copy or a fill."""


@dataclass
class StepSplit:
    """The time of one step by op."""

    milliseconds: dict[str, float] = field(default_factory=dict)
    kernels: int = 0
    launches: int = 0
    kernels_per_layer: dict[str, float] = field(default_factory=dict)


class HostClock:
    """A sink that charges each op with the time since the previous report."""

    def __init__(self) -> None:
        self.spent: Counter[str] = Counter()
        self.last = time.perf_counter()

    def __call__(self, op: str, slot: int, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Charge the reported op."""
        self.charge(op)

    def charge(self, op: str) -> None:
        """Charge an op with the time since the last report."""
        now = time.perf_counter()
        self.spent[strip_layer(op)] += now - self.last  # type: ignore[assignment]
        self.last = now

    def split(self) -> StepSplit:
        """Return the milliseconds by op."""
        return StepSplit({op: 1e3 * seconds for op, seconds in self.spent.items()})


def mark_op(op: str, slot: int = 0, inputs: tuple[Tensor, ...] = (),
            output: Tensor | None = None) -> None:
    """Leave a mark in the profile: kernels launched before it belong to `op`."""
    with torch.autograd.profiler.record_function(MARK_PREFIX + op):
        pass


def strip_layer(op: str) -> str:
    """Return an op's name without its layer, `project.attn_qkv`."""
    return re.sub(r"^\d+\.", "", op)


def profile_run(run: Callable[[], object]) -> list[dict[str, Any]]:
    """Run `run` under torch's profiler; return the events of its trace."""
    from torch.profiler import ProfilerActivity, profile
    kinds = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        kinds.append(ProfilerActivity.CUDA)
    with tempfile.TemporaryDirectory(prefix="rowtwin-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the profiler warns that its API will change
        with profile(activities=kinds) as profiler:
            run()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
        path = FilePath(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_bytes())["traceEvents"]
    return events


def device_events(events: Iterable[dict[str, Any]]) -> list[DeviceEvent]:
    """Return what ran on the device in order, each with the op of the mark after its launch.

    Without marks the op is `UNKNOWN_OP`.
    """
    events = list(events)
    marks = sorted((e["ts"], e["name"].removeprefix(MARK_PREFIX)) for e in events
                   if e.get("cat") == "user_annotation" and e["name"].startswith(MARK_PREFIX))
    launched = {e["args"]["correlation"]: e["ts"] for e in events
                if e.get("cat") in HOST_EVENTS and "correlation" in e.get("args", {})}
    found = []
    for event in sorted((e for e in events if e.get("cat") in DEVICE_EVENTS),
                        key=lambda e: e["ts"]):
        at = launched.get(event["args"].get("correlation"))
        place = bisect_left(marks, (at,)) if at is not None else len(marks)
        op = marks[place][1] if place < len(marks) else LAST_OP if marks else UNKNOWN_OP
        found.append(DeviceEvent(event["name"], event["dur"] / 1e3, op, event["cat"] == "kernel"))
    return found


def count_launches(events: Iterable[dict[str, Any]]) -> int:
    """Return the number of launches of kernels and graphs by the host."""
    return sum(bool(re.match(r"cu(da)?(Launch|GraphLaunch)", e["name"])) for e in events
               if e.get("cat") in HOST_EVENTS)


def match_ops(plain: Sequence[DeviceEvent], marked: Sequence[DeviceEvent]) -> list[DeviceEvent]:
    """Return a plain run with the ops of a marked one, where both ran the same kernels in order."""
    ops, names, others = ([UNKNOWN_OP] * len(plain), [r.name for r in plain],
                          [r.name for r in marked])
    if names == others:
        ops = [r.op for r in marked]
    else:
        alike = difflib.SequenceMatcher(None, names, others, autojunk=False)
        for a, b, size in alike.get_matching_blocks():
            ops[a:a + size] = [r.op for r in marked[b:b + size]]
    return [DeviceEvent(r.name, r.milliseconds, op, r.kernel)
            for r, op in zip(plain, ops, strict=True)]


def split_by_op(found: Sequence[DeviceEvent], launches: int, config: Config) -> StepSplit:
    """Return the time by op, and the kernels by kind of layer."""
    split, layers = StepSplit(launches=launches), Counter[str]()
    kinds = {"gdn": sum(config.recurrent), "attention": config.layers - sum(config.recurrent),
             "outside": 1}
    for event in found:
        op = strip_layer(event.op)
        split.milliseconds[op] = split.milliseconds.get(op, 0.0) + event.milliseconds
        split.kernels += event.kernel
        number = event.op.partition(".")[0]
        kind = "outside" if not number.isdigit() else \
            "gdn" if config.recurrent[int(number)] else "attention"
        layers[kind] += event.kernel
    split.kernels_per_layer = {kind: layers[kind] / count for kind, count in kinds.items() if count}
    return split
