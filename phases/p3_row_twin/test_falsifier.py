"""The attack on P3: rows of one product against the same rows alone, and against the engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from contracts.schema import Case
from engine.blocks import TYPES
from engine.path import Rows
from engine.weights import EXACT
from falsifiers.instruments import scalar_reference
from falsifiers.instruments.load_counter import count_loads
from falsifiers.instruments.negative_control import check_negative_control
from falsifiers.judging import relations
from falsifiers.judging.batch_driver import make_prompt
from falsifiers.judging.errors import Declined, Unmeasurable
from falsifiers.judging.judge import Judge
from falsifiers.judging.poison import poison
from falsifiers.judging.subject import Subject
from phases.p1_looped_step import increment as before
from phases.p3_row_twin import device_counters
from phases.p3_row_twin.data import activations, extreme_activations
from phases.p3_row_twin.harness import Harness, Layout, Matrix, select_gemv_rows_all

BUDGET_OUTPUTS = 64
"""Outputs of a row that the budget covers; over fewer the cosine says little."""


def test_rows_equal_alone(case: Case, subject: Subject, judge: Judge) -> None:
    product = Harness(case, subject, judge)
    matrix = product.build_matrix(case["kind"], case["n"], case["k"])
    x, alone = activations(max(case["m"]), case["k"]), dict[int, Tensor]()
    check_negative_control(
        judge, matrix.weight.rows(list(range(min(case["n"], BUDGET_OUTPUTS)))), x, case["m"]
    )
    for m in case["m"]:
        got = product(matrix, x[:m])
        for row in {0, 1 % m, m - 1} if product.interpreted else range(m):
            if row not in alone:
                alone[row] = product(matrix, x[row:row + 1])[0]
            judge.equal("out", got[row], alone[row], m=m, row=row)


def test_products_are_true(case: Case, subject: Subject, judge: Judge) -> None:
    product, k = Harness(case, subject, judge), case["k"]
    if not product.bitwise:
        matrix, x = product.build_matrix(case["kind"], BUDGET_OUTPUTS, k), activations(16, k)
        product.check_truth(product(matrix, x), product.engine_product(matrix, x))
        return
    for flavour in case["flavours"]:
        matrix, x = (
            product.build_matrix(case["kind"], case["n"], k, flavour),
            extreme_activations(k),
        )
        got, want = product(matrix, x), product.engine_product(matrix, x)
        for row in range(len(x)):
            product.check_truth(got[row:row + 1], want[row:row + 1], weights=flavour, row=row)


def test_products_equal_integer_arithmetic(case: Case, subject: Subject, judge: Judge) -> None:
    product = Harness(case, subject, judge)
    if not product.bitwise:
        raise Declined("own arithmetic: the budget applies, not exact integers")
    x = extreme_activations(case["k"])[[0, 1, 6]]
    for flavour in case["flavours"]:
        matrix = product.build_matrix(case["kind"], case["n"], case["k"], flavour)
        got = product(matrix, x)
        for row in range(len(x)):
            judge.equal(
                "out",
                got[row],
                _scalar_product(matrix, x[row]),
                rule="truth",
                finite=False,
                weights=flavour,
                row=row,
            )


def test_unit_vectors_return_each_weight(case: Case, subject: Subject, judge: Judge) -> None:
    product = Harness(case, subject, judge)
    matrix = product.build_matrix(case["kind"], case["n"], case["k"])
    units, dense = torch.eye(case["k"]), matrix.weight.rows(list(range(case["n"])))
    got = torch.cat([product(matrix, part) for part in units.split(64)])
    if product.bitwise:
        judge.equal("out", got.to(torch.float32) + 0.0, dense.T + 0.0, rule="truth")
    else:
        product.check_truth(got.T, dense)


def test_every_tail_is_written(case: Case, subject: Subject, judge: Judge) -> None:
    product = Harness(case, subject, judge)
    x = activations(case["m"], case["k"])
    for n in case["n"]:
        matrix = product.build_matrix(case["kind"], n, case["k"])
        got = product(matrix, x)
        judge.law(not bool(got.isnan().any()), f"out[n {n}] holds "
                  f"{int(got.isnan().sum())} values that were never written", rung="finite")
        if product.bitwise or n >= 64:  # a budget is measured over rows of 64 outputs
            product.check_truth(got, product.engine_product(matrix, x), n=n)


def test_strides_and_offsets_do_not_matter(case: Case, subject: Subject, judge: Judge) -> None:
    product = Harness(case, subject, judge)
    kind, n, k = case["kind"], case["n"], case["k"]
    matrix, x = product.build_matrix(kind, n, k), activations(case["m"], k)
    plain = product(matrix, x)
    for layout in (Layout(gap=5), Layout(skew=1, rows_before=2, gap=256)):
        judge.equal("out", product(matrix, x, layout), plain, skew=layout.skew, gap=layout.gap)
    skewed = product.build_matrix(kind, n, k, skew=4 if kind == "F32" else 2)
    judge.equal("out", product(skewed, x, Layout(skew=3)), plain, weights="off alignment")


def test_neighbours_cannot_reach_a_row(case: Case, subject: Subject, judge: Judge) -> None:
    product = Harness(case, subject, judge)
    matrix = product.build_matrix(case["kind"], case["n"], case["k"])
    victim, crowd = activations(1, case["k"], "victim"), activations(4, case["k"], "crowd")

    def run(rows: relations.Rows) -> Tensor:
        return product(matrix, torch.stack(list(rows)))

    alone = run(list(victim))[0]
    for name, value in (("NaN", float("nan")), ("infinity", float("inf")), ("huge", 3e38)):
        for place in case["places"]:
            rows = list(torch.full_like(crowd, value))
            rows[place] = victim[0]
            judge.equal("out", run(rows)[place], alone, row=place, neighbours=name)
    relations.permuted_rows_permute(judge, run, list(crowd), [2, 0, 3, 1])
    relations.split_batch_equals_batch(judge, run, list(crowd), 1)


def test_inputs_are_read_at_the_call(case: Case, subject: Subject, judge: Judge) -> None:
    product = Harness(case, subject, judge)
    matrices = [
        product.build_matrix(case["kind"], case["n"], case["k"], f) for f in ("plain", "wild")
    ]
    raw = matrices[0].weight.raw.tobytes()
    xs = [activations(3, case["k"], name).to(product.device, product.dtype)
          for name in ("first", "second")]
    wants = [product.compute_on_device(matrices[0], x).clone() for x in xs]
    x, outs = torch.empty_like(xs[0]), list[Tensor]()
    for number in (0, 1, 0):
        x.copy_(xs[number])
        outs.append(product.compute_on_device(matrices[0], x))
        poison(x)
        judge.equal("out", outs[-1], wants[number], call=len(outs) - 1)
    other = product.compute_on_device(matrices[1], xs[0])
    judge.law(not torch.equal(other, wants[0]), "another matrix of the same shape gave the same "
              "product", rung="bits")
    for call, (out, number) in enumerate(zip(outs, (0, 1, 0), strict=True)):
        judge.equal("out after later calls", out, wants[number], call=call)
    judge.law(matrices[0].weight.raw.tobytes() == raw, "a product wrote the weights", rung="frame")


def test_repeats_are_equal(case: Case, subject: Subject, judge: Judge) -> None:
    product = Harness(case, subject, judge)
    matrix = product.build_matrix(case["kind"], case["n"], case["k"])
    for m in case["m"]:
        rows = list(activations(m, case["k"]))
        relations.repeats_are_equal(judge, lambda r: product(matrix, torch.stack(list(r))), rows,
                          case["times"], m=m)


def test_weights_are_read_once(case: Case, subject: Subject, judge: Judge) -> None:
    product = Harness(case, subject, judge)
    matrix = product.build_matrix(case["kind"], case["n"], case["k"])
    tensors = product.weight_tensors(matrix)
    totals: dict[int, int] = {}
    for m in case["m"]:
        x, out = activations(m, case["k"]).to(product.dtype), torch.empty(m, case["n"])
        named = {name.replace(" ", "_"): tensor for name, tensor in tensors.items()}
        with count_loads(**named) as reads:
            product.run(matrix, x, out.to(product.dtype))
        totals[m] = sum(r.total for r in reads.values())
        unread = sum(r.size - r.unique for r in reads.values())
        if totals[m] == 0 and subject.candidate is not None:
            raise Declined("its loads are not Triton's, so they cannot be counted here")
        judge.law(totals[m] == totals[case["m"][0]], f"a launch at m = {m} reads {totals[m]} bytes "
                  f"of weights, but at m = {case['m'][0]} {totals[case['m'][0]]}", m=m)
        if subject.candidate is None:  # a candidate may pad its own layout, or read it in two ways
            judge.law(unread == 0, f"{unread} bytes of weights were not read at m = {m}", m=m)
    size = sum(r.size for r in reads.values())
    judge.law(subject.candidate is not None or totals[m] <= case["times"] * size,
              f"a launch reads {totals[m]} bytes of weights, but {case['times']} times their "
              f"{size} bytes is allowed")
    judge.engaged(weight_bytes=size, bytes_read={str(m): total for m, total in totals.items()})


def test_device_reads_weights_once(case: Case, subject: Subject, judge: Judge) -> None:
    product = Harness(case, subject, judge)
    spec = product.candidate.name if product.candidate is not None else ""
    size = TYPES[case["kind"]].row_bytes(case["k"]) * case["n"] * case["copies"]
    read = {m: device_counters.measure_bytes_read(case, spec, m) for m in case["m"]}
    few = read[case["m"][0]]
    for m, total in read.items():
        judge.law(abs(total - few) <= (case["times"] - 1) * size, f"at m = {m} the device reads "
                  f"{total} bytes, but at m = {case['m'][0]} {few}", m=m)
        if product.candidate is None:  # a candidate's own layout may have another size
            judge.law(0.98 * size <= total <= case["times"] * size, f"at m = {m} the device reads "
                      f"{total} bytes, but the weights are {size}", m=m)
    judge.engaged(weight_bytes=size, device_bytes_read={str(m): t for m, t in read.items()})


def test_shared_launches_equal_apart(case: Case, subject: Subject, judge: Judge) -> None:
    together, k = select_gemv_rows_all(subject.candidate), case["k"]
    product = Harness(case, subject, judge)
    weights = [product.build_matrix(kind, n, k).weight
               for kind, n in zip(case["kinds"], case["n"], strict=True)]
    for m in case["m"]:
        x = activations(m, k)
        outs = [poison(torch.empty(m, weight.n, device=product.device)) for weight in weights]
        together(weights, x.to(product.device), outs)
        rows = [row for row in (0, 1, 15, 63, 64, 65, 129, 511, 512, m - 1) if row < m]
        for weight, out in zip(weights, outs, strict=True):
            judge.law(not bool(out.isnan().any()), f"out[m {m}] holds values of {weight.kind} that "
                      f"were never written", rung="finite")
            judge.equal("out", out[rows].cpu(), weight.product(x[rows]), m=m, kind=weight.kind)


def test_loads_and_stores_stay_inside(case: Case, subject: Subject, judge: Judge) -> None:
    product = Harness(case, subject, judge)
    m, n, k = case["m"], case["n"], case["k"]
    matrix = product.build_matrix(case["kind"], n, k)
    layout = Layout(skew=1, gap=7)
    x = layout.allocate(m, k, 7, product.dtype, "cpu").copy_(activations(m, k))
    out = layout.allocate(m, n, 9, product.dtype, "cpu")
    with product.watch_bounds(matrix, x, out) as fence:
        product.run(matrix, x, out)
    if fence.accesses == 0 and subject.candidate is not None:
        raise Declined("its loads are not Triton's, so they cannot be watched here")
    judge.law(fence.accesses > 0, "no load was seen")
    judge.law(not fence.violations, f"{len(fence.violations)} operations strayed, the first is "
              f"{fence.violations[0] if fence.violations else ''}", rung="frame")
    judge.engaged(operations=fence.accesses)


def test_far_offsets_are_reached(case: Case, subject: Subject, judge: Judge) -> None:
    product, stride, copies = Harness(case, subject, judge), case["stride"], case["copies"]
    n, k, free = case["n"], case["k"], torch.cuda.mem_get_info()[0]
    need = 4 * 4 * stride + (8 << 30)
    if free < need:
        raise Unmeasurable(f"rows that far apart need {need >> 30} GiB of device memory, but "
                           f"{free >> 30} are free")
    matrix, x = product.build_matrix(case["kind"], n, k), activations(3, k)
    near = product(matrix, x)
    far_x, far_out = (torch.empty_strided((3, width), (stride, 1), dtype=product.dtype,
                                          device=product.device) for width in (k, n))
    product.run(matrix, far_x.copy_(x), poison(far_out))
    judge.equal("out", far_out.cpu(), near, stride=stride)
    del far_x, far_out
    tall = product(product.build_matrix(case["kind"], n, k, copies=copies), x).unflatten(
        1, (copies, n)
    )
    for copy in range(copies):
        judge.equal("out", tall[:, copy], near, copy=copy)


def test_steps_equal_the_looped_step(case: Case, subject: Subject, judge: Judge) -> None:
    if subject.candidate is not None:
        raise Declined("a candidate's product is judged by itself, not inside a step")
    model, m = subject.models(case["model"]), case["m"]
    widths: list[int] = []

    def project(weight: object, x: Tensor, out: Tensor) -> None:
        widths.append(len(x))
        subject.path.project(weight, x, out)

    paths = (before.path(), replace(subject.path, project=project))
    pools = [model.new_pool(m, 8) for _ in paths]
    for step in range(case["steps"]):
        tokens = make_prompt(step, m, model.config.vocab)
        rows = Rows.decode(range(m), (step,) * m)
        want, got = (path.step(model, pool, tokens, rows)
                     for path, pool in zip(paths, pools, strict=True))
        judge.equal("logits", got, want, step=step)
        for slot in range(m):
            judge.law(pools[1].slot(slot).digest() == pools[0].slot(slot).digest(),
                      f"state[slot {slot}, step {step}] is not the looped step's", rung="bits")
    matrices = sum(1 for _ in model.weights.matrices()) - (not model.config.tied)
    judge.law(widths == [1] * (case["steps"] * m * matrices), f"{case['steps']} steps of {m} rows "
              f"ran {len(widths)} projections of one row each, but {case['steps'] * m * matrices} "
              f"are expected")
    judge.engaged(projections=len(widths))


def _scalar_product(matrix: Matrix, x: Tensor) -> Tensor:
    """Return the product of one row f32[K] in Python integers or single roundings: f32[N]."""
    weight = matrix.weight
    of_row = (
        scalar_reference.exact_row if weight.arithmetic == EXACT else scalar_reference.ordered_row
    )
    with np.errstate(all="ignore"):
        return torch.tensor([float(of_row(weight.kind, row.tobytes(), x.numpy()))
                             for row in weight.raw])
