"""The bounds checker reports accesses out of bounds or not aligned, and no others."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from falsifiers.instruments.bounds_checker import Span, check_bounds
from falsifiers.judging.errors import Unmeasurable


def kernels() -> Any:
    """Import the kernels in the test, since this fixes Triton's mode."""
    from falsifiers.meta.instruments import kernel_out_of_bounds
    return kernel_out_of_bounds


def violations(load: int = 0, store: int = 0) -> list[str]:
    x, out = torch.arange(64)[8:48], torch.zeros(64, dtype=torch.int64)[8:48]
    with check_bounds({"x": x}, {"out": out}) as checker:
        kernels().copy(x, out, load, store)
    assert torch.equal(out, x)
    assert checker.accesses == 2
    return checker.violations


@pytest.mark.tier("interpret")
def test_right_kernel_has_no_violation() -> None:
    assert violations() == []


@pytest.mark.tier("interpret")
def test_load_past_the_end_is_reported() -> None:
    assert violations(load=2) == ["a load of 8 bytes 320 bytes into x, which ends at 320"]


@pytest.mark.tier("interpret")
def test_store_past_the_end_is_reported() -> None:
    assert violations(store=1) == ["a store of 8 bytes 320 bytes into out, which ends at 320"]


@pytest.mark.tier("interpret")
def test_only_memory_in_around_is_checked() -> None:
    memory, scratch = torch.arange(64), torch.zeros(64, dtype=torch.int64)
    with check_bounds({"x": memory[:40]}, {"end": memory[60:]}, {"memory": memory}) as checker:
        kernels().copy(memory[:40], scratch[:40])
    assert (checker.violations, checker.accesses) == ([], 1)  # the store lies outside
    with check_bounds({"x": memory[:40]}, {"end": memory[60:]}, {"memory": memory}) as checker:
        kernels().copy(memory[:40], scratch[:40], load=2)
        kernels().copy(scratch[:40], memory[:40])
    assert checker.violations == ["a load of 8 bytes 320 bytes into x, which ends at 320",
                            "a store of 8 bytes 480 bytes before end"]


@pytest.mark.tier("interpret")
@pytest.mark.parametrize(("skip", "found"), [
    (0, []), (2, []), (1, ["a load of 2 bytes at an address that is 1 past a multiple of 2"])])
def test_load_that_is_not_aligned_is_reported(skip: int, found: list[str]) -> None:
    x, out = torch.arange(20, dtype=torch.uint8), torch.zeros(9, dtype=torch.int16)
    with check_bounds({"x": x}, {"out": out}) as checker:
        kernels().copy_pairs(x, out, skip)
    assert checker.violations == found


@pytest.mark.tier("interpret")
def test_checker_ends_with_its_block() -> None:
    x, out = torch.arange(4), torch.zeros(4, dtype=torch.int64)
    with check_bounds({"x": x}, {"out": out}) as checker:
        pass
    kernels().copy(x, out)
    assert checker.accesses == 0


def test_span_of_strided_rows_ends_with_their_last_value() -> None:
    rows = torch.zeros(3, 10)[:, :4]
    span = Span.from_tensor("rows", rows)
    assert (span.start, span.end - span.start) == (rows.data_ptr(), 4 * 24)


def test_interpreter_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(Unmeasurable), check_bounds({}, {}):
        pass
