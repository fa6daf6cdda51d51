"""The user's own model: correct models pass, wrong ones fail, and the time limit holds."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from falsifiers.instruments import scalar_reference
from reports.evidence import UserModelRun
from reports.user_model import UserModel, judge_model
from reports.user_model_claims import MAX_TOKENS, plan_streams

VOCAB = 11
Step = Callable[[Tensor, Sequence[int], Any], Tensor]


@dataclass(frozen=True)
class Rows:
    """Slots, positions and counts, as a path's rows have them."""

    slots: tuple[int, ...]
    positions: tuple[int, ...]
    counts: tuple[int, ...]


def advance(state: Tensor, token: int) -> Tensor:
    """Advance a fake model: a state f32[vocab] and its logits."""
    state[token % VOCAB] += 1 + state.sum() / 7
    return torch.sin(state * 3)


def run_rows(pool: Tensor, tokens: Sequence[int], rows: Rows) -> Tensor:
    """Run each row's tokens by itself, as a correct engine does."""
    out, left = [], list(tokens)
    for slot, count in zip(rows.slots, rows.counts, strict=True):
        for _ in range(count):
            logits = advance(pool[slot], left.pop(0))
        out.append(logits)
    return torch.stack(out)


class Engine:
    """A fake engine of one step function."""

    def __init__(self, step: Step = run_rows, seconds: float = 0.0) -> None:
        self.run, self.seconds = step, seconds

    def new_pool(self, slots: int, capacity: int) -> Tensor:
        return torch.zeros(slots, VOCAB)

    def step(self, tokens: Sequence[int], rows: Rows, pool: Tensor) -> Tensor:
        time.sleep(self.seconds)
        return self.run(pool, tokens, rows)

    def read_state(self, pool: Tensor, slot: int) -> dict[str, Tensor]:
        return {"s": pool[slot].clone()}

    def write_state(self, pool: Tensor, slot: int, tensors: dict[str, Tensor]) -> None:
        pool[slot].copy_(tensors["s"])

    def clear_slot(self, pool: Tensor, slot: int) -> None:
        pool[slot].zero_()


@dataclass(frozen=True)
class Matrix:
    """A fake matrix of a file."""

    name: str
    kind: str
    n: int
    k: int
    raw: np.ndarray
    arithmetic: str = "ordered"


def matrix(name: str, n: int = 5, k: int = 32) -> Matrix:
    values = np.linspace(-1, 1, n * k, dtype=np.float32).reshape(n, k)
    return Matrix(name, "F32", n, k, values.view(np.uint8))


def product(weight: Matrix, x: Tensor, out: Tensor) -> None:
    """Work a product row by row in the dull words."""
    for i, row in enumerate(x.numpy()):
        for j in range(weight.n):
            out[i, j] = float(
                scalar_reference.ordered_row(weight.kind, weight.raw[j].tobytes(), row)
            )


def oracle(tokens: Sequence[int]) -> Iterator[Tensor]:
    state = torch.zeros(VOCAB)
    for token in tokens:
        yield advance(state, token)


RIGHT_MODEL = UserModel(name="my <file>.gguf", size=123, shape="1 layer", vocab=VOCAB, path="p1",
               engine=Engine(), rows=Rows, oracle=oracle, project=product, matrices=[
                   matrix("blk.0.attn_qkv.weight"), matrix("blk.1.attn_qkv.weight"),
                   matrix("output.weight")])


def run_judge(opened: UserModel, minutes: float = 1) -> tuple[UserModelRun, list[str]]:
    lines: list[str] = []
    return judge_model(opened, minutes, "in-tree", lines.append, lambda what: None), lines


def outcomes(run: UserModelRun) -> dict[str, str]:
    return {verdict.falsifier: verdict.outcome for verdict in reversed(run.verdicts)}


def test_right_model_passes_every_attack_after_an_estimate() -> None:
    run, lines = run_judge(RIGHT_MODEL)
    assert (run.result.verdict, run.result.passed) == ("PASS", 4)
    assert "123 bytes, 3 matrices of type F32" in lines[0]
    assert "one token takes" in lines[1]
    assert "2 matrices sampled, within --minutes 1" in lines[1]
    assert [verdict.evidence["rows_a_step"] for verdict in run.verdicts
            if verdict.falsifier == "streams_equal_solo"] == [3]
    assert run.verdicts[0].repro == "rowtwin report --model 'my <file>.gguf' --minutes 1"


def test_what_was_not_sampled_is_named() -> None:
    run, _ = run_judge(RIGHT_MODEL)
    assert any(line.startswith("1 of 3 matrices") for line in run.left_out)
    assert any(f"longer than {MAX_TOKENS} tokens" in line for line in run.left_out)


