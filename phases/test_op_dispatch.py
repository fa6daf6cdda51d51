"""Which function runs an op of the decode path: the device of its output chooses.

The test needs no device: it passes fakes that know only their device.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import engine.emulate
from engine import ops
from engine.op_table import TIERS, on_tier
from engine.quantised import QuantisedActivations
from phases.p3_row_twin import increment as p3
from phases.p4_batched_matmul import increment as p4
from phases.p5_batched_gdn import increment as p5
from phases.p6_batched_attention import increment as p6
from phases.p8_decode_graph import increment as p8


@dataclass(frozen=True)
class FakeTensor:
    """A tensor with the one attribute that the choice reads."""

    is_cuda: bool


HOST, DEVICE = FakeTensor(False), FakeTensor(True)
KERNELS = [  # the phase and its op, then the kernels for a device and for the interpreter
    (p4, "norm", "kernel_norm", "kernel_norm"),
    (p4, "gated_norm", "kernel_fused", "kernel_gated_norm"),
    (p4, "silu_mul", "kernel_fused", "kernel_silu_mul"),
    (p4, "argmax", "kernel_argmax", "kernel_argmax"),
    (p5, "conv_step", "kernel_gdn_cuda", "kernel_conv"),
    (p5, "gates", "kernel_gdn_cuda", "kernel_gates"),
    (p5, "delta_step", "kernel_gdn_cuda", "kernel_delta"),
    (p6, "rotate", "kernel_rotate", "kernel_rotate"),
    (p6, "attend", "kernel_attend_cuda", "kernel_attend"),
    (p8, "embed", "kernel_embed", "kernel_embed")]
FUSED = [  # the same for fused ops, with the ops they replace
    (p4, "project_all", "", "", ("project",)),
    (p4, "add_norm", "kernel_fused", "kernel_add_norm", ("norm",)),
    (p6, "norm_rotate", "kernel_norm_rotate", "", ("norm", "rotate"))]


class CallLog(list[tuple[str, tuple[Any, ...]]]):
    """The calls, with their arguments."""

    def recorder(self, name: str) -> Any:
        """Return a function that only records its calls."""
        return lambda *args, **options: self.append((name, (*args, *options.values())))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> CallLog:
    """Replace every kernel's module by one that records calls."""
    noted, modules = CallLog(), dict[str, dict[str, Any]]()
    for phase, op, *names in [*KERNELS, *(row[:4] for row in FUSED)]:
        for name in filter(None, names):
            place = f"{phase.__name__.rpartition('.')[0]}.{name}"
            modules.setdefault(place, {})[op] = noted.recorder(f"{name}.{op}")
    for module, functions in modules.items():
        fake_module: Any = SimpleNamespace(**functions)
        monkeypatch.setitem(sys.modules, module, fake_module)
    return noted


