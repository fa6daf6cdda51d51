"""What P4's falsifiers attack with: awkward splits, bad steps, tied rows and kernel inputs."""

from __future__ import annotations

import itertools
import random
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engine import arithmetic, ops
from engine.encode import encode
from engine.model import Model
from engine.op_table import on_tier
from engine.path import Path, Rows
from engine.quantised import QuantisedActivations
from engine.weights import Weight
from falsifiers.judging.judge import Judge
from falsifiers.judging.poison import new_guarded

PINNED_FUNCTIONS = ("exp", "log1p", "sigmoid", "silu", "softplus")


def splits(which: str, length: int) -> list[tuple[int, ...]]:
    """Return ways to cut a prompt: `all` into one or two chunks, or a `few`, some in three."""
    if which == "all":
        return [(length,), *((a, length - a) for a in range(1, length))]
    draw = random.Random(length)
    a, b = sorted(draw.sample(range(2, length - 1), 2))
    return [(length,), (length - 1, 1), (length - 6, 6), (a, b - a, length - b)]


def expected_calls(model: Model) -> dict[str, int]:
    """Return how often a step runs each op without state, whatever its rows and tokens."""
    config = model.config
    gdn, attention = len(config.gdn_layers), len(config.attention_layers)
    joined = 2 * config.layers
    return {"embed": 1, "norm": joined + 2 * attention + 1, "add_norm": joined, "gated_norm": gdn,
            "rotate": 2 * attention, "silu_mul": config.layers}


def counting_path(path: Path, met: dict[str, list[int]], calls: Counter[str]) -> Path:
    """Return the path with every product noted by its matrix, and every op's calls counted."""
    def project(weight: Weight, x: Tensor, out: Tensor) -> None:
        met.setdefault(weight.name, []).append(len(x))
        path.project(weight, x, out)

    def counting(name: str) -> Callable[..., None]:
        def run(*args: Any) -> None:
            calls[name] += 1
            getattr(path, name)(*args)
        return run

    names = ("embed", "norm", "add_norm", "gated_norm", "rotate", "silu_mul")
    others: dict[str, Any] = {name: counting(name) for name in names}
    return replace(path, project=project, **others)


def kernel_path(path: Path, kinds: Collection[str]) -> Path:
    """Return the path with the kernels that a device would run, for Triton's interpreter.

    Products with matrices of other types than `kinds` stay as they are: the interpreter needs a
    tenth of a second for sixteen rows of a super-block.
    """
    def project(weight: Weight, x: Tensor, out: Tensor) -> None:
        own = path.project
        (on_tier(own, "interpret") if weight.kind in kinds else own)(weight, x, out)

    others: dict[str, Any] = {name: on_tier(getattr(path, name), "interpret")
                              for name in ("norm", "gated_norm", "silu_mul", "argmax")}
    return replace(path, project=project, **others)


def measure_decode_rates(path: Path, model: Model, steps: int = 20) -> dict[str, float]:
    """Return steps a second at one and at four rows: per-request decode, as evidence alone."""
    rates = {}
    for m in (1, 4):
        pool = model.new_pool(m, steps + 2)
        for step in range(steps + 1):
            if step == 1:  # the first compiles
                torch.cuda.synchronize()
                began = time.perf_counter()
            path.forward_batch_greedy(model, pool, [5] * m, Rows.decode(range(m), (step,) * m))
        torch.cuda.synchronize()
        rates[f"steps_a_second_m{m}"] = round(steps / (time.perf_counter() - began), 2)
    return {**rates, "per_request_m4_over_m1": round(rates["steps_a_second_m4"]
                                                     / rates["steps_a_second_m1"], 3)}


def count_host_waits(path: Path, model: Model, m: int = 4) -> int:
    """Return how often torch saw the host wait for the device in one step of m rows."""
    pool = model.new_pool(m, 4)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for step, mode in enumerate(("default", "warn")):  # the first compiles
            torch.cuda.set_sync_debug_mode(mode)
            path.step(model, pool, [5] * m, Rows.decode(range(m), (step,) * m))
        torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(one.message) for one in seen)


