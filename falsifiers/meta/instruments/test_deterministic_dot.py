"""With deterministic dots, a row has the same bits at every position in its tile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from falsifiers.instruments.deterministic_dot import deterministic_dots

pytestmark = pytest.mark.tier("interpret")


def kernels() -> Any:
    """Import the kernel in the test, since this fixes Triton's mode."""
    from falsifiers.meta.instruments import kernel_dots
    return kernel_dots


def run_dot(a: Tensor, b: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    out = torch.empty(len(a), b.shape[1], dtype=dtype)
    kernels().dot(a, b, out)
    return out


def test_row_has_the_same_bits_at_every_position() -> None:
    b, row = torch.randn(32, 32), torch.randn(32)
    with deterministic_dots():
        repeated = run_dot(row.expand(16, 32).contiguous(), b)
        mixed = torch.randn(16, 32)
        mixed[9] = row
        assert torch.equal(run_dot(mixed, b)[9], repeated[0])
    assert torch.equal(repeated, repeated[:1].expand(16, 32))
    assert torch.allclose(repeated[0], row @ b, rtol=1e-4, atol=1e-4)


def test_bfloat16_is_multiplied_by_value() -> None:
    a, b = torch.randn(16, 16).bfloat16(), torch.randn(16, 16).bfloat16()
    with deterministic_dots():
        got = run_dot(a, b)
    assert torch.allclose(got, a.float() @ b.float(), rtol=1e-4, atol=1e-4)


def test_integers_stay_exact_and_the_interpreter_is_restored() -> None:
    a, b = (torch.randint(-128, 128, (32, 32), dtype=torch.int8) for _ in range(2))
    with deterministic_dots():
        got = run_dot(a, b, torch.int32)
    assert torch.equal(got, a.int() @ b.int())
    from triton.runtime.interpreter import InterpreterBuilder
    assert InterpreterBuilder.create_dot.__name__ == "create_dot"
