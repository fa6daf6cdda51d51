"""Inputs and checks of P6's falsifiers: rows, pads, cuts, a two-pass softmax, wide strides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from contracts.schema import Case
from engine import ops
from engine.encode import encode
from engine.path import Path
from engine.quantised import QuantisedActivations
from engine.rope import rope_table
from engine.weights import Weight
from falsifiers.judging.errors import Unmeasurable
from falsifiers.judging.judge import Judge
from falsifiers.judging.poison import Guarded, new_guarded
from phases.case_setup import own_budget
from phases.p6_batched_attention.data import DIM, Row, draw_sequence
from phases.p6_batched_attention.harness import GuardedCall, Harness, Layout


def build_rows(case: Case) -> list[Row]:
    """Return a case's rows: of its `lengths`, or `m` rows of different lengths below `longest`.

    Each has one new token, or the tokens that `counts` states.
    """
    lengths = case.given.get("lengths")
    if lengths is None:
        longest = case["longest"]
        lengths = [(37 * i * i + 13 * i + longest - 1) % longest for i in range(case["m"])]
    counts = case.given.get("counts", [1] * len(lengths))
    return [Row(length, count, seed, case.given.get("flavour", "plain"))
            for seed, (length, count) in enumerate(zip(lengths, counts, strict=True))]


def padded_variants(rows: Sequence[Row], most: int) -> Iterator[list[Row]]:
    """Yield the rows with 1 to `most` pads before, after and between them."""
    for count in range(1, most + 1):
        pads = [Row(7 * i, 0) for i in range(count)]
        yield [*pads, *rows]
        yield [*rows, *pads]
        yield [rows[0], *pads, *rows[1:]]


def cuts(which: str, count: int) -> list[tuple[int, ...]]:
    """Return ways to cut a chunk: into tokens and `all` cuts in two, or a `few` cuts."""
    single = (1,) * count
    if which == "all":
        return [single, *((a, count - a) for a in range(1, count))]
    third = max(1, count // 3)
    return [single, (1, count - 1), (count - 1, 1), (third, third, count - 2 * third)]


def check_cuts(attend: Harness, length: int, count: int, which: str) -> None:
    """Compare a chunk in one step with the same chunk cut into several steps."""
    want = attend([Row(length, count)])[0]
    for cut in cuts(which, count):
        at = 0
        for size in cut:
            got = attend([Row(length + at, size)])[0]
            attend.judge.equal("attend", got, want[at:at + size], cut=str(cut), at=length + at)
            at += size


def two_pass_attention(row: Row, heads: int, groups: int) -> Tensor:
    """Return gated attention of a row [count, H, D], computed in f64 by a two-pass softmax."""
    drawn = draw_sequence(row, heads, groups)
    q, gate = (x.double() for x in drawn.queries(row))
    k, v = (x.double().repeat_interleave(heads // groups, 1) for x in (drawn.k, drawn.v))
    out = torch.empty_like(q)
    for i in range(row.count):
        n = row.length + i + 1
        scores = torch.einsum("hd,nhd->hn", q[i], k[:n]) / DIM ** 0.5
        weights = (scores - scores.amax(1, keepdim=True)).exp()
        out[i] = torch.einsum("hn,nhd->hd", weights, v[:n]) / weights.sum(1, keepdim=True)
    return (out * torch.sigmoid(gate)).float()


def check_exact(attend: Harness, got: Tensor, want: Tensor, **where: int | str) -> None:
    """Compare outputs that need no rounding: in bits, or by the budget of an own arithmetic."""
    if attend.bitwise:
        attend.judge.equal("attend", got, want, rule="truth", **where)  # type: ignore[arg-type]
    else:
        attend.judge.budget("attend", got.flatten(0, 1), want.flatten(0, 1), own_budget("p6"),
                            **where)  # type: ignore[arg-type]


def spread_cache(step: GuardedCall, stride: int) -> GuardedCall:
    """Return a step of one slot whose cache rows are `stride` values apart.

    Value rows lie halfway between key rows, so that both fit into one buffer.
    """
    _, rows, groups, width = step.keys.inside.shape
    device, need = step.keys.inside.device, rows * stride
    try:
        buffer = torch.empty(need, device=device)
    except torch.OutOfMemoryError:  # the subject has not run yet
        raise Unmeasurable(f"cache rows {stride} values apart need {4 * need / 2**30:.1f} GiB of "
                           f"contiguous device memory, but {device} has less free: free some and "
                           f"run again") from None

    def spread(cache: Guarded, start: int) -> Guarded:
        far = buffer.as_strided((1, rows, groups, width), (need, stride, width, 1), start)
        return Guarded(far.copy_(cache.inside[:1]), cache.memory)

    return replace(step, keys=spread(step.keys, 0), values=spread(step.values, stride // 2))


def check_product(attend: Harness, rows: Sequence[Row], project: Callable[..., None],
                  kind: str) -> None:
    """Compare a product of attention's quantised result with the product of the result in f32."""
    step = attend.lay_out(rows, Layout())
    out = torch.empty_like(step.out.inside)
    returned = attend.run(replace(step, out=Guarded(out, out)))
    x = out.flatten(1)
    values = torch.randn(48, x.shape[1], generator=torch.Generator().manual_seed(17))
    matrix = Weight("w", kind, encode(kind, values.numpy()), device=attend.device)
    got, want = (out.new_empty(len(out), 48) for _ in range(2))
    project(matrix, returned if isinstance(returned, QuantisedActivations) else x, got)
    project(matrix, x.clone(), want)
    attend.judge.equal("product of attend", got, want, kind=kind)


