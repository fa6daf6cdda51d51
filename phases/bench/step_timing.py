"""Times of whole decode steps, each timed only after its bits were compared.

A step is compared with the looped path, which runs one sequence at a time on the same device:
logits and every value of state. Then steps follow one another, each with the tokens that the last
one chose. The steps of two paths take turns.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from statistics import median

import torch

from engine.errors import InputError
from engine.model import Model
from engine.path import Path, Rows, traced
from engine.state import Pool
from falsifiers.gate.benchmark_records import PrefillTime, StepTime, StepTimes
from phases.bench import time_by_op
from phases.bench.device_timing import conditions, measure_bandwidth
from phases.bench.memory_floor import describe_shape, step_bytes
from phases.bench.step_parity import DecodeRun, ExpectedStep, check_equal
from phases.bench.time_by_op import HostClock, StepSplit

WARMUP_STEPS, MIN_STEPS, MAX_STEPS = 2, 3, 30
"""Steps before the clock starts, and the smallest and largest number of timed steps."""
MAX_PROFILED = 0.3
"""A step of more seconds has a hundred thousand launches, too many to profile."""
CHECKED_TOKENS = 70
"""Tokens of a prompt that are compared with single steps."""


@dataclass(frozen=True)
class TimingOptions:
    """What to measure."""

    ms: tuple[int, ...]
    contexts: tuple[int, ...]
    prefill: int = 0
    """Tokens of a prompt; 0 measures none."""
    seconds: float = 2.0
    """Time for the steps of one width and context, after the first `MIN_STEPS`."""
    patience: float = 30.0
    """Seconds that one prompt may take; a longer one is left out and listed."""


RECEIPT_OPTIONS = TimingOptions(ms=(1, 2, 4, 8, 16, 32), contexts=(128, 4096), prefill=2048,
                                seconds=0.5)
"""What `rowtwin receipt` measures."""


@dataclass
class StepBenchmark:
    """A model and the paths to time over it; `run` measures all of them."""

    model: Model
    looped: Path
    """One sequence at a time by the engine's ops; every path is compared with it."""
    paths: tuple[Path, ...]
    options: TimingOptions
    bandwidth: float
    """Bytes a second that the device reads."""
    progress: Callable[[str], None] = lambda line: None
    left_out: list[str] = field(default_factory=list)

    def run(self) -> StepTimes:
        """Measure every context and width; raise `BitsDifferError` at the first wrong bit."""
        oracle = self.model.to(self.model.device)  # `del oracle` frees its unpacked weights
        self._unpack(oracle)
        expected = {}
        for context in self.options.contexts:
            self.progress(f"context {context:,}: the looped path on {self.model.device}")
            expected[context] = ExpectedStep.compute(self.looped, oracle, context, MAX_STEPS + 8,
                                                     max(self.options.ms))
        del oracle
        figures = [figure for context in self.options.contexts for m in self.options.ms
                   for figure in self._measure_point(expected[context], m, context)]
        prompts = [prompt for path in self.paths if self.options.prefill
                   for prompt in self._time_prompt(path)]
        sizes = step_bytes(self.model)
        return StepTimes(**conditions(self.model.device, self.bandwidth),
                         model=describe_shape(self.model), weight_bytes=sizes.weights,
                         state_bytes=sizes.state, cache_bytes=sizes.cache, figures=tuple(figures),
                         prefill=tuple(prompts), left_out=tuple(self.left_out))

    def _unpack(self, oracle: Model) -> None:
        """Unpack the looped path's weights, several matrices at a time."""
        self.progress("the looped path unpacks its weights")
        with ThreadPoolExecutor() as several:
            list(several.map(lambda w: w.product(torch.zeros(1, w.k, device=oracle.device)),
                             oracle.weights.matrices()))

    def _measure_point(self, expected: ExpectedStep, m: int, context: int) -> list[StepTime]:
        runs = [DecodeRun(self.model, path, expected.make_pool(self.model, m), m, context)
                for path in self.paths]
        equal = [expected.check_step(run) for run in runs]
        self.progress(f"m = {m}, context {context:,}: {equal[0]:,} values equal; timing")
        times = time_interleaved(runs, self.options.seconds)
        sizes, figures = step_bytes(self.model), []
        floor = (sizes.weights + m * (2 * sizes.state + (context + 1) * sizes.cache)
                 ) / self.bandwidth * 1e3
        for run, values, spent in zip(runs, equal, times, strict=True):
            split = self._split_by_op(run, median(spent))
            figures.append(StepTime(
                path=run.path.name, m=m, context=context, milliseconds=median(spent) * 1e3,
                fastest=min(spent) * 1e3, slowest=max(spent) * 1e3, steps=len(spent), floor=floor,
                equal_values=values, clock="device" if _is_on_cuda(self.model) else "host",
                split=split.milliseconds, kernels=split.kernels, launches=split.launches,
                kernels_a_layer=split.kernels_per_layer))
        return figures

    def _split_by_op(self, run: DecodeRun, seconds: float) -> StepSplit:
        where = f"{run.path.name}, m = {run.m}, context {run.context:,}"
        if not _is_on_cuda(self.model):
            clock = HostClock()
            run.run_step(traced(run.path, clock))
            clock.charge(time_by_op.LAST_OP)
            return clock.split()
        if seconds > MAX_PROFILED:
            self.left_out.append(f"{where}: no split by op, since a step of {seconds:.1f} s has "
                                 f"too many launches to profile")
            return StepSplit()
        plain = time_by_op.profile_run(run.run_step)
        marked = time_by_op.profile_run(lambda: run.run_step(traced(run.path, time_by_op.mark_op)))
        found = time_by_op.match_ops(time_by_op.device_events(plain),
                                     time_by_op.device_events(marked))
        if not found:
            self.left_out.append(f"{where}: no split by op, since the profiler saw no kernel")
        return time_by_op.split_by_op(found, time_by_op.count_launches(plain), self.model.config)

    def _time_prompt(self, path: Path) -> list[PrefillTime]:
        """Time one prompt in a single step, unless a shorter one predicts too long a time."""
        length, vocab = self.options.prefill, self.model.config.vocab
        tokens = [(7919 * i + 11) % vocab for i in range(length)]
        pool = self.model.new_pool(2, length)
        short = min(length, CHECKED_TOKENS)
        self._check_prompt(path, pool, tokens[:short])
        tried = min(time_prefill(self.model, path, pool, tokens[:short]) for _ in range(2))
        if tried * length / short > self.options.patience:
            self.left_out.append(f"{path.name}: no prompt of {length:,} tokens, which would take "
                                 f"about {tried * length / short:.0f} s")
            return []
        self.progress(f"a prompt of {length:,} tokens")
        spent = [time_prefill(self.model, path, pool, tokens) for _ in range(MIN_STEPS)]
        return [PrefillTime(path=path.name, tokens=length, seconds=median(spent), runs=MIN_STEPS,
                        fastest=min(spent), slowest=max(spent), equal_steps=short)]

    def _check_prompt(self, path: Path, pool: Pool, tokens: Sequence[int]) -> None:
        """Compare a prompt in one step with the same path's single steps, state included."""
        logits = path.prefill(self.model, pool, tokens, 0)
        for position, token in enumerate(tokens):
            single = path.step(self.model, pool, [token], Rows.decode([1], [position]))[0]
        where = f"after a prompt of {len(tokens)} tokens, {path.name}"
        check_equal(f"logits {where}", logits, single)
        for name, view in pool.slot(0).named(len(tokens)).items():
            check_equal(f"{name} {where}", view, pool.slot(1).named(len(tokens))[name])


