"""A whole measurement of steps: a file, paths handed in, and the device that is here."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path as FilePath

import torch

from engine.errors import InputError
from engine.model import Model
from engine.path import Path
from falsifiers.gate.benchmark_records import Steps
from phases.bench.memory_floor import host_bandwidth
from phases.bench.step_timing import Asked, Bench

KEPT = Asked(ms=(1, 2, 4, 8, 16, 32), contexts=(128, 4096), prefill=2048, seconds=0.5)
"""What is measured for a receipt."""


def bench_of(file: FilePath, looped: Path, paths: Sequence[Path], *, ms: tuple[int, ...],
             contexts: tuple[int, ...], prefill: int, tell: Callable[[str], None],
             kv: str = "f32") -> Bench:
    """Return a measurement of a file on the device that is here, or on the host without one."""
    if prefill < 0:
        raise InputError(f"--prefill {prefill} is refused: 0 or more tokens")
    asked = Asked(ms, contexts, prefill)
    model = Model.load(file).with_kv(kv)
    most = max(*contexts, prefill)
    if most >= model.config.context:
        raise InputError(f"{most:,} tokens do not fit the model's context of "
                         f"{model.config.context:,}")
    return Bench(on_device(model), looped, tuple(paths), asked, bandwidth(), tell)


def on_device(model: Model) -> Model:
    """Return the model on a CUDA device if one is usable here."""
    return model.to("cuda") if torch.cuda.is_available() else model


def bandwidth() -> float:
    """Return the bytes a second that a read-only pass reaches where steps will run."""
    if not torch.cuda.is_available():
        return host_bandwidth()
    from phases.bench.gemv import bandwidth
    return bandwidth()


def kept(looped: Path, path: Path, tell: Callable[[str], None]) -> Steps:
    """Measure steps of a made file of the 4B shape, as a receipt keeps them."""
    from engine.make import make_model
    with tempfile.TemporaryDirectory(prefix="rowtwin-") as folder:
        tell("a file of the 4B shape is made")
        model = Model.load(make_model(FilePath(folder, "4b.gguf"), "4b", "q4_k_m"))
        return Bench(on_device(model), looped, (path,), KEPT, bandwidth(), tell).run()