def check_norm_rotate(case: Case, judge: Judge, path: Path, device: str) -> None:
    """Compare a path's normed and rotated queries and keys with the engine's.

    All tokens run in one call, then each token by itself. Queries alternate with gates of NaN in
    memory, and so do keys. One head of each contains NaN, another zeros; tokens differ in size.
    """
    positions, (heads, groups), pairs = case["positions"], case["heads"], case["pairs"]
    draw, t, eps = torch.Generator().manual_seed(len(positions)), len(positions), 1e-6
    table = rope_table(max(positions) + 1, 2 * pairs, 1e7)
    weights = [torch.randn(DIM, generator=draw) for _ in range(2)]
    wide = [torch.full((t, n, 2, DIM), torch.nan) for n in (heads, groups)]
    xs = [x[:, :, 0] for x in wide]
    for x in xs:
        size = torch.tensor([1.0, 1e-3, 1e4, 1e-30])[torch.arange(t) % 4]
        x.copy_(torch.randn(x.shape, generator=draw) * size[:, None, None])
        x[0, -1], x[-1, 0, 70] = 0.0, torch.nan
    want = [[torch.empty(x.shape) for x in xs] for _ in range(2)]
    ops.norm_rotate(ops.norm, ops.rotate, xs, weights, eps, table, positions, *want)
    inputs = [x.to(device)[:, :, 0] for x in wide]
    fixed = [w.to(device) for w in weights], eps, table.to(device)
    where = torch.tensor(positions).to(device)
    for at in (slice(t), *(slice(i, i + 1) for i in range(t))):
        outs = [[new_guarded(*x[at].shape, device=device) for x in xs] for _ in range(2)]
        path.fused.norm_rotate([x[at] for x in inputs], *fixed, where[at],
                               *([guard.inside for guard in guards] for guards in outs))
        for kind, guards, right in zip(("norm", "rotate"), outs, want, strict=True):
            for name, guard, x in zip("qk", guards, right, strict=True):
                judge.equal(f"{kind}.{name}", guard.inside, x[at], rule="truth", finite=False,
                            first=at.start or 0)
                guard.hold(judge, f"{kind}.{name}")


def expected_bytes(rows: Sequence[Row], groups: int, width: int) -> int:
    """Return the bytes of the keys that a step's tokens see, each token's keys counted once."""
    seen = sum(row.length + i + 1 for row in rows for i in range(row.count))
    return seen * groups * DIM * width