def time_interleaved(runs: Sequence[DecodeRun], seconds: float) -> list[list[float]]:
    """Return the seconds of each run's steps; the runs take turns."""
    spent: list[list[float]] = [[] for _ in runs]
    for number in range(WARMUP_STEPS + MAX_STEPS):
        for run, times in zip(runs, spent, strict=True):
            times.append(_seconds(run.model, run.run_step))
        if number + 1 >= WARMUP_STEPS + MIN_STEPS and sum(map(sum, spent)) > seconds * len(runs):
            break
    return [times[WARMUP_STEPS:] for times in spent]


def time_prefill(model: Model, path: Path, pool: Pool, tokens: Sequence[int]) -> float:
    """Return the seconds that a cleared slot takes for a prompt in one step."""
    pool.slot(0).clear()
    return _seconds(model, lambda: path.prefill(model, pool, tokens, 0))


def _is_on_cuda(model: Model) -> bool:
    return model.device.startswith("cuda")


def _seconds(model: Model, run: Callable[[], object]) -> float:
    """Return the seconds of one run, from an idle device to an idle device."""
    def wait() -> None:
        if _is_on_cuda(model):
            torch.cuda.synchronize()

    wait()
    began = time.perf_counter()
    run()
    wait()
    return time.perf_counter() - began


def make_benchmark(file: FilePath, looped: Path, paths: Sequence[Path], *, ms: tuple[int, ...],
                   contexts: tuple[int, ...], prefill: int, tell: Callable[[str], None],
                   kv: str = "f32") -> StepBenchmark:
    """Return a benchmark of a file on the CUDA device, or on the host without one."""
    if prefill < 0:
        raise InputError(f"--prefill {prefill} is refused: pass 0 or more tokens")
    model = Model.load(file).with_kv(kv)
    longest = max(*contexts, prefill)
    if longest >= model.config.context:
        raise InputError(f"{longest:,} tokens do not fit the model's context of "
                         f"{model.config.context:,}")
    return _benchmark_here(model, looped, paths, TimingOptions(ms, contexts, prefill), tell)


def measure_for_receipt(looped: Path, path: Path, tell: Callable[[str], None]) -> StepTimes:
    """Measure steps of a random model of the 4B shape, as a receipt stores them."""
    from engine.make import make_model
    with tempfile.TemporaryDirectory(prefix="rowtwin-") as folder:
        tell("writing a random model of the 4B shape")
        model = Model.load(make_model(FilePath(folder, "4b.gguf"), "4b", "q4_k_m"))
        return _benchmark_here(model, looped, (path,), RECEIPT_OPTIONS, tell).run()


def _benchmark_here(model: Model, looped: Path, paths: Sequence[Path], options: TimingOptions,
                    tell: Callable[[str], None]) -> StepBenchmark:
    model = model.to("cuda") if torch.cuda.is_available() else model
    return StepBenchmark(model, looped, tuple(paths), options, measure_bandwidth(), tell)
