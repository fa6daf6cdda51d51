"""How long a whole decode step takes, timed only after the same step gave the right bits.

The step is held to the looped path, one sequence at a time on the same device, in logits and in
every value of state. Then steps follow one another, each with the tokens that the last one chose,
and those of two paths take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import median

import torch

from engine.model import Model
from engine.path import Path, Rows, traced
from engine.state import Pool
from falsifiers.gate.benchmark_records import PrefillTime, StepTime, StepTimes
from phases.bench import time_by_op
from phases.bench.memory_floor import (
    describe_shape,
    device_name,
    is_on_cuda,
    step_bytes,
    wait_until_idle,
)
from phases.bench.step_parity import DecodeRun, ExpectedStep, check_equal
from phases.bench.time_by_op import HostClock, StepSplit

WARMUP_STEPS, MIN_STEPS, MAX_STEPS = 2, 3, 30
"""Steps before the clock runs, and the least and the most that are timed."""
MAX_PROFILED = 0.3
"""Seconds of a step above which its hundred thousand launches are not profiled."""
CHECKED_TOKENS = 70
"""Tokens of a prompt that are at least held to single steps."""


@dataclass(frozen=True)
class TimingOptions:
    """What is to be measured."""

    ms: tuple[int, ...]
    contexts: tuple[int, ...]
    prefill: int = 0
    """Tokens of a prompt; 0 measures none."""
    seconds: float = 2.0
    """Time for the steps of one width and context, beyond the least number."""
    patience: float = 30.0
    """The most that one prompt may take; a longer one is left out and told."""


@dataclass
class StepBenchmark:
    """Models and paths under the clock; `run` is the whole measurement."""

    model: Model
    looped: Path
    """One sequence at a time by the engine's own ops: what every path is held to."""
    paths: tuple[Path, ...]
    options: TimingOptions
    bandwidth: float
    """Bytes a second."""
    progress: Callable[[str], None] = lambda line: None
    left_out: list[str] = field(default_factory=list)

    def run(self) -> StepTimes:
        """Measure every context and width; raise `NotEqual` at the first wrong bit."""
        oracle = self.model.to(self.model.device)  # its unpacked weights go with it
        self._unpack(oracle)
        right = {}
        for context in self.options.contexts:
            self.progress(f"context {context:,}: the looped path on {self.model.device}")
            right[context] = ExpectedStep.compute(
                self.looped, oracle, context, MAX_STEPS + 8, max(self.options.ms)
            )
        del oracle
        figures = [figure for context in self.options.contexts for m in self.options.ms
                   for figure in self._measure_point(right[context], m, context)]
        prompts = [prompt for path in self.paths if self.options.prefill
                   for prompt in self._time_prompt(path)]
        sizes = step_bytes(self.model)
        return StepTimes(device=device_name(self.model.device), torch=torch.__version__,
                     bandwidth_tb_s=self.bandwidth / 1e12, model=describe_shape(self.model),
                     weight_bytes=sizes.weights, state_bytes=sizes.state, cache_bytes=sizes.cache,
                     figures=tuple(figures), prefill=tuple(prompts),
                     left_out=tuple(self.left_out))

    def _unpack(self, oracle: Model) -> None:
        """Let the looped path unpack its weights, several matrices at a time."""
        self.progress("the looped path unpacks its weights")
        with ThreadPoolExecutor() as several:
            list(several.map(lambda w: w.product(torch.zeros(1, w.k, device=oracle.device)),
                             oracle.weights.matrices()))

    def _measure_point(self, right: ExpectedStep, m: int, context: int) -> list[StepTime]:
        runs = [DecodeRun(self.model, path, right.make_pool(self.model, m), m, context)
                for path in self.paths]
        equal = [right.check_step(run) for run in runs]
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
                equal_values=values, clock="device" if is_on_cuda(self.model) else "host",
                split=split.milliseconds, kernels=split.kernels, launches=split.launches,
                kernels_a_layer=split.kernels_per_layer))
        return figures

    def _split_by_op(self, run: DecodeRun, seconds: float) -> StepSplit:
        where = f"{run.path.name}, m = {run.m}, context {run.context:,}"
        if not is_on_cuda(self.model):
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
        found = time_by_op.match_ops(
            time_by_op.device_events(plain), time_by_op.device_events(marked)
        )
        if not found:
            self.left_out.append(f"{where}: no split by op, since the profiler saw no kernel")
        return time_by_op.split_by_op(found, time_by_op.count_launches(plain), self.model.config)

    def _time_prompt(self, path: Path) -> list[PrefillTime]:
        """Time one prompt given whole, if a shorter one says that it will not take too long."""
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
        """Hold a prompt given whole to the same path's single steps, state included."""
        whole = path.prefill(self.model, pool, tokens, 0)
        for position, token in enumerate(tokens):
            single = path.step(self.model, pool, [token], Rows.decode([1], [position]))[0]
        where = f"after a prompt of {len(tokens)} tokens, {path.name}"
        check_equal(f"logits {where}", whole, single)
        for name, view in pool.slot(0).named(len(tokens)).items():
            check_equal(f"{name} {where}", view, pool.slot(1).named(len(tokens))[name])


def time_interleaved(runs: Sequence[DecodeRun], seconds: float) -> list[list[float]]:
    """Return the seconds of each run's steps, the runs taking turns."""
    spent: list[list[float]] = [[] for _ in runs]
    for number in range(WARMUP_STEPS + MAX_STEPS):
        for run, mine in zip(runs, spent, strict=True):
            wait_until_idle(run.model)
            began = time.perf_counter()
            run.run_step()
            wait_until_idle(run.model)
            mine.append(time.perf_counter() - began)
        if number + 1 >= WARMUP_STEPS + MIN_STEPS and sum(map(sum, spent)) > seconds * len(runs):
            break
    return [mine[WARMUP_STEPS:] for mine in spent]


def time_prefill(model: Model, path: Path, pool: Pool, tokens: Sequence[int]) -> float:
    """Return the seconds that a fresh slot takes for a prompt given whole."""
    pool.slot(0).clear()
    wait_until_idle(model)
    began = time.perf_counter()
    path.prefill(model, pool, tokens, 0)
    wait_until_idle(model)
    return time.perf_counter() - began