def rolled(pool: Tensor, tokens: Sequence[int], rows: Rows) -> Tensor:
    return run_rows(pool, tokens, rows).roll(1, 0)


def writes_idle(pool: Tensor, tokens: Sequence[int], rows: Rows) -> Tensor:
    logits = run_rows(pool, tokens, rows)
    if len(rows.slots) > 1:
        pool[1] = pool[rows.slots[0]]
    return logits


def reads_idle(pool: Tensor, tokens: Sequence[int], rows: Rows) -> Tensor:
    return run_rows(pool, tokens, rows) + (0 * pool[1] if len(pool) > 1 else 0)


@pytest.mark.parametrize("wrong", [rolled, writes_idle, reads_idle])
def test_wrong_step_fails_in_a_batch_alone(wrong: Step) -> None:
    run, _ = run_judge(replace(RIGHT_MODEL, engine=Engine(wrong)))
    assert outcomes(run) == {"alone_equals_oracle": "passed", "streams_equal_solo": "failed",
                             "products_equal_integer_arithmetic": "passed"}
    assert run.result.verdict == "FAIL"


def test_oracle_of_other_bits_fails_the_truth_rule() -> None:
    def other(tokens: Sequence[int]) -> Iterator[Tensor]:
        yield from (logits * 1.0000002 for logits in oracle(tokens))

    finding = run_judge(replace(RIGHT_MODEL, oracle=other))[0].verdicts[0].finding
    assert finding is not None
    assert (finding.rule, finding.rung) == ("truth", "bits")


def last_row_off(weight: Matrix, x: Tensor, out: Tensor) -> None:
    product(weight, x, out)
    out[2, -1] += 1e-3


def other_above_one(weight: Matrix, x: Tensor, out: Tensor) -> None:
    product(weight, x, out)
    if len(x) > 1:
        out[1, 1] *= 1.001  # a row that is not worked by hand


@pytest.mark.parametrize(("wrong", "rule"), [(last_row_off, "truth"), (other_above_one, "twin")])
def test_wrong_product_fails_by_its_rule(wrong: Any, rule: str) -> None:
    run, _ = run_judge(replace(RIGHT_MODEL, project=wrong))
    findings = [v.finding for v in run.verdicts if v.finding is not None]
    assert [finding.rule for finding in findings] == [rule, rule]


def test_crash_is_an_error_and_the_rest_is_judged() -> None:
    def crash(pool: Tensor, tokens: Sequence[int], rows: Rows) -> Tensor:
        raise IndexError("row 3")

    run, _ = run_judge(replace(RIGHT_MODEL, engine=Engine(crash)))
    assert outcomes(run)["streams_equal_solo"] == "error"
    assert outcomes(run)["products_equal_integer_arithmetic"] == "passed"
    assert run.result.verdict == "UNMEASURABLE"


def test_time_that_runs_out_is_told_and_never_a_pass_of_what_was_not_run() -> None:
    run, _ = run_judge(replace(RIGHT_MODEL, engine=Engine(seconds=0.02)), minutes=0.001)
    assert any("the time was used up" in line for line in run.left_out)
    assert "passed" not in {v.outcome for v in run.verdicts
                            if v.falsifier == "streams_equal_solo"}
    assert sum(v.falsifier == "products_equal_integer_arithmetic" for v in run.verdicts) == 0


def test_slow_first_token_is_not_spent_twice() -> None:
    begun: list[int] = []

    def slow(tokens: Sequence[int]) -> Iterator[Tensor]:
        begun.append(len(tokens))
        time.sleep(0.02)
        yield from oracle(tokens)

    _, lines = run_judge(replace(RIGHT_MODEL, oracle=slow), minutes=0.0006)
    assert begun[1:2] != [1]  # what follows is a stream, not a second measurement
    took, first = re.findall(r"(\d+\.\d+) s\b", lines[1])[:2]
    assert took == first != "0.00"  # one token was measured, and that was the first


@pytest.mark.parametrize(
    ("seconds", "single", "batch"),
    [
        (0.001, MAX_TOKENS, MAX_TOKENS),
        (1.0, 6, 6),
        (2.0, 3, 3),
        (3.0, 7, 0),
        (15.0, 1, 0),
        (40.0, 0, 0),
    ],
)
def test_streams_are_as_long_as_the_time_allows(seconds: float, single: int, batch: int) -> None:
    plan = plan_streams(seconds, left=60, minutes=1)
    assert (plan.single, plan.batch) == (single, batch)
    assert plan.tokens * seconds <= 0.7 * 60
    assert bool(plan.left_out) == (batch == 0)
