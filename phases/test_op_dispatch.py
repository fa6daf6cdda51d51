"""Where an op of the decode path runs: its output's place chooses the reference or a kernel.

A device is not needed for that: what an op is given here knows only where it is.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from engine import ops
from phases.p3_row_twin import increment as p3
from phases.p4_batched_matmul import increment as p4
from phases.p5_batched_gdn import increment as p5
from phases.p6_batched_attention import increment as p6


@dataclass(frozen=True)
class FakeTensor:
    """A tensor, as far as the choice looks at it."""

    is_cuda: bool


HOST, DEVICE = FakeTensor(False), FakeTensor(True)
PATHS = {"p4_batched_matmul": p4.path, "p5_batched_gdn": p5.path, "p6_batched_attention": p6.path}
KERNELS = [  # the phase and its op, then the kernels for a device and for the interpreter
    ("p4_batched_matmul", "norm", "kernel_norm", "kernel_norm"),
    ("p4_batched_matmul", "add_norm", "kernel_fused", "kernel_add_norm"),
    ("p4_batched_matmul", "gated_norm", "kernel_fused", "kernel_gated_norm"),
    ("p4_batched_matmul", "silu_mul", "kernel_fused", "kernel_silu_mul"),
    ("p4_batched_matmul", "argmax", "kernel_argmax", "kernel_argmax"),
    ("p5_batched_gdn", "conv_step", "kernel_gdn_cuda", "kernel_conv"),
    ("p5_batched_gdn", "gates", "kernel_gdn_cuda", "kernel_gates"),
    ("p5_batched_gdn", "delta_step", "kernel_gdn_cuda", "kernel_delta"),
    ("p6_batched_attention", "rotate", "kernel_rotate", "kernel_rotate"),
    ("p6_batched_attention", "attend", "kernel_attend_cuda", "kernel_attend")]


class CallLog(list[tuple[str, tuple[Any, ...]]]):
    """What was called, and with what."""

    def recorder(self, name: str) -> Any:
        """Return a function that only notes its calls."""
        return lambda *args, **options: self.append((name, (*args, *options.values())))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> CallLog:
    """Put in the place of every kernel's module one that notes calls."""
    noted, modules = CallLog(), dict[str, dict[str, Any]]()
    for phase, op, *names in KERNELS:
        for name in names:
            modules.setdefault(f"phases.{phase}.{name}", {})[op] = noted.recorder(f"{name}.{op}")
    for module, functions in modules.items():
        held: Any = SimpleNamespace(**functions)
        monkeypatch.setitem(sys.modules, module, held)
    return noted


@pytest.mark.parametrize(("phase", "name", "there", "here"), KERNELS)
def test_output_chooses_the_kernel(phase: str, name: str, there: str, here: str,
                                   calls: CallLog) -> None:
    path = PATHS[phase]()
    held = replace(getattr(path, name), reference=calls.recorder("reference"))
    given = {"add_norm": (path.norm,), "conv_step": (HOST, HOST, HOST, (1,))}.get(name, ())
    taken = () if name == "add_norm" else given  # whose kernel is its norm's too
    held(*given, HOST, DEVICE)
    held(*given, DEVICE, HOST)
    for portable in (held.kernel, getattr(held, "portable", None)):
        if portable is not None:
            portable(*taken, DEVICE, HOST)
    there, here = f"{there}.{name}", f"{here}.{name}"
    assert calls == [(there, (*taken, HOST, DEVICE)), ("reference", (*given, DEVICE, HOST)),
                     *([(there, (*taken, DEVICE, HOST))] if phase.startswith("p5") else []),
                     (here, (*taken, DEVICE, HOST))]


def test_options_reach_the_kernel(calls: CallLog) -> None:
    p4.path().argmax(HOST, DEVICE, refuse=False)
    assert calls == [("kernel_argmax.argmax", (HOST, DEVICE, False))]


def test_norm_of_somebody_else_is_run_as_it_is(calls: CallLog) -> None:
    own: Any = p4.path().add_norm
    other = calls.recorder("other")
    replace(own, reference=calls.recorder("reference"))(other, HOST, DEVICE)
    assert calls == [("reference", (other, HOST, DEVICE))]


def test_only_our_own_norm_and_rotation_share_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = CallLog()
    kernel: Any = SimpleNamespace(norm_rotate=calls.recorder("kernel"))
    monkeypatch.setitem(sys.modules, "phases.p6_batched_attention.kernel_norm_rotate", kernel)
    monkeypatch.setattr(ops, "norm_rotate", calls.recorder("one by one"))
    path: Any = p6.path()
    others = calls.recorder("norm"), calls.recorder("rotate")
    ours = path.norm, path.rotate
    path.norm_rotate(*ours, [DEVICE])
    apart = [(*ours, [HOST]), *((*mixed, [place]) for place in (DEVICE, HOST)
                                for mixed in ((others[0], ours[1]), (ours[0], others[1])))]
    for given in apart:
        path.norm_rotate(*given)
    assert calls == [("kernel", ([DEVICE],)), *(("one by one", given) for given in apart)]


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> CallLog:
    """Note the calls of everything that multiplies."""
    noted = CallLog()
    monkeypatch.setattr(p3, "gemv_rows_all", noted.recorder("device"))
    monkeypatch.setattr(p3, "kernel", lambda arithmetic: noted.recorder(arithmetic))
    monkeypatch.setattr(ops, "project_all", noted.recorder("one by one"))
    return noted


def test_products_go_where_their_rows_are(products: CallLog) -> None:
    weight: Any = SimpleNamespace(arithmetic="exact-23")
    held: Any = replace(p4.PROJECT, reference=products.recorder("reference"))
    held(weight, DEVICE, DEVICE)
    held(weight, HOST, HOST)
    held.kernel(weight, HOST, HOST)
    assert products == [("device", ([weight], DEVICE, [DEVICE])),
                        ("reference", (weight, HOST, HOST)), ("exact-23", (weight, HOST, HOST))]


def test_only_our_own_product_takes_several_matrices_at_once(products: CallLog) -> None:
    both: Any = p4.path().project_all
    other = products.recorder("other")
    for project, x in ((p4.PROJECT, DEVICE), (p4.PROJECT, HOST), (other, DEVICE), (other, HOST)):
        both(project, ["w"], x, ["out"])
    assert products == [("device", (["w"], DEVICE, ["out"])),
                        *(("one by one", (project, ["w"], x, ["out"]))
                          for project, x in ((p4.PROJECT, HOST), (other, DEVICE), (other, HOST)))]


def test_kernels_that_leave_integers_are_found_by_the_phases_behind() -> None:
    from phases.p4_batched_matmul import kernel_fused
    assert p4.integer_kernels() is kernel_fused
    assert p5.integer_kernels() is kernel_fused