def tied_rows(vocab: int) -> Iterator[tuple[str, Tensor]]:
    """Yield logits f32[rows, vocab] by name, each row with a maximum that is easy to get wrong."""
    base = _random_values(vocab, 1)
    edges = [e for e in (1, 5, 31, 32, 127, 128, 255, 256, 511, 512, 1023, 1024, 4095, 4096,
                         vocab - 1) if e < vocab]
    tied = base.repeat(len(edges) + 1, 1)
    for row, pair in enumerate(itertools.pairwise([0, *edges])):
        tied[row, list(pair)] = 9.0
    tied[len(edges), [edges[1], edges[-1]]] = 9.0
    yield "tied at block edges", tied
    yield "all negative", -tied.abs() - 1.0
    zeros = (-base.abs() - 1.0).repeat(2, 1)
    zeros[0, [2, vocab // 2]] = torch.tensor([-0.0, 0.0])
    zeros[1, [2, vocab // 2]] = torch.tensor([0.0, -0.0])
    yield "zeros of both signs", zeros
    infinite = base.repeat(3, 1)
    infinite[0, vocab // 3:] = torch.inf
    infinite[1] = -torch.inf
    infinite[2] = torch.finfo(torch.float32).tiny / 8
    yield "infinite, and all one value", infinite


def space_rows(logits: Tensor, stride: int, device: str) -> Tensor:
    """Return the same rows, each `stride` values after the last, with infinity behind each."""
    m, vocab = logits.shape
    room = torch.empty((m - 1) * stride + vocab + 64, device=device)
    rows = room.as_strided((m, vocab + 64), (stride, 1)).fill_(torch.inf)[:, :vocab]
    return rows.copy_(logits)


def check_functions(judge: Judge, kernel: Callable[..., None], device: str) -> None:
    """Hold each pinned function to the engine's on 180,001 values, 4,096 patterns and the edges."""
    draw = torch.Generator().manual_seed(7)
    patterns = torch.randint(-2**31, 2**31 - 1, (4096,), generator=draw).to(torch.int32)
    edges = [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e-45, -1e-45, 87.0, -87.0, 88.0, 88.5]
    x = torch.cat([torch.tensor(edges), patterns.view(torch.float32),
                   (torch.arange(-90000, 90001).double() / 1000).float()])
    for name in PINNED_FUNCTIONS:
        given = torch.linspace(0, 1, 4096) if name == "log1p" else x
        out = new_guarded(len(given), device=device)
        # the interpreter is fast on wide programs, a compiler unrolls them
        kernel(name, given.to(device), out.inside, 65536 if device == "cpu" else 1024)
        judge.equal(name, out.inside, getattr(arithmetic, name)(given), rule="truth", finite=False)
        out.hold(judge, name)


def check_norm(judge: Judge, norm: Callable[..., None], device: str, n: int) -> None:
    """Hold a norm to the engine's on rows and on heads with a stride, NaN in one row and behind."""
    x = torch.full((3, 2, n + 50), torch.nan)
    x[:, :, :n] = (
        _random_values(6 * n, 2).view(3, 2, n) * torch.tensor([1e-3, 1.0, 1e4])[:, None, None]
    )
    x[1, 1, 3] = torch.nan
    weight = _random_values(n, 3)
    for name, rows in (("rows", x[:, 0, :n]), ("heads", x[:, :, :n])):
        want, out = torch.empty(rows.shape), new_guarded(*rows.shape, device=device)
        ops.norm(rows, weight, 1e-6, want)
        given = x.to(device)[:, 0, :n] if name == "rows" else x.to(device)[:, :, :n]
        norm(given, weight.to(device), 1e-6, out.inside)
        judge.equal("norm", out.inside, want, rule="truth", finite=False, inputs=name)
        out.hold(judge, "norm")


def check_add_norm(judge: Judge, add_norm: Callable[..., None], device: str, n: int) -> None:
    """Hold a residual sum and its norm to the engine's in rows of three sizes, NaN in one."""
    x, y = (_random_values(3 * n, seed).view(3, n) * torch.tensor([1e-3, 1.0, 1e4])[:, None]
            for seed in (8, 9))
    x[1, 3], y[2, 0], x[2, 0] = torch.nan, -0.0, -0.0
    weight, want = _random_values(n, 10), (torch.empty(3, n), torch.empty(3, n))
    outs = [new_guarded(3, n, device=device) for _ in range(2)]
    ops.add_norm(ops.norm, x, y, weight, 1e-6, *want)
    add_norm(x.to(device), y.to(device), weight.to(device), 1e-6, *(o.inside for o in outs))
    for name, out, right in zip(("sum", "norm"), outs, want, strict=True):
        judge.equal(name, out.inside, right, rule="truth", finite=False)
        out.hold(judge, name)


def check_quantised_reuse(judge: Judge, path: Path, device: str, m: int, n: int,
                 kinds: Sequence[str] = ("Q4_K", "Q6_K")) -> None:
    """Compare a product of an op's quantised result with the product of the result alone."""
    x, y, out, total = (
        _random_values(m * n, seed).view(m, n).to(device) for seed in (11, 12, 13, 14)
    )
    x[0, 5], x[m - 1, :256] = 1e30, 0.0
    weight, short = _random_values(n, 15).to(device), _random_values(128, 16).to(device)
    heads = [v.view(m, -1, 128) for v in (x, y, out)]
    factories: dict[str, Callable[[], Any]] = {
        "add_norm": lambda: path.fused.add_norm(x, y, weight, 1e-6, total, out),
        "silu_mul": lambda: path.silu_mul(x, y, out),
        "gated_norm": lambda: path.gated_norm(*heads[:2], short, 1e-6, heads[2])}
    for kind in kinds:
        raw = encode(kind, _random_values(48 * n, 17).view(48, n).numpy())
        matrix = Weight("w", kind, raw, device=device)
        for name, make in factories.items():
            products = [torch.empty(m, 48, device=device) for _ in range(2)]
            quantised = make()
            given = quantised if isinstance(quantised, QuantisedActivations) else out
            path.fused.project(matrix, given, products[0])
            path.fused.project(matrix, out.clone(), products[1])
            judge.equal(f"product of {name}", products[0], products[1], kind=kind)


def check_gated_norm(judge: Judge, gated_norm: Callable[..., None], device: str, n: int) -> None:
    """Hold the gated norm of n heads to the engine's in three rows; one head has NaN, one zeros."""
    x, z = (_random_values(3 * n * 128, seed).view(3, n, 128) * 20.0 for seed in (5, 6))
    x[1, 0, 5], x[2, n - 1] = torch.nan, 0.0
    weight, want, out = (
        _random_values(128, 7),
        torch.empty(3, n, 128),
        new_guarded(3, n, 128, device=device),
    )
    ops.gated_norm(x, z, weight, 1e-6, want)
    gated_norm(x.to(device), z.to(device), weight.to(device), 1e-6, out.inside)
    judge.equal("gated_norm", out.inside, want, rule="truth", finite=False)
    out.hold(judge, "gated_norm")


def check_silu_mul(judge: Judge, silu_mul: Callable[..., None], device: str, n: int) -> None:
    """Hold SILU(gate) * up to the engine's at several rows with poison behind each, and NaN."""
    gate, up = _random_values(6 * n, 4).view(2, 3, n) * 30.0
    gate[1, n // 2] = torch.nan
    want, out = torch.empty(3, n), new_guarded(3, n, device=device)
    ops.silu_mul(gate, up, want)
    gate, up = (torch.nn.functional.pad(x, (0, gap), value=torch.nan).to(device)[:, :n]
                for x, gap in ((gate, 9), (up, 5)))
    silu_mul(gate, up, out.inside)
    judge.equal("silu_mul", out.inside, want, rule="truth", finite=False)
    out.hold(judge, "silu_mul")


def _random_values(count: int, seed: int) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


