"""Single ops of a step: each row against the row by itself, and against the engine.

For an op that stands before a program in another language, whose files hold one call each.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from contracts.schema import Case
from engine import ops
from engine.encode import encode
from engine.path import Path, reference
from engine.weights import EXACT, Weight
from falsifiers.judging.judge import Judge

OpRunner = Callable[[Path, list[int]], dict[str, Tensor]]
"""Runs an op of a path on some of the drawn rows, in that order; its outputs, a row first."""
VOCAB = 64
"""Rows of an embedding."""


def check_twin(judge: Judge, path: Path, case: Case, arithmetic: str = EXACT) -> None:
    """Hold every row of calls of several rows, in a drawn order, to a call of its own (twin)."""
    widths = case["m"]
    run, alone = build_runner(case, max(widths), arithmetic), {}
    for m in widths:
        order = random.Random(m).sample(range(max(widths)), m)
        got = run(path, order)
        for at, row in enumerate(order):
            if row not in alone:
                alone[row] = run(path, [row])
            for name, want in alone[row].items():
                judge.equal(name, got[name][at], want[0], finite=False, m=m, row=at)
    judge.engaged(rows_a_call=max(widths))


def check_truth(judge: Judge, path: Path, case: Case, arithmetic: str = EXACT) -> None:
    """Hold a call of three rows to the engine's (truth)."""
    run = build_runner(case, 3, arithmetic)
    got, want = (run(p, [2, 0, 1]) for p in (path, reference()))
    for name, right in want.items():
        judge.equal(name, got[name], right, rule="truth", finite=False)


def build_runner(case: Case, rows: int, arithmetic: str) -> OpRunner:
    """Return what runs a case's op on drawn rows, of which the second holds NaN and the third 0."""
    n = case["n"]
    x, y = (_draw_rows(rows, n, seed) for seed in (21, 22))
    if rows > 2:
        x[1, n // 2], x[2] = torch.nan, 0.0
    return {
        "norm": _norm_runner,
        "add_norm": _add_norm_runner,
        "gated_norm": _gated_norm_runner,
        "silu_mul": _silu_mul_runner,
        "argmax": _argmax_runner,
        "embed": _embed_runner,
        "project": _project_runner,
    }[case["op"]](x, y, case.given.get("kind", ""), arithmetic)


def _norm_runner(x: Tensor, y: Tensor, *_: Any) -> OpRunner:
    return lambda path, at: _run_into_new(
        "norm", x[at], lambda out: path.norm(x[at], y[0], 1e-6, out)
    )


def _add_norm_runner(x: Tensor, y: Tensor, *_: Any) -> OpRunner:
    weight = _draw_rows(1, x.shape[1], 23)[0]

    def run(path: Path, at: list[int]) -> dict[str, Tensor]:
        total = torch.full_like(x[at], torch.nan)
        result = _run_into_new(
            "norm",
            x[at],
            lambda out: path.fused.add_norm(x[at], y[at], weight, 1e-6, total, out),
        )
        return {"sum": total, **result}

    return run


def _gated_norm_runner(x: Tensor, y: Tensor, *_: Any) -> OpRunner:
    x, y, weight = x.unflatten(1, (-1, 128)), y.unflatten(1, (-1, 128)), _draw_rows(1, 128, 23)[0]
    return lambda path, at: _run_into_new("gated_norm", x[at], lambda out: path.gated_norm(
        x[at], y[at], weight, 1e-6, out))


def _silu_mul_runner(x: Tensor, y: Tensor, *_: Any) -> OpRunner:
    return lambda path, at: _run_into_new(
        "silu_mul", x[at], lambda out: path.silu_mul(x[at], y[at], out)
    )


def _argmax_runner(x: Tensor, y: Tensor, *_: Any) -> OpRunner:
    for row, values in enumerate(y):  # a tie in each, in another place
        values[[row, x.shape[1] - 1 - row]] = 99.0

    def run(path: Path, at: list[int]) -> dict[str, Tensor]:
        out = torch.full((len(at),), -7)
        path.argmax(y[at], out)
        return {"argmax": out}

    return run


def _embed_runner(x: Tensor, y: Tensor, kind: str, arithmetic: str) -> OpRunner:
    weight = _draw_weight(kind, VOCAB, x.shape[1], arithmetic)
    tokens = [7 * row % VOCAB for row in range(len(x))]
    return lambda path, at: _run_into_new("embed", x[at], lambda out: path.embed(
        weight, [tokens[row] for row in at], out))


def _project_runner(x: Tensor, y: Tensor, kind: str, arithmetic: str) -> OpRunner:
    weight = _draw_weight(kind, 17, x.shape[1], arithmetic)
    return lambda path, at: _run_into_new("project", x.new_empty(len(at), weight.n),
                                  lambda out: path.project(weight, x[at], out))


def _run_into_new(name: str, like: Tensor, run: Callable[[Tensor], None]) -> dict[str, Tensor]:
    out = torch.full_like(like, torch.nan)
    run(out)
    return {name: out}


def _draw_weight(kind: str, n: int, k: int, arithmetic: str) -> Weight:
    raw = encode(kind, _draw_rows(n, k, 24).numpy())
    return Weight("drawn", kind, raw, arithmetic)


def _draw_rows(rows: int, n: int, seed: int) -> Tensor:
    return torch.randn(rows, n, generator=torch.Generator().manual_seed(seed)) * 3.0


def answer_op_call(call: Any) -> dict[str, Tensor]:
    """Answer a call of an op of rows as the engine does."""
    given = dict(call.inputs)
    outs = {name: torch.empty(shape) for name, shape in call.outputs.items()}
    if call.op == "argmax":
        chosen = torch.empty(outs["out"].shape, dtype=torch.int64)
        ops.argmax(given["logits"], chosen, refuse=False)
        return {"out": chosen.float()}
    if "weights" in given:
        weight = Weight(call.name, call.facts["type"], given["weights"].numpy())
        result = weight.rows(given["tokens"].tolist()) if call.op == "embed" else \
            weight.product(given["x"])
        return {"out": result}
    eps = [float(given.pop("eps"))] if "eps" in given else []
    first = [ops.norm] if call.op == "add_norm" else []
    getattr(ops, call.op)(*first, *given.values(), *eps, *outs.values())
    return outs
