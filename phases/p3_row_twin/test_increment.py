"""What the increment refuses and where it sends work, and how weights come to a kernel."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.errors import InputError
from engine.kernels import device_bytes as device
from engine.kernels.device_bytes import device_bytes
from engine.quantised import QuantisedActivations
from engine.weights import ORDERED, Weight
from phases.p3_row_twin.data import blocks
from phases.p3_row_twin.increment import gemv_rows, gemv_rows_all, project


def make_weight(
    kind: str = "Q4_K", n: int = 5, k: int = 256, arithmetic: str = "exact-23"
) -> Weight:
    return Weight("blk.0.random", kind, blocks(kind, n, k), arithmetic)


BAD_OPERANDS: dict[str, tuple[Tensor, Tensor, str]] = {
    "another K": (torch.zeros(2, 255), torch.zeros(2, 5), r"x .* f32\[m, 256\], but is float32"),
    "another N": (torch.zeros(2, 256), torch.zeros(2, 4), r"out .* f32\[m, 5\], but is float32"),
    "f64": (torch.zeros(2, 256).double(), torch.zeros(2, 5), r"x .* but is float64\[2, 256\]"),
    "one row without its axis": (torch.zeros(256), torch.zeros(1, 5), r"float32\[256\]"),
    "turned": (torch.zeros(256, 2).T, torch.zeros(2, 5), "neighbours, but stand 2 apart"),
    "rows that do not match": (torch.zeros(2, 256), torch.zeros(3, 5), "2 rows, but out has 3"),
}


@pytest.mark.parametrize("fault", BAD_OPERANDS)
@pytest.mark.parametrize("function", [gemv_rows, project])
def test_operands_that_do_not_fit_are_refused_before_anything_is_written(
        fault: str, function: object) -> None:
    x, out, sentence = BAD_OPERANDS[fault]
    with pytest.raises(InputError, match=sentence):
        function(make_weight(), x, out.fill_(7.0))  # type: ignore[operator]
    assert bool((out == 7.0).all())


def test_no_rows_are_no_work() -> None:
    gemv_rows(make_weight(), torch.zeros(0, 256), torch.zeros(0, 5))


def test_matrix_decides_its_arithmetic() -> None:
    x = torch.randn(2, 256, generator=torch.Generator().manual_seed(4))
    exact, ordered = torch.empty(2, 5), torch.empty(2, 5)
    gemv_rows(make_weight(), x, exact)
    gemv_rows(make_weight(arithmetic=ORDERED), x, ordered)
    assert not torch.equal(exact, ordered)
    assert torch.allclose(exact, ordered, rtol=1e-4, atol=1e-5)


@pytest.mark.tier("interpret")
def test_more_rows_than_a_launch_takes_are_worked_all_the_same() -> None:
    from phases.p3_row_twin import kernel_ordered
    matrix = make_weight("F16", 3, 32)
    x, out = torch.randn(70, 32, generator=torch.Generator().manual_seed(5)), torch.empty(70, 3)
    kernel_ordered.gemv_rows(matrix, x, out)
    assert torch.equal(out, matrix.product(x))


def test_writable_bytes_are_shared_on_the_cpu_and_others_are_copied_once() -> None:
    matrix = make_weight()
    matrix.raw = np.array(matrix.raw)
    assert device_bytes(matrix, "cpu").data_ptr() == matrix.raw.ctypes.data
    fixed = make_weight()
    fixed.raw = np.array(fixed.raw)
    fixed.raw.flags.writeable = False
    copy = device_bytes(fixed, "cpu")
    assert copy.data_ptr() != fixed.raw.ctypes.data
    assert copy.numpy().tobytes() == fixed.raw.tobytes()
    assert device_bytes(fixed, torch.device("cpu")) is copy


@pytest.mark.parametrize("skew", [0, 2, 13])
def test_copy_begins_where_the_original_begins_modulo_sixteen(skew: int) -> None:
    matrix, room = make_weight(), np.zeros(5 * 144 + 64, np.uint8)
    first = -room.ctypes.data % 16 + skew
    matrix.raw = room[first:first + 5 * 144].reshape(5, 144)
    matrix.raw.flags.writeable = False
    assert device_bytes(matrix, "cpu").data_ptr() % 16 == skew


def test_copies_go_with_their_matrix() -> None:
    matrix = make_weight()
    device_bytes(matrix, "cpu")
    before = len(device._COPIES)
    del matrix
    gc.collect()
    assert len(device._COPIES) == before - 1


def test_quantisation_is_taken_once_and_never_after_a_change() -> None:
    limbs, x = SimpleNamespace(m=2, k=8), torch.zeros(2, 4, 2)
    quantised = QuantisedActivations.of(x, limbs)
    assert quantised.rows.shape == (2, 8)
    assert quantised.take() is limbs
    assert quantised.take() is None  # a kernel may have written the values since
    quantised = QuantisedActivations.of(x, limbs)
    x.add_(1.0)
    assert quantised.take() is None
    with torch.inference_mode():  # torch counts no changes of such a tensor
        assert QuantisedActivations.of(torch.zeros(2, 8), limbs).take() is None


@pytest.mark.emulated
@pytest.mark.usefixtures("emulated")
def test_quantisation_of_a_product_is_that_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    from phases.p3_row_twin import kernel_exact_mma as mma
    matrix, ordered = make_weight(n=16), make_weight("F16", 16, 256)
    rows = [torch.randn(2, 256, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    calls, quantize = list[Tensor](), mma.quantize
    monkeypatch.setattr(mma, "quantize", lambda x: calls.append(x) or quantize(x))  # type: ignore[func-returns-value]
    quantised = QuantisedActivations.of(rows[0], quantize(rows[1]))  # of others, so that it shows
    outs = [torch.empty(2, 16) for _ in range(2)]
    gemv_rows_all([matrix, ordered], quantised, outs)
    assert calls == []
    assert torch.equal(outs[0], matrix.product(rows[1]))
    assert torch.equal(outs[1], ordered.product(rows[0]))
    gemv_rows_all([matrix, ordered], quantised, outs)
    assert len(calls) == 1
    assert torch.equal(outs[0], matrix.product(rows[0]))
    gemv_rows_all([matrix], QuantisedActivations.of(rows[0], quantize(rows[1][:1])), outs[:1])
    assert torch.equal(outs[0], matrix.product(rows[0]))  # that of other rows is not taken


@pytest.mark.emulated
@pytest.mark.usefixtures("emulated")
def test_matrix_may_share_a_launch_with_others_than_before() -> None:
    first, *others = (Weight(f"blk.{i}.random", "Q4_K", blocks("Q4_K", 16 + i, 256))
                      for i in range(3))
    x = torch.randn(2, 256, generator=torch.Generator().manual_seed(6))
    for other in (*others, others[0]):
        outs = [torch.empty(2, weight.n) for weight in (first, other)]
        gemv_rows_all([first, other], x, outs)
        assert torch.equal(outs[0], first.product(x))
        assert torch.equal(outs[1], other.product(x))
