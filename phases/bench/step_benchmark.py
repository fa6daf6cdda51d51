"""A whole measurement of steps: a file, paths handed in, and the device that is here."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path as FilePath

import torch

from engine.errors import InputError
from engine.model import Model
from engine.path import Path
from falsifiers.gate.benchmark_records import StepTimes
from phases.bench.memory_floor import measure_host_bandwidth
from phases.bench.step_timing import StepBenchmark, TimingOptions

RECEIPT_OPTIONS = TimingOptions(
    ms=(1, 2, 4, 8, 16, 32), contexts=(128, 4096), prefill=2048, seconds=0.5
)
"""What is measured for a receipt."""


def make_benchmark(file: FilePath, looped: Path, paths: Sequence[Path], *, ms: tuple[int, ...],
             contexts: tuple[int, ...], prefill: int, tell: Callable[[str], None],
             kv: str = "f32") -> StepBenchmark:
    """Return a measurement of a file on the device that is here, or on the host without one."""
    if prefill < 0:
        raise InputError(f"--prefill {prefill} is refused: 0 or more tokens")
    asked = TimingOptions(ms, contexts, prefill)
    model = Model.load(file).with_kv(kv)
    most = max(*contexts, prefill)
    if most >= model.config.context:
        raise InputError(f"{most:,} tokens do not fit the model's context of "
                         f"{model.config.context:,}")
    return StepBenchmark(
        move_to_device(model), looped, tuple(paths), asked, measure_bandwidth(), tell
    )


def move_to_device(model: Model) -> Model:
    """Return the model on a CUDA device if one is usable here."""
    return model.to("cuda") if torch.cuda.is_available() else model


def measure_bandwidth() -> float:
    """Return the bytes a second that a read-only pass reaches where steps will run."""
    if not torch.cuda.is_available():
        return measure_host_bandwidth()
    from phases.bench.gemv import measure_bandwidth
    return measure_bandwidth()


def measure_for_receipt(looped: Path, path: Path, tell: Callable[[str], None]) -> StepTimes:
    """Measure steps of a made file of the 4B shape, as a receipt keeps them."""
    from engine.make import make_model
    with tempfile.TemporaryDirectory(prefix="rowtwin-") as folder:
        tell("a file of the 4B shape is made")
        model = Model.load(make_model(FilePath(folder, "4b.gguf"), "4b", "q4_k_m"))
        return StepBenchmark(
            move_to_device(model), looped, (path,), RECEIPT_OPTIONS, measure_bandwidth(), tell
        ).run()
