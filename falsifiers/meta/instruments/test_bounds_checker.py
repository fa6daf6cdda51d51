"""The fences see what a kernel touches outside its tensors, and nothing where nothing is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from falsifiers.instruments.bounds_checker import Span, check_bounds
from falsifiers.judging.errors import Unmeasurable


def kernels() -> Any:
    """Import the kernels of these tests, which fixes Triton's mode."""
    from falsifiers.meta.instruments import kernel_out_of_bounds
    return kernel_out_of_bounds


def strays(load: int = 0, store: int = 0) -> list[str]:
    x, out = torch.arange(64)[8:48], torch.zeros(64, dtype=torch.int64)[8:48]
    with check_bounds({"x": x}, {"out": out}) as fence:
        kernels().copy(x, out, load, store)
    assert torch.equal(out, x)
    assert fence.accesses == 2
    return fence.strays


@pytest.mark.tier("interpret")
def test_honest_kernel_does_not_stray() -> None:
    assert strays() == []


@pytest.mark.tier("interpret")
def test_load_past_the_end_is_seen() -> None:
    assert strays(load=2) == ["a load of 8 bytes 320 bytes into x, which ends at 320"]


@pytest.mark.tier("interpret")
def test_store_past_the_end_is_seen() -> None:
    assert strays(store=1) == ["a store of 8 bytes 320 bytes into out, which ends at 320"]


@pytest.mark.tier("interpret")
def test_memory_of_a_callees_own_is_not_judged_and_what_it_was_given_is() -> None:
    given, own = torch.arange(64), torch.zeros(64, dtype=torch.int64)
    with check_bounds({"x": given[:40]}, {"end": given[60:]}, {"given": given}) as fence:
        kernels().copy(given[:40], own[:40])
    assert (fence.strays, fence.accesses) == ([], 1)  # the store lies outside
    with check_bounds({"x": given[:40]}, {"end": given[60:]}, {"given": given}) as fence:
        kernels().copy(given[:40], own[:40], load=2)
        kernels().copy(own[:40], given[:40])
    assert fence.strays == ["a load of 8 bytes 320 bytes into x, which ends at 320",
                            "a store of 8 bytes 480 bytes before end"]


@pytest.mark.tier("interpret")
@pytest.mark.parametrize(("skip", "found"), [
    (0, []), (2, []), (1, ["a load of 2 bytes at an address that is 1 past a multiple of 2"])])
def test_load_that_is_not_aligned_is_seen(skip: int, found: list[str]) -> None:
    x, out = torch.arange(20, dtype=torch.uint8), torch.zeros(9, dtype=torch.int16)
    with check_bounds({"x": x}, {"out": out}) as fence:
        kernels().copy_pairs(x, out, skip)
    assert fence.strays == found


@pytest.mark.tier("interpret")
def test_fence_ends_with_its_block() -> None:
    x, out = torch.arange(4), torch.zeros(4, dtype=torch.int64)
    with check_bounds({"x": x}, {"out": out}) as fence:
        pass
    kernels().copy(x, out)
    assert fence.accesses == 0


def test_span_of_strided_rows_ends_with_their_last_value() -> None:
    rows = torch.zeros(3, 10)[:, :4]
    span = Span.from_tensor("rows", rows)
    assert (span.start, span.end - span.start) == (rows.data_ptr(), 4 * 24)


def test_nothing_is_claimed_without_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(Unmeasurable), check_bounds({}, {}):
        pass
