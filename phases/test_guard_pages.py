"""The CUDA kernels of P3 to P6 on tensors at the end of memory: any access after them fails.

A guard page follows each tensor, so an out-of-bounds read fails even if its value is not used.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine import ops
from engine.kernels.nvrtc import CudaError
from engine.rope import rope_table
from engine.state import Ints, Refs
from engine.weights import Weight
from falsifiers.instruments.guard_pages import copy_before_guard_page
from phases.p3_row_twin.data import activations, blocks
from phases.p3_row_twin.increment import gemv_rows
from phases.p6_batched_attention.increment import path

pytestmark = [pytest.mark.emulated, pytest.mark.usefixtures("emulated")]


def random_tensor(seed: int, *shape: int) -> Tensor:
    """Return normal values, at the end of memory."""
    generator = torch.Generator().manual_seed(seed)
    return copy_before_guard_page(torch.randn(*shape, generator=generator))


def empty_output(*shape: int) -> Tensor:
    """Return a NaN-filled output, at the end of memory."""
    return copy_before_guard_page(torch.full(shape, torch.nan))


def test_write_after_the_tensor_fails() -> None:
    from engine.emulate.fixtures import HEAD, launch
    x = random_tensor(1, 32)
    launch(f"{HEAD}float* x) {{ x[threadIdx.x] = 1; }}", x)
    with pytest.raises(CudaError, match="accessed unmapped memory"):
        launch(f"{HEAD}float* x) {{ x[threadIdx.x + 1] = 1; }}", x)


@pytest.mark.parametrize(("kind", "k", "m"), [("Q8_0", 352, 3), ("Q4_K", 256, 17)])
def test_product(kind: str, k: int, m: int) -> None:
    weight, x, out = Weight("w", kind, blocks(kind, 17, k)), activations(m, k), empty_output(m, 17)
    gemv_rows(weight, copy_before_guard_page(x), out)
    assert torch.equal(out, weight.product(x))


def test_sum_and_norm() -> None:
    inputs = [random_tensor(i, 2, 300) for i in range(3)]
    want = [torch.empty(2, 300) for _ in range(2)]
    x, y, weight = inputs[0], inputs[1], copy_before_guard_page(inputs[2][0])
    got = [empty_output(2, 300) for _ in range(2)]
    ops.add_norm(ops.norm, x, y, weight, 1e-6, *want)
    path().fused.add_norm(x, y, weight, 1e-6, *got)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_gate_of_the_ffn() -> None:
    gate, up = random_tensor(1, 2, 300), random_tensor(2, 2, 300)
    want, got = torch.empty(2, 300), empty_output(2, 300)
    ops.silu_mul(gate, up, want)
    path().silu_mul(gate, up, got)
    assert torch.equal(got, want)


def test_gated_norm() -> None:
    x, z, weight = random_tensor(1, 2, 3, 128), random_tensor(2, 2, 3, 128), random_tensor(3, 128)
    want, got = torch.empty(2, 3, 128), empty_output(2, 3, 128)
    ops.gated_norm(x, z, weight, 1e-6, want)
    path().gated_norm(x, z, weight, 1e-6, got)
    assert torch.equal(got, want)


def test_convolution() -> None:
    x, taps, state = random_tensor(1, 6, 384), random_tensor(2, 384, 4), torch.randn(1, 384, 3)
    plain, want, got = state.clone(), torch.empty(6, 384), empty_output(6, 384)
    guarded = copy_before_guard_page(state)
    ops.conv_step(x, taps, Refs(plain, (0,)), (6,), want)
    path().conv_step(x, taps, Refs(guarded, (0,)), Ints((6,)), got)
    assert torch.equal(got, want)
    assert torch.equal(guarded, plain)


def test_gates() -> None:
    a, b, decay, bias = (random_tensor(1, 3, 6), random_tensor(2, 3, 6), random_tensor(3, 6),
                         random_tensor(4, 6))
    want, got = [torch.empty(3, 6) for _ in range(2)], [empty_output(3, 6) for _ in range(2)]
    ops.gates(a, b, decay, bias, *want)
    path().gates(a, b, decay, bias, *got)
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))


def test_delta_rule() -> None:
    q, k, v = random_tensor(1, 3, 1, 128), random_tensor(2, 3, 1, 128), random_tensor(3, 3, 2, 128)
    g, beta = (copy_before_guard_page(random_tensor(seed, 3, 2).sigmoid()) for seed in (4, 5))
    state = torch.randn(1, 2, 128, 128)
    plain, guarded = state.clone(), copy_before_guard_page(state)
    want, got = torch.empty(3, 2, 128), empty_output(3, 2, 128)
    ops.delta_step(q, k, v, g, beta, Refs(plain, (0,)), (3,), want)
    path().delta_step(q, k, v, g, beta, Refs(guarded, (0,)), Ints((3,)), got)
    assert torch.equal(got, want)
    assert torch.equal(guarded, plain)


@pytest.mark.parametrize("kv", [torch.float32, torch.bfloat16])
def test_attention(kv: torch.dtype) -> None:
    q, k, v, gate = (random_tensor(i, 2, heads, 256) for i, heads in enumerate((4, 2, 2, 4)))
    caches = [torch.randn(1, 67, 2, 256).to(kv) for _ in range(2)]
    keys, values = plain = [Refs(x.clone(), (0,)) for x in caches]
    guarded = [Refs(copy_before_guard_page(x), (0,)) for x in caches]
    want, got = torch.empty(2, 4, 256), empty_output(2, 4, 256)
    ops.attend(q, k, v, gate, keys, values, (65,), (2,), want)
    path().attend(q, k, v, gate, *guarded, Ints((65,)), Ints((2,)), got)
    assert torch.equal(got, want)
    assert all(torch.equal(x.all_slots, y.all_slots) for x, y in zip(guarded, plain, strict=True))


def test_norm_and_rotation() -> None:
    xs = [random_tensor(1, 2, 3, 256), random_tensor(2, 2, 1, 256)]
    weights = [random_tensor(3, 256), random_tensor(4, 256)]
    table = copy_before_guard_page(rope_table(8, 64, 1e7))
    want, got = ([[make(*x.shape) for x in xs] for _ in range(2)]
                 for make in (torch.empty, empty_output))
    ops.norm_rotate(ops.norm, ops.rotate, xs, weights, 1e-6, table, [7, 2], *want)
    positions = copy_before_guard_page(torch.tensor([7, 2]))
    path().fused.norm_rotate(xs, weights, 1e-6, table, positions, *got)
    assert all(torch.equal(a, b) for x, y in zip(got, want, strict=True)
               for a, b in zip(x, y, strict=True))
