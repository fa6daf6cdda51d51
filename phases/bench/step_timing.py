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
from falsifiers.gate.benchmark_records import Prefill, Step, Steps
from phases.bench import time_by_op
from phases.bench.memory_floor import device_name, on_cuda, shape_of, sizes_of, wait
from phases.bench.step_parity import Right, Run, held
from phases.bench.time_by_op import HostClock, Split

WARM, LEAST, MOST = 2, 3, 30
"""Steps before the clock runs, and the least and the most that are timed."""
TOO_LONG = 0.3
"""Seconds of a step above which its hundred thousand launches are not profiled."""
PROMPT = 70
"""Tokens of a prompt that are at least held to single steps."""


@dataclass(frozen=True)
class Asked:
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
class Bench:
    """Models and paths under the clock; `run` is the whole measurement."""

    model: Model
    looped: Path
    """One sequence at a time by the engine's own ops: what every path is held to."""
    paths: tuple[Path, ...]
    asked: Asked
    bandwidth: float
    """Bytes a second."""
    tell: Callable[[str], None] = lambda line: None
    left_out: list[str] = field(default_factory=list)

    def run(self) -> Steps:
        """Measure every context and width; raise `NotEqual` at the first wrong bit."""
        oracle = self.model.to(self.model.device)  # its unpacked weights go with it
        self._unpack(oracle)
        right = {}
        for context in self.asked.contexts:
            self.tell(f"context {context:,}: the looped path on {self.model.device}")
            right[context] = Right.of(self.looped, oracle, context, MOST + 8, max(self.asked.ms))
        del oracle
        figures = [figure for context in self.asked.contexts for m in self.asked.ms
                   for figure in self._point(right[context], m, context)]
        prompts = [prompt for path in self.paths if self.asked.prefill
                   for prompt in self._prefill(path)]
        sizes = sizes_of(self.model)
        return Steps(device=device_name(self.model.device), torch=torch.__version__,
                     bandwidth_tb_s=self.bandwidth / 1e12, model=shape_of(self.model),
                     weight_bytes=sizes.weights, state_bytes=sizes.state, cache_bytes=sizes.cache,
                     figures=tuple(figures), prefill=tuple(prompts),
                     left_out=tuple(self.left_out))

    def _unpack(self, oracle: Model) -> None:
        """Let the looped path unpack its weights, several matrices at a time."""
        self.tell("the looped path unpacks its weights")
        with ThreadPoolExecutor() as several:
            list(several.map(lambda w: w.product(torch.zeros(1, w.k, device=oracle.device)),
                             oracle.weights.matrices()))

    def _point(self, right: Right, m: int, context: int) -> list[Step]:
        runs = [Run(self.model, path, right.pool_of(self.model, m), m, context)
                for path in self.paths]
        equal = [right.hold(run) for run in runs]
        self.tell(f"m = {m}, context {context:,}: {equal[0]:,} values equal; timing")
        times = interleaved(runs, self.asked.seconds)
        sizes, figures = sizes_of(self.model), []
        floor = (sizes.weights + m * (2 * sizes.state + (context + 1) * sizes.cache)
                 ) / self.bandwidth * 1e3
        for run, values, spent in zip(runs, equal, times, strict=True):
            split = self._split(run, median(spent))
            figures.append(Step(
                path=run.path.name, m=m, context=context, milliseconds=median(spent) * 1e3,
                fastest=min(spent) * 1e3, slowest=max(spent) * 1e3, steps=len(spent), floor=floor,
                equal_values=values, clock="device" if on_cuda(self.model) else "host",
                split=split.milliseconds, kernels=split.kernels, launches=split.launches,
                kernels_a_layer=split.a_layer))
        return figures

    def _split(self, run: Run, seconds: float) -> Split:
        where = f"{run.path.name}, m = {run.m}, context {run.context:,}"
        if not on_cuda(self.model):
            clock = HostClock()
            run.once(traced(run.path, clock))
            clock.end(time_by_op.LAST)
            return clock.split()
        if seconds > TOO_LONG:
            self.left_out.append(f"{where}: no split by op, since a step of {seconds:.1f} s has "
                                 f"too many launches to profile")
            return Split()
        plain = time_by_op.profiled(run.once)
        marked = time_by_op.profiled(lambda: run.once(traced(run.path, time_by_op.mark)))
        found = time_by_op.matched(time_by_op.ran(plain), time_by_op.ran(marked))
        if not found:
            self.left_out.append(f"{where}: no split by op, since the profiler saw no kernel")
        return time_by_op.split_of(found, time_by_op.calls(plain), self.model.config)

    def _prefill(self, path: Path) -> list[Prefill]:
        """Time one prompt given whole, if a shorter one says that it will not take too long."""
        length, vocab = self.asked.prefill, self.model.config.vocab
        tokens = [(7919 * i + 11) % vocab for i in range(length)]
        pool = self.model.new_pool(2, length)
        short = min(length, PROMPT)
        self._hold_prompt(path, pool, tokens[:short])
        tried = min(given(self.model, path, pool, tokens[:short]) for _ in range(2))
        if tried * length / short > self.asked.patience:
            self.left_out.append(f"{path.name}: no prompt of {length:,} tokens, which would take "
                                 f"about {tried * length / short:.0f} s")
            return []
        self.tell(f"a prompt of {length:,} tokens")
        spent = [given(self.model, path, pool, tokens) for _ in range(LEAST)]
        return [Prefill(path=path.name, tokens=length, seconds=median(spent), runs=LEAST,
                        fastest=min(spent), slowest=max(spent), equal_steps=short)]

    def _hold_prompt(self, path: Path, pool: Pool, tokens: Sequence[int]) -> None:
        """Hold a prompt given whole to the same path's single steps, state included."""
        whole = path.prefill(self.model, pool, tokens, 0)
        for position, token in enumerate(tokens):
            single = path.step(self.model, pool, [token], Rows.decode([1], [position]))[0]
        where = f"after a prompt of {len(tokens)} tokens, {path.name}"
        held(f"logits {where}", whole, single)
        for name, view in pool.slot(0).named(len(tokens)).items():
            held(f"{name} {where}", view, pool.slot(1).named(len(tokens))[name])


def interleaved(runs: Sequence[Run], seconds: float) -> list[list[float]]:
    """Return the seconds of each run's steps, the runs taking turns."""
    spent: list[list[float]] = [[] for _ in runs]
    for number in range(WARM + MOST):
        for run, mine in zip(runs, spent, strict=True):
            wait(run.model)
            began = time.perf_counter()
            run.once()
            wait(run.model)
            mine.append(time.perf_counter() - began)
        if number + 1 >= WARM + LEAST and sum(map(sum, spent)) > seconds * len(runs):
            break
    return [mine[WARM:] for mine in spent]


def given(model: Model, path: Path, pool: Pool, tokens: Sequence[int]) -> float:
    """Return the seconds that a fresh slot takes for a prompt given whole."""
    pool.slot(0).clear()
    wait(model)
    began = time.perf_counter()
    path.prefill(model, pool, tokens, 0)
    wait(model)
    return time.perf_counter() - began