@pytest.mark.parametrize(("phase", "name", "there", "here"), KERNELS)
def test_result_chooses_the_kernel(phase: Any, name: str, there: str, here: str, calls: CallLog,
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    op = replace(getattr(phase.path(), name), reference=calls.recorder("reference"))
    op(HOST, DEVICE)
    op(DEVICE, HOST)
    on_tier(op, "interpret")(DEVICE, HOST)
    on_tier(op, "cuda")(DEVICE, HOST)
    on_tier(op, "cpu")(HOST, DEVICE)
    monkeypatch.setattr(engine.emulate, "active", True)
    op(DEVICE, HOST)
    there, here = f"{there}.{name}", f"{here}.{name}"
    assert calls == [(there, (HOST, DEVICE)), ("reference", (DEVICE, HOST)),
                     (here, (DEVICE, HOST)), (there, (DEVICE, HOST)),
                     ("reference", (HOST, DEVICE)), (there, (DEVICE, HOST))]


def test_options_reach_the_kernel(calls: CallLog) -> None:
    p4.path().argmax(HOST, DEVICE, refuse=False)
    assert calls == [("kernel_argmax.argmax", (HOST, DEVICE, False))]


@pytest.mark.parametrize(("phase", "name", "there", "here", "parts"), FUSED)
def test_fused_kernel_replaces_only_the_path_s_own_ops(
        phase: Any, name: str, there: str, here: str, parts: tuple[str, ...], calls: CallLog,
        monkeypatch: pytest.MonkeyPatch) -> None:
    path, notes = phase.path(), CallLog()
    own = tuple(getattr(path, part) for part in parts)
    op = getattr(path, name)
    op = replace(op, reference=calls.recorder("one by one"), together=replace(
        op.together, reference=partial(calls.recorder("one by one"), *own),
        cuda=op.together.cuda if there else calls.recorder("device")))
    path = replace(path, **{name: op})
    getattr(path.fused, name)(HOST, [DEVICE])
    getattr(path.fused, name)(DEVICE, [HOST])
    op(*own, HOST, [DEVICE])
    there = f"{there}.{name}" if there else "device"
    here = f"{here}.{name}" if here else "one by one"
    want: list[Any] = [(there, (HOST, [DEVICE])), ("one by one", (*own, DEVICE, [HOST])),
                       (there, (HOST, [DEVICE]))]
    op.on("interpret")(HOST, [HOST])
    want.append((here, (*(own if here == "one by one" else ()), HOST, [HOST])))
    for part in parts:
        other = notes.recorder(part)
        mixed = tuple(other if name == part else getattr(path, name) for name in parts)
        getattr(replace(path, **{part: other}).fused, name)(HOST, [DEVICE])
        want.append(("one by one", (*mixed, HOST, [DEVICE])))
    assert calls == want
    assert notes == []


def test_fused_op_of_a_candidate_gets_the_path_s_other_ops(calls: CallLog) -> None:
    path = replace(p6.path(), norm_rotate=calls.recorder("mine"))
    path.fused.norm_rotate(HOST, [DEVICE])
    assert calls == [("mine", (path.norm, path.rotate, HOST, [DEVICE]))]
    assert path.fused is path.fused


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> CallLog:
    """Record the calls of every product."""
    noted = CallLog()
    for name in ("kernel_exact", "kernel_ordered"):
        module: Any = SimpleNamespace(gemv_rows=noted.recorder(name))
        monkeypatch.setitem(sys.modules, f"phases.p3_row_twin.{name}", module)
    monkeypatch.setattr(p3, "gemv_rows_all", noted.recorder("device"))
    return noted


@pytest.mark.parametrize(("arithmetic", "kernel"), [
    ("exact-23", "kernel_exact"), ("ordered", "kernel_ordered")])
def test_product_runs_on_the_device_of_its_rows(arithmetic: str, kernel: str,
                                                products: CallLog) -> None:
    weight: Any = SimpleNamespace(arithmetic=arithmetic)
    op = replace(p4.PROJECT, reference=products.recorder("reference"))
    op(weight, DEVICE, DEVICE)
    op(weight, HOST, HOST)
    op.on("interpret")(weight, HOST, HOST)
    assert products == [("device", ([weight], DEVICE, [DEVICE])),
                        ("reference", (weight, HOST, HOST)), (kernel, (weight, HOST, HOST))]


def test_several_matrices_share_a_launch_only_on_a_device() -> None:
    both = p4.path().project_all
    assert on_tier(both, "cuda") is p3.gemv_rows_all
    one_by_one = on_tier(both, "interpret")
    assert isinstance(one_by_one, partial)
    assert one_by_one is on_tier(both, "cpu")
    assert (one_by_one.func, one_by_one.args) == (ops.project_all, (p4.PROJECT,))


@pytest.mark.parametrize("phase", [p3, p4, p5, p6, p8])
def test_table_names_every_op_on_every_tier(phase: Any) -> None:
    path = phase.path()
    table = path.kernels()
    assert all(list(by_tier) == list(TIERS) for by_tier in table.values())
    assert json.loads(json.dumps(table)) == table
    lines = str(path).splitlines()
    assert lines[0].split() == ["op", *TIERS]
    assert [line.split()[0] for line in lines[1:]] == list(table)


def test_table_names_the_kernels() -> None:
    table, three = p8.path().kernels(), "phases.p3_row_twin"
    assert table["conv_step"] == {
        "cpu": "phases.p5_batched_gdn.reference.conv_step",
        "interpret": "phases.p5_batched_gdn.kernel_conv.conv_step",
        "cuda": "phases.p5_batched_gdn.kernel_gdn_cuda.conv_step"}
    assert table["project"] == {
        "cpu": "engine.ops.project",
        "interpret": f"{three}.kernel_exact.gemv_rows or {three}.kernel_ordered.gemv_rows",
        "cuda": f"{three}.kernel_exact_mma.gemv_rows or {three}.kernel_ordered.gemv_rows"}
    assert table["norm_rotate"]["cpu"] == "engine.ops.norm_rotate"
    assert table["step_rows"]["cuda"] == "phases.p8_decode_graph.kernel_graphs.Graphs.step_rows"


def test_quantising_kernels_are_found_by_later_phases() -> None:
    from phases.p4_batched_matmul import kernel_fused
    assert p4.quantising_kernels() is kernel_fused
    assert p5.quantising_kernels() is kernel_fused


def test_quantised_activations_reach_the_tree_s_own_product_alone() -> None:
    calls, rows = CallLog(), torch.zeros(2, 8)
    quantised = QuantisedActivations.of(rows.view(2, 4, 2), "limbs")
    own = replace(p4.PROJECT, cuda=calls.recorder("own"), reference=calls.recorder("reference"))
    path = replace(p4.path(), project=own)
    path.fused.project("w", quantised, DEVICE)
    path.fused.project("w", quantised, HOST)
    path.fused.project_all(["w"], quantised, [DEVICE])
    mine = replace(path, project=calls.recorder("mine"), project_all=calls.recorder("all of mine"))
    mine.fused.project("w", quantised, DEVICE)
    mine.fused.project_all(["w"], quantised, [DEVICE])
    assert [name for name, _ in calls] == ["own", "reference", "own", "mine", "all of mine"]
    assert calls[0][1][1] is quantised
    for _, args in calls[1:]:
        assert any(isinstance(arg, torch.Tensor) and arg.shape == (2, 8) for arg in args)
        assert quantised not in args
