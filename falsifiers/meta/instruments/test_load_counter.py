"""The load counter counts the bytes that a kernel loads."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from falsifiers.instruments import load_counter
from falsifiers.judging.errors import Unmeasurable

N, BLOCK = 100, 64


def kernels() -> Any:
    """Import the kernels in the test, since this fixes Triton's mode."""
    from falsifiers.meta.instruments import kernel_reads
    return kernel_reads


@pytest.mark.tier("interpret")
@pytest.mark.parametrize("rows", [1, 3])
def test_right_kernel_reads_each_byte_once(rows: int) -> None:
    weight, x, out = torch.randn(N), torch.randn(rows, N), torch.empty(rows, N)
    with load_counter.count_loads(weight=weight, x=x) as reads:
        kernels().scale_rows(weight, x, out)
    assert torch.equal(out, x * weight)
    assert (reads["weight"].unique, reads["weight"].total) == (4 * N, 4 * N)
    assert reads["x"].total == 4 * N * rows


@pytest.mark.tier("interpret")
def test_repeated_loads_are_counted() -> None:
    weight, x, out = torch.randn(N), torch.randn(3, N), torch.empty(3, N)
    with load_counter.count_loads(weight=weight) as reads:
        kernels().scale_rows_rereading(weight, x, out)
    assert torch.equal(out, x * weight)
    assert reads["weight"].times == 3.0
    assert reads["weight"].unique == 4 * N


@pytest.mark.tier("interpret")
def test_only_loads_of_the_named_tensor_in_the_block_are_counted() -> None:
    weight, other, x, out = torch.randn(N), torch.randn(N), torch.randn(1, N), torch.empty(1, N)
    with load_counter.count_loads(other=other) as reads:
        kernels().scale_rows(weight, x, out)
    kernels().scale_rows(other, x, out)
    assert (reads["other"].total, reads["other"].loads) == (0, 0)


def test_interpreter_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(Unmeasurable), load_counter.count_loads(x=torch.zeros(3)):
        pass
