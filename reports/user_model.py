"""Judges the user's own model file: streams at m in {1, 3}, and sampled tensors.

This module does not import the engine; `rowtwin` passes a `UserModel`. The time is limited, and
skipped parts are listed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from contracts.schema import Case
from falsifiers.judging.batch_driver import BatchDriver, MakeRows, make_prompt, run_solo
from falsifiers.judging.errors import Unmeasurable
from falsifiers.judging.judge import Judge
from falsifiers.judging.verdict import Verdict, make_verdict
from reports.evidence import UserModelRun
from reports.sampled_products import ProductSampler
from reports.user_model_claims import (
    FALSIFIERS,
    FIRST_TOKEN_SHARE,
    MAX_TOKENS,
    StreamPlan,
    plan_streams,
)

Printer = Callable[[str], None]


@dataclass(frozen=True)
class UserModel:
    """An open model file, and the functions to judge it."""

    name: str
    """The file as typed."""
    size: int
    """Bytes of the file."""
    shape: str
    """Layers, widths and vocabulary in words."""
    vocab: int
    path: str
    """The name of the path under test."""
    engine: Any
    """An engine candidate over that path."""
    rows: MakeRows
    oracle: Callable[[Sequence[int]], Iterator[Tensor]]
    """Yields forward_single's logits f32[vocab] after each token, from a fresh state."""
    project: Callable[[Any, Tensor, Tensor], None]
    """The path's product: W[N, K], x f32[t, K] and out f32[t, N]."""
    matrices: Sequence[Any]
    """Every matrix of the file: name, kind, n, k, raw and arithmetic."""


@dataclass
class Clock:
    """A time limit, in seconds since the start."""

    limit: float
    started: float = field(default_factory=time.perf_counter)

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.started

    @property
    def expired(self) -> bool:
        """Whether the limit has passed."""
        return self.elapsed >= self.limit


def judge_model(opened: UserModel, minutes: float, subject: str, say: Printer,
                show: Printer) -> UserModelRun:
    """Judge a model file within `minutes`; `say` prints a line, `show` shows progress."""
    run = _ModelJudge(opened, Clock(60 * minutes), minutes, subject, show)
    types = sorted({weight.kind for weight in opened.matrices})
    weights = sum(weight.n * weight.k for weight in opened.matrices)
    say(f"{opened.name}: {opened.size:,} bytes, {len(opened.matrices)} matrices of type "
        f"{', '.join(types)}; unpacked they take {2 * weights / 2**30:.1f} GiB of memory or more")
    show("one token, to measure")
    first, seconds = run.time_tokens()
    sampler = ProductSampler(opened.matrices, opened.project)
    planned = plan_streams(seconds, max(0.0, run.clock.limit - run.clock.elapsed), minutes)
    about = seconds * planned.tokens + sampler.estimated_seconds
    say(f"one token takes {seconds:.2f} s (the first took {first:.2f} s), so this takes about "
        f"{min(about, run.clock.limit):.0f} s: {planned.tokens} tokens through the model and "
        f"{len(sampler.selection)} matrices sampled, within --minutes {minutes:g}")
    run.judge_streams(planned)
    run.judge_products(sampler)
    facts = {"file": opened.name, "size": f"{opened.size:,} bytes", "shape": opened.shape,
             "types": ", ".join(types), "path under test": opened.path,
             "time": f"{run.clock.elapsed:.0f} s of {run.clock.limit:.0f} s allowed"}
    return UserModelRun(opened.name, facts, FALSIFIERS, tuple(run.cases), tuple(run.verdicts),
                        tuple(run.left_out))


class _ModelJudge:
    """The cases judged so far, and what was left out."""

    def __init__(self, opened: UserModel, clock: Clock, minutes: float, subject: str,
                 show: Printer) -> None:
        self.opened, self.clock, self.subject, self.progress = opened, clock, subject, show
        self.minutes = minutes
        self.cases: list[Case] = []
        self.verdicts: list[Verdict] = []
        self.left_out: list[str] = []

    def time_tokens(self) -> tuple[float, float]:
        """Return the seconds of the first token, which unpacks weights, and of a second.

        If the first takes more than `FIRST_TOKEN_SHARE` of the time, both are equal.
        """
        seconds: list[float] = []
        while not seconds or (len(seconds) < 2 and
                              self.clock.elapsed < FIRST_TOKEN_SHARE * self.clock.limit):
            started = time.perf_counter()
            next(self.opened.oracle([0]))
            seconds.append(time.perf_counter() - started)
        return seconds[0], seconds[-1]

    def judge_case(self, falsifier: str, name: str, attack: Callable[[Judge], None]) -> None:
        """Run one attack and store its verdict."""
        case = Case(phase="model", falsifier=falsifier, tier="cpu", name=name, given={},
                    quick=True, must_claim=False)
        self.progress(f"{falsifier} {name}")
        judge, error, started = Judge(case), None, time.perf_counter()
        try:
            attack(judge)
        except Exception as caught:
            error = caught
        self.cases.append(case)
        quoted = "'" + self.opened.name.replace("'", "'\\''") + "'"
        self.verdicts.append(make_verdict(
            case, error, judge, subject=self.subject, seconds=time.perf_counter() - started,
            repro=f"rowtwin report --model {quoted} --minutes {self.minutes:g}"))

    def judge_streams(self, planned: StreamPlan) -> None:
        """Compare one stream with the oracle, then a batch of three with their solo streams."""
        self.left_out += planned.left_out
        if planned.single:
            self.judge_case("alone_equals_oracle", f"m1-{planned.single}-tokens",
                            lambda judge: self._judge_single(judge, planned.single))
        if planned.batch:
            self.judge_case("streams_equal_solo", f"m3-{planned.batch}-tokens",
                            lambda judge: self._judge_batch(judge, planned.batch))

    def _judge_single(self, judge: Judge, length: int) -> None:
        tokens = make_prompt(0, length, self.opened.vocab)
        stream = run_solo(self.opened.engine, self.opened.rows, tokens, 0, length)
        for step, want in enumerate(self.opened.oracle(tokens)):
            judge.equal("logits", stream.logits[step], want, rule="truth", step=step)
            self.progress(f"m = 1, token {step + 1} of {length}")
            if self.clock.expired and step + 1 < length:
                self.left_out.append(f"m = 1: stopped after {step + 1} of {length} tokens, as "
                                     f"the time was used up")
                break
        judge.engaged(tokens=step + 1)

    def _judge_batch(self, judge: Judge, length: int) -> None:
        opened, slots = self.opened, (2, 0, 3)
        batch = BatchDriver(opened.engine, opened.rows, judge, slots=4, capacity=length)
        if hasattr(opened.engine, "write_state"):
            batch.poison(1)  # a slot that no step uses
        for number, slot in enumerate(slots):
            self.progress(f"m = 3, sequence {number + 1} by itself")
            prompt = make_prompt(number, length - number, opened.vocab)
            batch.join(slot, run_solo(opened.engine, opened.rows, prompt, 0, length))
            if self.clock.expired:
                raise Unmeasurable("the time was used up before a step of three rows ran")
        batch.step(slots, (3, 2, 1))  # ragged chunks; then all rows have equal lengths left
        while batch.fed[slots[0]] < length and not self.clock.expired:
            self.progress(f"m = 3, step {batch.step_number + 1} of {length - 2}")
            batch.step(slots if batch.step_number % 2 else slots[::-1])
        if batch.fed[slots[0]] < length:
            self.left_out.append(f"m = 3: stopped after {batch.step_number} of {length - 2} steps, "
                                 f"as the time was used up")
        judge.engaged(rows_a_step=batch.widest, steps=batch.step_number)

    def judge_products(self, sampler: ProductSampler) -> None:
        """Judge the sampled matrices' products while there is time."""
        done = 0
        for weight in sampler.selection:
            if self.clock.expired:
                break
            self.judge_case("products_equal_integer_arithmetic", weight.name,
                            partial(sampler.check_product, weight))
            done += 1
        if done < len(sampler.selection):
            names = ", ".join(weight.name for weight in sampler.selection[done:])
            self.left_out.append(f"matrices, as the time was used up: {names}")
        total = len(self.opened.matrices)
        self.left_out += [
            f"{total - len(sampler.selection)} of {total} matrices, since one of each role and "
            f"type is chosen, and all but {sampler.rows} rows of the chosen ones",
            f"sequences longer than {MAX_TOKENS} tokens, and widths other than 1 and 3: the "
            f"phases' own cases go further on small models"]
